//! Tests messages to an operator when nothing is wrong, or when the cause is not the obvious one.

use std::process::Command;

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use testkit::operator::{Operator, at_work, flushes};
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Memcached, Need::Suspension];
    vec![
        test("explain/a_service_is_explained_by_the_name_that_the_file_gives_it", NEEDS, explained),
        test("journal/a_full_disk_is_said_to_be_full", &[Need::Root, Need::Suspension], full_disk),
        test("daemon/a_device_whose_queues_are_a_services_is_not_said_to_be_set", NEEDS, beside_a_service),
        test("daemon/an_offload_that_stays_off_is_named_as_apply_does", NEEDS, stays_off),
        test("daemon/others_reach_the_socket_in_a_state_directory_of_its_own", NEEDS, reached_by_others),
    ]
}

const SERVICE: &str = "[service.cache]\nmatch = { exe = \"memcached\" }\ndelivery = \"defer200\"\n";

fn explained() -> Result<(), Failed> {
    let operator = Operator::new("explain-service", 1)?;
    // Run a copy of memcached, because the labs of other tests run the original.
    let program = operator.file("explained-server", &std::fs::read("/usr/bin/memcached")?)?;
    operator
        .asks(&format!("[service.cache]\nmatch = {{ exe = \"{program}\" }}\ndelivery = \"defer200\"\n"))?;
    let said = operator.runs(&["explain", "cache"], 0)?.words;
    assert!(
        said.contains("defer200 is requested at") && said.contains("no process of this service runs"),
        "{said}"
    );
    assert!(!said.contains("no policy file requests it"), "{said}");
    let mut server = Command::new(&program);
    server.args(["-u", "nobody", "-l", &linux::lab::SERVER_ADDRESS.to_string(), "-p", "11211", "-U", "0"]);
    let _server = operator.lab.start_program(server, 11211)?;
    for name in ["cache", "service.cache"] {
        let said = operator.runs(&["explain", name], 0)?;
        assert!(said.data.contains("gro-flush-timeout"), "{name}: {}{}", said.data, said.words);
    }
    operator.runs(&["apply"], 0)?;
    let said = operator.runs(&["explain", "cache"], 0)?;
    assert!(said.data.contains("gro-flush-timeout"), "{}{}", said.data, said.words);
    let said = operator.runs(&["explain", "lo"], 0)?.words;
    assert!(said.contains("no policy file requests it"), "{said}");
    let said = operator.runs(&["explain", "cahce"], 2)?.words;
    assert!(said.contains("is called `cahce`") && said.contains("did you mean `cache`?"), "{said}");
    Ok(())
}

/// Sets a device twice, on disks of growing size: a transaction that runs out of space does not block the
/// next one.
fn full_disk() -> Result<(), Failed> {
    const TWICE: &str = "mount -t tmpfs -o mode=0700,size=$0 tmpfs \"$1\" && shift && for _ in 1 2; do \"$@\"; echo \"ended $?\"; done";
    const QUEUES: u32 = 48;
    let operator = Operator::new("full-disk", QUEUES)?;
    let before = flushes(&operator.devices()?);
    std::fs::create_dir_all(operator.state())?;
    let mut begun = 0;
    for kilobytes in (88..256).step_by(4) {
        let netpolicy = operator.netpolicy(&["set", "device", "veth-server", "suspend200"]);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", TWICE, &format!("{kilobytes}k")]).arg(operator.state());
        let output = command.arg(netpolicy.get_program()).args(netpolicy.get_args()).output()?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if said.contains("ended 0") {
            break;
        }
        assert_eq!(said.matches("No space left on device").count(), 2, "{kilobytes} KiB:\n{said}");
        assert_eq!(said.matches("ended 1").count(), 2, "{kilobytes} KiB:\n{said}");
        assert_eq!(flushes(&operator.devices()?), before, "{kilobytes} KiB:\n{said}");
        begun += said.matches("The host was restored.").count();
    }
    assert!(begun > 0, "on no disk did the transaction begin and not end");
    Ok(())
}

fn beside_a_service() -> Result<(), Failed> {
    let operator = Operator::new("beside-service", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let daemon = at_work(&operator, SERVICE)?;
    testkit::operator::are(&operator, &[200_000])?;
    let said = operator.runs(&["set", "device", "veth-server", "defer50"], 3)?.words;
    assert!(said.contains("left to more specific requests"), "{said}");
    assert!(!said.contains("it is set"), "{said}");
    assert_eq!(flushes(&operator.devices()?), [200_000]);
    operator.runs(&["unset", "device", "veth-server"], 0)?;
    let status = operator.runs(&["status"], 0)?.data;
    assert!(!status.contains(" none "), "{status}");
    drop(daemon);
    Ok(())
}

fn stays_off() -> Result<(), Failed> {
    let operator = Operator::new("stays-off", 1)?;
    let daemon = at_work(&operator, "# nothing yet\n")?;
    // With checksums off, the kernel keeps the request for TSO but leaves TSO off.
    operator.inside("ethtool -K veth-server tso off")?;
    operator.inside("ethtool -K veth-server tx off")?;
    let setting = |value: &str| format!("tx-tcp-segmentation={value}");
    let set = |value: &str| {
        operator.runs(&["set", "device", "veth-server", "none", "--setting", &setting(value)], 0)
    };
    let said = set("true")?.words;
    assert!(said.contains("tx-tcp-segmentation is requested on and stays off"), "{said}");
    operator.inside("ethtool -K veth-server tx on")?;
    let said = set("true")?.words;
    assert!(!said.contains("stays off"), "{said}");
    drop(daemon);
    Ok(())
}

fn reached_by_others() -> Result<(), Failed> {
    use std::os::unix::fs::PermissionsExt;
    let operator = Operator::new("reached", 1)?;
    let daemon = at_work(&operator, SERVICE)?;
    let mode = |path: &str| -> Result<u32, Failed> {
        Ok(std::fs::metadata(operator.state().join(path))?.permissions().mode() & 0o777)
    };
    assert_eq!((mode("")?, mode("journal")?), (0o711, 0o700));
    let unprivileged = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    let connect =
        "use Socket; socket(my $s, PF_UNIX, SOCK_STREAM, 0); connect($s, sockaddr_un($ARGV[0])) or die $!";
    let socket = operator.state().join("io.netpolicy");
    let output =
        Command::new("setpriv").args(unprivileged).args(["perl", "-e", connect]).arg(&socket).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    drop(daemon);
    Ok(())
}
