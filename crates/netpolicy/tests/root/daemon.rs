//! Tests the daemon on a lab host: the events that it handles, the settings that it keeps in force, and those
//! that it leaves unchanged.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};
use linux::lab::{MemcachedOptions, SERVER_DEVICE};
use model::{ChannelKind, CpuSet, EpollParams, Nanoseconds, NapiKnob, NicKnob, Pid, RxQueueKnob, Setting};
use rustix::process::Signal;
use serde_json::Value;
use testkit::operator::{Operator, Started, flushes, somebody_else_sets, waited_for};
use testkit::{Need, test};

use crate::attached::{EpollMaker, SUSPENDING};
use crate::requests::connect;

/// What the daemon prints once it has read the policy files and listens.
const AT_WORK: &str = "at work";

/// `gro-flush-timeout` of defer50, in nanoseconds.
const DEFER50: u64 = 50_000;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension];
    const BPF: &[Need] = &[Need::Root, Need::Suspension, Need::Bpf];
    const SERVED: &[Need] = &[Need::Root, Need::Suspension, Need::Bpf, Need::Memcached];
    vec![
        test("daemon/a_kill_changes_nothing_and_the_next_one_goes_on", NEEDS, killed_and_started_again),
        test("daemon/asked_to_revert_it_puts_everything_back_at_its_end", NEEDS, on_stop_revert),
        test("daemon/a_second_one_is_refused_with_the_number_of_the_first", NEEDS, second),
        test("daemon/a_service_gets_its_policy_when_it_starts_and_each_new_epoll_too", BPF, exec_and_epoll),
        test("daemon/a_service_known_by_its_port_gets_its_policy_when_it_listens", BPF, listener),
        test(
            "daemon/the_first_connection_of_a_server_ends_its_claim_on_all_queues",
            SERVED,
            first_connection,
        ),
        test("daemon/processes_that_end_half_way_do_not_disturb_it", BPF, ends_half_way),
        test("daemon/a_device_that_comes_up_or_is_renamed_gets_its_policy", NEEDS, links),
        test(
            "daemon/a_device_that_is_renamed_away_loses_its_settings_or_takes_them_along",
            NEEDS,
            renamed_away,
        ),
        test("daemon/what_somebody_else_sets_as_it_is_wanted_is_theirs_and_no_drift", NEEDS, made_right),
        test("daemon/a_device_that_is_made_again_is_set_and_no_drift", NEEDS, made_again),
        test("daemon/new_channels_get_the_policy_of_their_device", NEEDS, channels),
        test("daemon/what_somebody_else_takes_away_is_put_right", NEEDS, drift),
        test("daemon/a_device_that_loses_its_settings_again_and_again_is_left_alone", NEEDS, flapping),
        test("daemon/a_wrong_policy_file_leaves_the_policy_as_it_was", NEEDS, wrong_file),
        test("daemon/a_request_that_is_refused_does_not_keep_the_others_waiting", NEEDS, refused_request),
        test("daemon/a_policy_that_goes_puts_its_settings_back", NEEDS, policy_goes),
        test("daemon/a_rollback_is_left_alone_until_it_is_asked_again", NEEDS, rolled_back),
        test("daemon/a_full_state_directory_is_reported_once_until_there_is_space", NEEDS, without_space),
        test("daemon/a_service_that_is_everybody_is_not_the_daemon_itself", NEEDS, everybody),
        test("daemon/where_bpf_is_refused_it_says_so_and_keeps_the_rest", BPF, without_bpf),
    ]
}

fn device_policy(device: &str, delivery: &str) -> String {
    format!("[device.{device}]\npolicy = \"bulk\"\ndelivery = \"{delivery}\"\n")
}

/// Starts a daemon for a device that has a policy.
fn begun(name: &str, queues: u32, arguments: &[&str]) -> Result<(Operator, Started), Failed> {
    let operator = Operator::new(name, queues)?;
    operator.asks(&device_policy(SERVER_DEVICE, "defer50"))?;
    let daemon = operator.starts(&[&["daemon"], arguments].concat())?;
    operator.waits_to_hear(AT_WORK)?;
    is_set(&operator, &vec![DEFER50; queues as usize])?;
    Ok((operator, daemon))
}

fn is_set(operator: &Operator, wanted: &[u64]) -> Result<(), Failed> {
    waited_for(&format!("the queues' timeouts {wanted:?}"), || {
        Ok((flushes(&operator.devices()?) == wanted).then_some(()))
    })
}

fn killed_and_started_again() -> Result<(), Failed> {
    let (operator, mut daemon) = begun("daemon-kill", 2, &[])?;
    daemon.child.kill()?;
    daemon.child.wait()?;
    assert_eq!(flushes(&operator.devices()?), [DEFER50; 2], "as it was");
    let before = operator.runs(&["-o", "json", "history"], 0)?.data;
    let daemon = operator.starts(&["daemon"])?;
    operator.waits_to_hear(AT_WORK)?;
    operator.waits_to_hear("Resuming: ")?;
    assert_eq!(daemon.terminated()?, Some(0));
    assert_eq!(flushes(&operator.devices()?), [DEFER50; 2], "while the daemon runs, and when it ends");
    assert_eq!(operator.runs(&["-o", "json", "history"], 0)?.data, before, "it changed nothing");
    operator.runs(&["rollback"], 0)?;
    assert_eq!(flushes(&operator.devices()?), [0; 2]);
    Ok(())
}

fn on_stop_revert() -> Result<(), Failed> {
    let (operator, daemon) = begun("daemon-revert", 2, &["--on-stop", "revert"])?;
    assert_eq!(daemon.terminated()?, Some(0));
    operator.waits_to_hear("Restored")?;
    assert!(
        !operator.said()?.contains("was rolled back"),
        "the daemon prints no warning: {}",
        operator.said()?
    );
    assert_eq!(flushes(&operator.devices()?), [0; 2]);
    let config = operator.file("daemon.toml", b"on_stop = \"revert\"\n")?;
    let daemon = operator.starts(&["daemon", "--config", &config])?;
    operator.waits_to_hear(AT_WORK)?;
    is_set(&operator, &[DEFER50; 2])?;
    assert_eq!(daemon.terminated()?, Some(0));
    assert_eq!(flushes(&operator.devices()?), [0; 2], "the file contains it, too");
    let config = operator.file("daemon.toml", b"on_stop = \"revrt\"\n")?;
    let said = operator.runs(&["daemon", "--config", &config], 2)?;
    assert!(said.words.contains("revrt") && said.words.contains("line 1"), "{}", said.words);
    Ok(())
}

fn second() -> Result<(), Failed> {
    let (operator, daemon) = begun("daemon-second", 1, &[])?;
    let said = operator.runs(&["daemon"], 7)?;
    assert!(said.words.contains(&format!("pid {}", daemon.child.id())), "{}", said.words);
    Ok(())
}

fn own_name() -> Result<String, Failed> {
    let exe = std::env::current_exe()?;
    Ok(exe.file_name().ok_or("a name")?.to_string_lossy().into_owned())
}

fn exec_and_epoll() -> Result<(), Failed> {
    let operator = Operator::new("daemon-exec", 1)?;
    let exe = own_name()?;
    operator.asks(&format!(
        "[service.maker]\nmatch = {{ exe = \"{exe}\" }}\npolicy = \"latency\"\ndelivery = \"suspend20\"\n"
    ))?;
    let daemon = operator.starts(&["daemon"])?;
    operator.waits_to_hear(AT_WORK)?;
    let before = flushes(&operator.devices()?);
    let mut maker = EpollMaker::new(&operator)?;
    let all_are = |maker: &EpollMaker, count: usize| {
        waited_for(&format!("{count} epolls with parameters"), || {
            Ok((maker.epolls(&operator)? == vec![SUSPENDING; count]).then_some(()))
        })
    };
    all_are(&maker, 1)?;
    is_set(&operator, &[20_000])?;
    maker.send("another")?;
    all_are(&maker, 2)?;
    // The daemon releases a process's request only some time after the process has exited, because the
    // process may be restarting.
    drop(maker);
    is_set(&operator, &before)?;
    assert_eq!(daemon.terminated()?, Some(0));
    Ok(())
}

fn listener() -> Result<(), Failed> {
    let operator = Operator::new("daemon-listener", 1)?;
    operator.asks(
        "[service.cache]\nmatch = { port = 11999 }\npolicy = \"latency\"\ndelivery = \"suspend20\"\n",
    )?;
    let _daemon = operator.starts(&["daemon"])?;
    operator.waits_to_hear(AT_WORK)?;
    let mut maker = EpollMaker::new(&operator)?;
    assert_eq!(maker.epolls(&operator)?, [EpollParams::default()], "the device serves no process yet");
    maker.send("listen 11999")?;
    waited_for("its parameters", || Ok((maker.epolls(&operator)? == [SUSPENDING]).then_some(())))?;
    is_set(&operator, &[20_000])
}

/// Until its first connection, a server may use any queue; then an event reports its queue.
fn first_connection() -> Result<(), Failed> {
    let operator = Operator::new("daemon-first-connection", 2)?;
    operator.asks(
        "[service.cache]\nmatch = { port = 11211 }\npolicy = \"latency\"\ndelivery = \"suspend20\"\n",
    )?;
    // Start the server before the daemon: the lab connects once, to check that the server answers.
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let _daemon = operator.starts(&["daemon"])?;
    operator.waits_to_hear(AT_WORK)?;
    let status = || -> Result<Value, Failed> {
        let output = operator.netpolicy(&["-o", "json", "status"]).output()?;
        Ok(serde_json::from_slice::<Value>(&output.stdout)?["data"].clone())
    };
    let queues = |wanted: u64| {
        waited_for(&format!("{wanted} dedicated queues"), || {
            Ok((status()?["requests"][0]["queues"] == wanted).then_some(()))
        })
    };
    queues(2)?;
    waited_for("the note on its queues", || {
        let notes = status()?["requests"][0]["notes"].to_string();
        Ok(notes.contains("is unknown until a packet arrives").then_some(()))
    })?;
    let mut connection = BufReader::new(connect(&operator.lab, 11_211)?);
    connection.get_mut().write_all(b"get nothing\r\n")?;
    connection.read_line(&mut String::new())?;
    queues(1)?;
    let status = status()?;
    assert!(
        !status["requests"][0]["notes"].to_string().contains("is unknown until a packet arrives"),
        "{status}"
    );
    assert!(status["counters"]["events"]["connection"].as_u64() >= Some(1), "{status}");
    Ok(())
}

fn ends_half_way() -> Result<(), Failed> {
    let operator = Operator::new("daemon-half", 1)?;
    let exe = own_name()?;
    operator.asks(&format!(
        "[service.maker]\nmatch = {{ exe = \"{exe}\" }}\npolicy = \"latency\"\ndelivery = \"suspend20\"\n"
    ))?;
    let _daemon = operator.starts(&["daemon"])?;
    operator.waits_to_hear(AT_WORK)?;
    for _ in 0..20 {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--list").stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = operator.lab.server().run(|| command.spawn())??;
        child.kill()?;
        child.wait()?;
    }
    let maker = EpollMaker::new(&operator)?;
    waited_for("the parameters of a running process", || {
        Ok((maker.epolls(&operator)? == [SUSPENDING]).then_some(()))
    })
}

fn links() -> Result<(), Failed> {
    let operator = Operator::new("daemon-links", 2)?;
    operator.sets_link("down")?;
    operator.asks(&device_policy(SERVER_DEVICE, "defer50"))?;
    let _daemon = operator.starts(&["daemon"])?;
    operator.waits_to_hear(AT_WORK)?;
    operator.sets_link("up")?;
    is_set(&operator, &[DEFER50; 2])?;
    operator.asks(&device_policy("wan7", "defer20"))?;
    is_set(&operator, &[0; 2])?;
    operator.changes_link(SERVER_DEVICE, &["name", "wan7"])?;
    is_set(&operator, &[20_000; 2])
}

/// The kernel reports a rename as an event. The settings of a section that names the device end; a section
/// with a pattern still matches the device.
fn renamed_away() -> Result<(), Failed> {
    let operator = Operator::new("daemon-renamed-away", 2)?;
    operator.asks(&device_policy(SERVER_DEVICE, "defer50"))?;
    let daemon = operator.starts(&["daemon", "--on-stop", "revert"])?;
    operator.waits_to_hear(AT_WORK)?;
    is_set(&operator, &[DEFER50; 2])?;
    operator.inside(&format!("ip link set {SERVER_DEVICE} name lan0"))?;
    is_set(&operator, &[0; 2])?;
    operator.inside(&format!("ip link set lan0 name {SERVER_DEVICE}"))?;
    is_set(&operator, &[DEFER50; 2])?;
    operator.asks("[device.\"*n*\"]\ndelivery = \"defer50\"\n")?;
    operator.inside(&format!("ip link set {SERVER_DEVICE} name lan0"))?;
    let explained = waited_for("the device by its new name", || {
        let said = operator.netpolicy(&["explain", "lan0"]).output()?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        Ok(said.contains("50us").then_some(said))
    })?;
    assert!(explained.contains("gro-flush-timeout"), "{explained}");
    is_set(&operator, &[DEFER50; 2])?;
    assert_eq!(daemon.terminated()?, Some(0));
    is_set(&operator, &[0; 2])
}

/// Another program sets the value that the next policy requests, as a driver does that spreads its queues
/// again when a CPU comes back online. That is no drift.
fn made_right() -> Result<(), Failed> {
    let steers = |cpus: &str| {
        format!("[device.{SERVER_DEVICE}]\npolicy = \"none\"\nsettings = {{ rps_cpus = \"{cpus}\" }}\n")
    };
    let operator = Operator::new("daemon-made-right", 1)?;
    let host = operator.devices()?;
    let queue = host.device_named(SERVER_DEVICE).ok_or("the device")?.rx_queues[0].id;
    let online = &host.topology.online;
    let (one, all) = (online.iter().take(1).collect::<CpuSet>(), online.clone());
    assert!(one != all, "this needs two CPUs");
    let steered = |cpus: &CpuSet| {
        waited_for(&format!("rps_cpus {cpus}"), || {
            let host = operator.devices()?;
            let device = host.device_named(SERVER_DEVICE).ok_or("the device")?;
            Ok((device.rx_queues[0].rps_cpus == *cpus).then_some(()))
        })
    };
    operator.asks(&steers(&one.to_string()))?;
    let daemon = operator.starts(&["daemon", "--on-stop", "revert"])?;
    operator.waits_to_hear(AT_WORK)?;
    steered(&one)?;
    operator.runs(&["verify"], 0)?;
    // A write to sysfs causes no event: when the daemon observes the value, the policy already requests it.
    somebody_else_sets(Setting::RxQueue(queue, RxQueueKnob::RpsCpus(all.clone())))?;
    operator.asks(&steers(&all.to_string()))?;
    waited_for("no drift", || {
        Ok((operator.netpolicy(&["verify"]).output()?.status.code() == Some(0)).then_some(()))
    })?;
    operator.runs(&["plan"], 0)?;
    operator.runs(&["status"], 0)?;
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["verify"], 0)?;
    // The other program's value stays, without a finding.
    steered(&all)
}

fn made_again() -> Result<(), Failed> {
    const MAKE: &str = "ip link add np0 type veth peer name np1";
    let operator = Operator::new("daemon-made-again", 1)?;
    operator.inside(MAKE)?;
    operator.asks("[device.np0]\npolicy = \"none\"\nsettings = { rps_cpus = \"0\" }\n")?;
    let daemon = operator.starts(&["daemon", "--on-stop", "revert"])?;
    operator.waits_to_hear(AT_WORK)?;
    let steered = |cpus: &str| {
        waited_for(&format!("rps_cpus {cpus}"), || {
            let host = operator.devices()?;
            let device = host.device_named("np0");
            Ok(device.is_some_and(|np0| np0.rx_queues[0].rps_cpus.to_string() == cpus).then_some(()))
        })
    };
    steered("0")?;
    operator.runs(&["verify"], 0)?;
    for _ in 0..2 {
        operator.inside("ip link del np0")?;
        operator.inside(MAKE)?;
        steered("0")?;
        // The daemon's next observation releases the settings of the deleted device.
        waited_for("no drift", || {
            Ok((operator.netpolicy(&["verify"]).output()?.status.code() == Some(0)).then_some(()))
        })?;
    }
    operator.asks("")?;
    steered("")?;
    operator.asks("[device.np0]\npolicy = \"none\"\nsettings = { rps_cpus = \"0\" }\n")?;
    steered("0")?;
    assert_eq!(daemon.terminated()?, Some(0));
    steered("")
}

fn channels() -> Result<(), Failed> {
    let operator = Operator::new("daemon-channels", 2)?;
    let host = operator.devices()?;
    let device = host.device_named(SERVER_DEVICE).ok_or("the device")?.id;
    somebody_else_sets(Setting::Nic(device, NicKnob::Channels(ChannelKind::Rx, 1)))?;
    operator.asks(&device_policy(SERVER_DEVICE, "defer50"))?;
    let _daemon = operator.starts(&["daemon"])?;
    operator.waits_to_hear(AT_WORK)?;
    is_set(&operator, &[DEFER50])?;
    somebody_else_sets(Setting::Nic(device, NicKnob::Channels(ChannelKind::Rx, 2)))?;
    is_set(&operator, &[DEFER50; 2])
}

fn drift() -> Result<(), Failed> {
    let (operator, _daemon) = begun("daemon-drift", 2, &[])?;
    let queue = operator.devices()?.device_named(SERVER_DEVICE).ok_or("the device")?.rx_queues[1].id;
    somebody_else_sets(Setting::Napi(queue, NapiKnob::GroFlushTimeout(Nanoseconds(7_000))))?;
    assert_eq!(flushes(&operator.devices()?), [DEFER50, 7_000]);
    is_set(&operator, &[DEFER50; 2])
}

fn flapping() -> Result<(), Failed> {
    let (operator, _daemon) = begun("daemon-flapping", 1, &[])?;
    for _ in 0..10 {
        operator.sets_link("down")?;
        operator.sets_link("up")?;
        is_set(&operator, &[DEFER50])?;
    }
    operator.sets_link("down")?;
    operator.sets_link("up")?;
    operator.waits_to_hear("flapping: left alone")?;
    assert_eq!(flushes(&operator.devices()?), [0]);
    Ok(())
}

fn wrong_file() -> Result<(), Failed> {
    let (operator, _daemon) = begun("daemon-wrong", 1, &[])?;
    operator.asks(&device_policy(SERVER_DEVICE, "defr20"))?;
    operator.waits_to_hear("the previous policy stays in force")?;
    operator.waits_to_hear("10-test.toml:3:")?;
    operator.waits_to_hear("^^^^")?;
    assert_eq!(flushes(&operator.devices()?), [DEFER50]);
    operator.asks(&device_policy(SERVER_DEVICE, "defer20"))?;
    is_set(&operator, &[20_000])
}

fn refused_request() -> Result<(), Failed> {
    let operator = Operator::new("daemon-refused", 1)?;
    let exe = own_name()?;
    // A request that is refused (busy polling without a budget), and an unrelated device.
    operator.asks(&format!(
        "{}[service.maker]\nmatch = {{ exe = \"{exe}\" }}\npolicy = \"latency\"\ndelivery = \"eventbusy\"\n",
        device_policy(SERVER_DEVICE, "defer50")
    ))?;
    let _maker = EpollMaker::new(&operator)?;
    let _daemon = operator.starts(&["daemon"])?;
    is_set(&operator, &[DEFER50])?;
    operator.waits_to_hear("service maker: ")
}

fn policy_goes() -> Result<(), Failed> {
    let (operator, _daemon) = begun("daemon-goes", 2, &[])?;
    operator.asks("# nothing\n")?;
    is_set(&operator, &[0; 2])
}

fn rolled_back() -> Result<(), Failed> {
    let (operator, daemon) = begun("daemon-rollback", 2, &[])?;
    let said = operator.runs(&["rollback"], 0)?;
    assert!(said.words.contains(&format!("kill -HUP {}", daemon.child.id())), "{}", said.words);
    operator.waits_to_hear("it manages nothing until a reload")?;
    waited_for("a status that does not list the device as set", || {
        let output = operator.netpolicy(&["status"]).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        // The other two of the device's eight settings already had the requested values.
        Ok((output.status.code() == Some(3) && said.contains(" 2/8 ")).then_some(()))
    })?;
    // The daemon sets a rolled back setting again neither on a device event nor on a tick.
    operator.sets_link("down")?;
    operator.sets_link("up")?;
    std::thread::sleep(std::time::Duration::from_secs(11));
    assert_eq!(flushes(&operator.devices()?), [0; 2]);
    daemon.signalled(Signal::HUP)?;
    is_set(&operator, &[DEFER50; 2])?;
    operator.waits_to_hear("SIGHUP: policy files and recipes were reloaded: 1 section, as before. ")?;
    assert!(!operator.said()?.contains("as before. 0 settings changed."), "{}", operator.said()?);
    daemon.signalled(Signal::HUP)?;
    operator.waits_to_hear("as before. 0 settings changed.")
}

fn without_space() -> Result<(), Failed> {
    const ATTEMPTS: usize = 4;
    const ATTEMPTED: &str = "not everything is in force yet";
    let operator = Operator::new("daemon-without-space", 1)?;
    operator.asks("# nothing yet\n")?;
    let state = operator.state();
    std::fs::create_dir_all(&state)?;
    let daemon = operator.starts_command(operator.netpolicy_with_little_space(&state, 256, &["daemon"]))?;
    operator.waits_to_hear(AT_WORK)?;
    let there = format!("--mount=/proc/{}/ns/mnt", daemon.child.id());
    let inside = |script: &str| {
        Command::new("nsenter").args([&there, "sh", "-c", script]).arg(&state).stderr(Stdio::null()).status()
    };
    // cat fills the file system until ENOSPC.
    inside("cat /dev/zero > \"$0/full\"")?;
    operator.asks(&device_policy(SERVER_DEVICE, "defer50"))?;
    operator.waits_to_hear("No space left")?;
    let attempts = || Ok::<_, Failed>(operator.said()?.matches(ATTEMPTED).count());
    for attempt in 1..=ATTEMPTS {
        daemon.signalled(Signal::HUP)?;
        waited_for("another attempt", || Ok((attempts()? >= attempt).then_some(())))?;
    }
    let said = operator.said()?;
    assert_eq!(said.matches("problem: daemon: ").count(), 1, "logged once: {said}");
    assert_eq!(flushes(&operator.devices()?), [0]);
    inside("rm \"$0/full\"")?;
    daemon.signalled(Signal::HUP)?;
    is_set(&operator, &[DEFER50])
}

fn everybody() -> Result<(), Failed> {
    let operator = Operator::new("daemon-everybody", 1)?;
    operator.means_what_it_does_on_a_nic()?;
    let uid = rustix::process::geteuid().as_raw();
    operator.asks(&format!("[service.all]\nmatch = {{ uid = {uid} }}\npolicy = \"latency\"\n"))?;
    let maker = EpollMaker::new(&operator)?;
    let daemon = operator.starts(&["daemon"])?;
    operator.waits_to_hear(AT_WORK)?;
    waited_for("the epolls of another process", || {
        Ok((maker.epolls(&operator)? == [SUSPENDING]).then_some(()))
    })?;
    let own = linux::observe(operator.lab.server(), &linux::Processes::Only(vec![Pid(daemon.child.id())]))?;
    let params: Vec<_> = own.processes.iter().flat_map(|process| &process.epolls).collect();
    assert!(!params.is_empty(), "the server waits in an epoll");
    assert!(params.iter().all(|epoll| epoll.params == Some(EpollParams::default())), "{params:?}");
    Ok(())
}

/// In a separate pid namespace, BPF is unavailable: the pids in kernel events would belong to other
/// processes.
fn without_bpf() -> Result<(), Failed> {
    let operator = Operator::new("daemon-no-bpf", 1)?;
    operator.asks(&device_policy(SERVER_DEVICE, "defer50"))?;
    let words = operator.file("no-bpf-words", b"")?;
    let file = std::fs::OpenOptions::new().append(true).open(&words)?;
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", operator.lab.server_pid()));
    command.args(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    let daemon = operator.netpolicy_here(&["daemon"]);
    command.arg(daemon.get_program()).args(daemon.get_args());
    let child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()?;
    let _daemon = Started { child };
    is_set(&operator, &[DEFER50])?;
    let said = std::fs::read_to_string(&words)?;
    assert!(said.contains("the kernel does not report these events immediately"), "{said}");
    assert!(said.contains("the initial pid namespace"), "{said}");
    Ok(())
}
