//! Tests undo without netpolicy (`undo.sh` on a plain Debian), undo of a queue that no longer exists, and
//! undo after queues were recreated.

use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use testkit::operator::{Operator, flushes};
use testkit::{Need, test};

use crate::remedy::{connected, typed};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension, Need::Program("perl")];
    const ATTACHED: &[Need] = &[Need::Root, Need::Suspension, Need::Memcached, Need::Program("ethtool")];
    vec![
        test("undo_sh/puts_napis_back_with_the_programs_of_a_plain_debian", NEEDS, || {
            on_a_plain_debian(false)
        }),
        test("undo_sh/puts_napis_back_also_after_a_garbled_journal", NEEDS, || on_a_plain_debian(true)),
        test("undo_sh/says_that_a_queue_must_come_back", NEEDS, a_queue_that_is_away),
        test("rollback/prints_a_script_that_undoes_all_transactions_without_netpolicy", NEEDS, all_by_script),
        test(
            "rollback/the_doctor_says_that_files_still_ask_for_what_was_rolled_back",
            NEEDS,
            still_asked_for,
        ),
        test("doctor_names_a_refused_policy_file_first", &[Need::Root], refused_file),
        test("rollback/follows_a_device_into_another_namespace_and_back", &[Need::Root], moved),
        test("rollback/stays_open_for_a_device_that_is_out_of_reach", &[Need::Root], out_of_reach),
        test(
            "rollback/restores_what_was_requested_of_an_offload_that_is_not_on",
            &[Need::Root, Need::Program("ethtool")],
            requested_and_off,
        ),
        test("trial/ends_for_devices_that_were_moved_renamed_and_swapped", &[Need::Root], moved_on_trial),
        test("rollback/says_what_brings_a_queue_back_and_that_mends_it", ATTACHED, brought_back),
    ]
}

fn refused_file() -> Result<(), Failed> {
    let operator = Operator::new("refused-file", 1)?;
    let device = "[device.veth-server]\npolicy = \"latency\"\n";
    for text in ["[device.veth-server\n".to_owned(), format!("{device}{device}")] {
        operator.asks(&text)?;
        let plan = operator.netpolicy(&["plan"]).output()?;
        let code = plan.status.code().ok_or("a code")?;
        assert_ne!(code, 0, "{}", String::from_utf8_lossy(&plan.stdout));
        let said = operator.runs(&["-o", "json", "doctor", "--seconds", "0"], code)?;
        let report: serde_json::Value = serde_json::from_str(&said.data)?;
        assert_eq!(report["data"]["findings"][0]["rule"], "policy-refused", "{report}");
        assert!(!said.data.contains("no-policy"), "{report}");
    }
    Ok(())
}

/// A command for a setting that stays in force when the device moves to another namespace.
const STAYS: [&str; 6] = ["set", "device", "veth-server", "none", "--setting", "rps_cpus=0"];

/// A network namespace that only this test keeps open.
struct Elsewhere(linux::Netns);

impl Elsewhere {
    fn new() -> Result<Self, Failed> {
        Ok(Self(linux::Netns::create()?))
    }

    /// Returns the path by which other processes can open the namespace.
    fn path(&self) -> String {
        use std::os::fd::{AsFd, AsRawFd};
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_fd().as_raw_fd())
    }

    fn inside(&self, command: &str) -> Result<String, Failed> {
        let there = format!("--net={}", self.path());
        let output = Command::new("nsenter").arg(&there).args(command.split(' ')).output()?;
        if !output.status.success() {
            return Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// Returns the RPS CPUs of the device's first queue in the namespace.
    fn rps_cpus(&self, device: &str) -> Result<String, Failed> {
        let file = format!("/sys/class/net/{device}/queues/rx-0/rps_cpus");
        let there = format!("--net={}", self.path());
        let script = format!("mount -t sysfs sysfs /sys && cat {file}");
        let output =
            Command::new("nsenter").arg(&there).args(["unshare", "--mount", "sh", "-c", &script]).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }
}

fn moved() -> Result<(), Failed> {
    for by_script in [false, true] {
        let operator = Operator::new("moved", 1)?;
        let before = operator.devices()?;
        operator.runs(&STAYS, 0)?;
        let elsewhere = Elsewhere::new()?;
        operator.changes_link("veth-server", &["netns", &elsewhere.path(), "name", "eth7"])?;
        assert_eq!(elsewhere.rps_cpus("eth7")?, "1", "the kernel moves a device with its settings");
        if by_script {
            let (code, said) = by_hand(&operator)?;
            assert!(code == Some(0) && said.contains("restored to 0"), "{code:?} {said}");
        } else {
            operator.runs(&["rollback"], 0)?;
        }
        assert_eq!(elsewhere.rps_cpus("eth7")?, "0", "by script: {by_script}");
        let home = format!("ip link set eth7 netns {} name veth-server", operator.lab.server_pid());
        elsewhere.inside(&home)?;
        let after = operator.devices()?;
        let of = |host: &model::Host| {
            host.devices.iter().map(|d| d.rx_queues[0].rps_cpus.clone()).collect::<Vec<_>>()
        };
        assert_eq!(of(&after), of(&before));
    }
    Ok(())
}

/// In a separate pid namespace, netpolicy finds no file of the namespace that the device moved to. The
/// original namespace tells it that the device exists elsewhere.
fn out_of_reach() -> Result<(), Failed> {
    let operator = Operator::new("out-of-reach", 1)?;
    operator.runs(&STAYS, 0)?;
    let elsewhere = Elsewhere::new()?;
    operator.changes_link("veth-server", &["netns", &elsewhere.path()])?;
    let there = format!("--net=/proc/{}/ns/net", operator.lab.server_pid());
    let whole = operator.netpolicy_here(&["rollback"]);
    let mut command = Command::new("nsenter");
    command.args([&there, "unshare", "--pid", "--fork", "--mount-proc"]).arg(whole.get_program());
    let output = command.args(whole.get_args()).output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("in a network namespace that no name") && said.contains("veth-server"), "{said}");
    assert_eq!(elsewhere.rps_cpus("veth-server")?, "1");
    // The transaction is still open, and can be rolled back when the device has returned.
    elsewhere.inside(&format!("ip link set veth-server netns {}", operator.lab.server_pid()))?;
    operator.runs(&["rollback"], 0)?;
    let devices = operator.devices()?;
    let device = devices.devices.iter().find(|device| device.id.name.as_str() == "veth-server");
    assert!(device.ok_or("veth-server")?.rx_queues[0].rps_cpus.is_empty());
    Ok(())
}

/// With checksums off, the kernel leaves TCP segmentation off, but keeps the request.
fn requested_and_off() -> Result<(), Failed> {
    let operator = Operator::new("requested-and-off", 1)?;
    operator.inside("ethtool -K veth-server tx-checksumming off")?;
    let segmentation = || -> Result<String, Failed> {
        let features = operator.inside("ethtool -k veth-server")?;
        let line = features.lines().find_map(|line| line.trim().strip_prefix("tx-tcp-segmentation: "));
        Ok(line.ok_or("no such line")?.to_owned())
    };
    let requested = "off [requested on]";
    assert_eq!(segmentation()?, requested, "the premise");
    let shown = operator.runs(&["show"], 0)?.data;
    assert!(shown.contains("tx-tcp-segmentation off [requested on]"), "{shown}");
    let doctor = operator.runs(&["doctor", "--seconds", "0", "--all"], 0)?.data;
    assert!(doctor.contains("offload-not-as-requested"), "{doctor}");

    let set = |on: &str| {
        let setting = format!("tx-tcp-segmentation={on}");
        operator.runs(&["set", "device", "veth-server", "none", "--setting", &setting], 0)
    };
    let same = set("true")?;
    assert!(same.words.contains("Nothing to change"), "{}", same.words);
    set("false")?;
    assert_eq!(segmentation()?, "off");
    operator.runs(&["rollback"], 0)?;
    assert_eq!(segmentation()?, requested);
    set("false")?;
    let file = operator.state().join("undo-all.sh");
    std::fs::write(&file, operator.runs(&["rollback", "--script"], 0)?.data)?;
    let path = "/usr/sbin:/usr/bin:/sbin:/bin";
    let output = Command::new("/bin/sh").arg(&file).env("PATH", path).output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!((output.status.code(), &*segmentation()?), (Some(0), requested), "{said}");
    operator.runs(&["rollback"], 0)?;

    // The kernel keeps the requested value of a feature even while it cannot enable the feature.
    operator.inside("ethtool -K veth-server tx-tcp-segmentation off")?;
    set("true")?;
    assert_eq!(segmentation()?, requested);
    operator.runs(&["verify"], 0)?;
    operator.runs(&["rollback"], 0)?;
    assert_eq!(segmentation()?, "off");
    Ok(())
}

fn moved_on_trial() -> Result<(), Failed> {
    let operator = Operator::new("moved-on-trial", 1)?;
    operator.inside("ip link add other type veth peer name third")?;
    operator.asks("[device.veth-server]\npolicy = \"none\"\nsettings = { rps_cpus = \"0\" }\n[device.other]\npolicy = \"none\"\nsettings = { rps_cpus = \"0\" }\n")?;
    operator.runs(&["try", "--seconds", "4"], 0)?;
    // Swap the names of the device and another one, then move the device to another namespace.
    operator.inside("ip link set veth-server down")?;
    operator.inside("ip link set veth-server name swapped")?;
    operator.inside("ip link set other name veth-server")?;
    operator.inside("ip link set swapped name other")?;
    let elsewhere = Elsewhere::new()?;
    operator.changes_link("other", &["netns", &elsewhere.path()])?;
    testkit::operator::waited_for("the end of the trial", || {
        Ok((elsewhere.rps_cpus("other")? == "0").then_some(()))
    })?;
    testkit::operator::waited_for("the end of the trial here", || {
        let devices = operator.devices()?.devices;
        Ok(devices
            .iter()
            .all(|device| device.rx_queues.iter().all(|queue| queue.rps_cpus.is_empty()))
            .then_some(()))
    })?;
    testkit::operator::waited_for("the journal", || {
        Ok(operator.runs(&["history"], 0)?.data.contains("rolled back").then_some(()))
    })
}

fn still_asked_for() -> Result<(), Failed> {
    let operator = Operator::new("still-asked-for", 1)?;
    operator.asks("[device.veth-server]\ndelivery = \"suspend20\"\n")?;
    operator.runs(&["apply"], 0)?;
    let doctor = ["doctor", "--seconds", "0", "--all"];
    assert!(!operator.runs(&doctor, 0)?.data.contains("not in force"));
    operator.runs(&["rollback"], 0)?;
    let said = operator.runs(&doctor, 3)?.data;
    assert!(said.contains("settings that are not in force") && said.contains("was rolled back"), "{said}");
    assert!(said.contains(" plan; ") && said.contains(" apply"), "{said}");
    Ok(())
}

/// The programs that `undo.sh` uses, all in Debian's essential or required packages.
const PLAIN: [&str; 17] = [
    "sh", "cat", "stat", "dirname", "readlink", "tr", "sed", "cut", "true", "mount", "nsenter", "unshare",
    "sort", "wc", "perl", "rm", "find",
];

/// Returns the only undo script in an operator's journal.
fn script(operator: &Operator) -> Result<PathBuf, Failed> {
    let found = std::fs::read_dir(operator.state().join("journal"))?
        .find_map(|entry| Some(entry.ok()?.path().join("undo.sh")).filter(|script| script.exists()));
    Ok(found.ok_or("a script")?)
}

/// Runs the undo script with a shell that finds only the programs in `PLAIN`; returns the exit status and the
/// output.
fn by_hand(operator: &Operator) -> Result<(Option<i32>, String), Failed> {
    let programs = operator.state().join("programs");
    std::fs::create_dir_all(&programs)?;
    for program in PLAIN {
        let found =
            ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(|place| PathBuf::from(place).join(program));
        let found =
            found.iter().find(|path| path.exists()).ok_or_else(|| format!("{program} is not installed"))?;
        let _linked_already = std::os::unix::fs::symlink(found, programs.join(program));
    }
    let output = Command::new("/bin/sh").arg(script(operator)?).env("PATH", &programs).output()?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&said).into_owned()))
}

fn on_a_plain_debian(garbled: bool) -> Result<(), Failed> {
    let operator = Operator::new(if garbled { "plain-garbled" } else { "plain" }, 2)?;
    let before = operator.host()?;
    operator.runs(&["set", "device", "veth-server", "suspend200"], 0)?;
    assert_eq!(flushes(&operator.devices()?), [200_000, 200_000]);
    if garbled {
        let journal = script(&operator)?.with_file_name("journal.jsonl");
        let mut bytes = std::fs::read(&journal)?;
        bytes.iter_mut().step_by(7).for_each(|byte| *byte = b'#');
        std::fs::write(&journal, bytes)?;
    }
    let (code, said) = by_hand(&operator)?;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("irq-suspend-timeout: restored to 0"), "{said}");
    assert_eq!(operator.host()?, before, "{said}");
    let (code, said) = by_hand(&operator)?;
    assert!(
        code == Some(0) && !said.contains("restored to"),
        "running the script twice does no harm: {said}"
    );
    // The undone transaction does not block the next one.
    operator.runs(&["set", "device", "veth-server", "defer200"], 0)?;
    Ok(())
}

fn all_by_script() -> Result<(), Failed> {
    let operator = Operator::new("script", 2)?;
    let before = operator.host()?;
    operator.runs(&["set", "device", "veth-server", "suspend200"], 0)?;
    operator.runs(&["set", "device", "veth-server", "defer20"], 0)?;
    assert_eq!(flushes(&operator.devices()?), [20_000, 20_000]);
    let text = operator.runs(&["rollback", "--script"], 0)?.data;
    assert_eq!(flushes(&operator.devices()?), [20_000, 20_000], "the script is only printed");
    let file = operator.state().join("undo-all.sh");
    std::fs::write(&file, &text)?;
    let output = Command::new("/bin/sh").arg(&file).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!((output.status.code(), operator.host()?), (Some(0), before), "{text}\n{said}");
    // A rollback skips settings that the script has already restored. Without a transaction, `rollback
    // --script` prints a script that does nothing.
    operator.runs(&["rollback"], 0)?;
    operator.runs(&["rollback"], 0)?;
    let empty = operator.runs(&["rollback", "--script"], 0)?.data;
    assert!(!empty.contains("undo.sh --by-hand"), "{empty}");
    Ok(())
}

fn a_queue_that_is_away() -> Result<(), Failed> {
    let operator = Operator::new("plain-away", 2)?;
    operator.runs(&["set", "device", "veth-server", "suspend200"], 0)?;
    operator.inside("ethtool -L veth-server rx 1")?;
    let (code, said) = by_hand(&operator)?;
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("there is no such queue now: bring it back (ethtool -L)"), "{said}");
    operator.inside("ethtool -L veth-server rx 2")?;
    let (code, said) = by_hand(&operator)?;
    assert_eq!((code, flushes(&operator.devices()?)), (Some(0), vec![0, 0]), "{said}");
    Ok(())
}

/// So many connections that both queues almost certainly get some.
const CONNECTIONS: usize = 16;

/// Tests a queue that is removed while an attachment holds its settings, and is added again.
fn brought_back() -> Result<(), Failed> {
    let operator = Operator::new("brought-back", 2)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    // The hash of a connection selects its queue. With this many connections, at least one uses the queue
    // that will be removed.
    let _streams =
        (0..CONNECTIONS).map(|_| connected(&operator, &server)).collect::<Result<Vec<_>, Failed>>()?;
    let pid = server.process().pid.to_string();
    let attached = operator.starts(&["attach", &pid, "--delivery", "suspend200"])?;
    operator.waits_to_hear("Attached.")?;
    operator.inside("ethtool -L veth-server rx 1")?;
    assert_eq!(attached.terminated()?, Some(5));
    let said = operator.said()?;
    let hint = said.lines().find_map(|line| line.strip_prefix("hint: "));
    let hint = hint.ok_or_else(|| format!("no hint in:\n{said}"))?;
    let commands = hint.split_once(": ").ok_or_else(|| format!("no commands in `{hint}`"))?.1;
    assert!(commands.contains("ethtool -L veth-server rx 2"), "{hint}");
    assert!(commands.contains("netpolicy "), "{hint}");
    typed(commands)?;
    assert_eq!(flushes(&operator.devices()?), [0, 0], "{hint}");
    operator.runs(&["verify"], 0)?;
    Ok(())
}
