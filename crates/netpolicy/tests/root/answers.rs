//! Tests the answers of `set` through a daemon: in force, refused, or later. A refusal leaves everything
//! unchanged.

use libtest_mimic::{Failed, Trial};
use linux::lab::SERVER_DEVICE;
use testkit::operator::{CommandOutput, Operator, Started, flushes, waited_for};
use testkit::{Need, test};

use crate::attached::EpollMaker;

pub(crate) fn tests() -> Vec<Trial> {
    const ROOT: &[Need] = &[Need::Root];
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension];
    vec![
        test("answers/what_the_kernel_refuses_is_said_and_does_not_stand_in_the_way", NEEDS, kernel_refuses),
        test(
            "answers/what_the_daemon_may_not_do_is_refused_and_what_was_asked_before_stays",
            NEEDS,
            not_allowed,
        ),
        test("answers/a_refusal_ends_as_it_would_without_a_daemon", NEEDS, same_exit),
        test("answers/what_is_not_there_yet_is_waited_for_and_the_exit_code_says_so", NEEDS, later),
        test("answers/what_was_rolled_back_is_taken_up_when_it_is_asked_for_again", NEEDS, taken_up),
        test("answers/a_file_in_the_place_of_a_socket_is_left_as_it_is", ROOT, precious),
        test("answers/metrics_are_served_nowhere_where_an_empty_word_says_so", ROOT, no_metrics),
        test("answers/a_daemon_that_is_stopped_is_not_waited_for_without_end", ROOT, stopped),
        test("answers/a_word_that_changes_nothing_here_says_so_first", ROOT, no_effect),
        test("answers/settings_of_processes_that_have_ended_are_not_held", NEEDS, ended),
        test("answers/what_was_asked_before_and_cannot_be_read_is_named_with_a_way_out", ROOT, unreadable),
    ]
}

/// Starts a daemon for an operator without policy files.
fn begun(name: &str, queues: u32) -> Result<(Operator, Started), Failed> {
    let operator = Operator::new(name, queues)?;
    let daemon = operator.starts(&["daemon"])?;
    operator.waits_to_hear("at work")?;
    Ok((operator, daemon))
}

fn sets(operator: &Operator, rest: &[&str], code: i32) -> Result<CommandOutput, Failed> {
    operator.runs(&[&["set", "device", SERVER_DEVICE], rest].concat(), code)
}

/// A veth polls packets as they are sent, so `latency` resolves to the kernel's default.
fn no_effect() -> Result<(), Failed> {
    let operator = Operator::new("answers-no-effect", 1)?;
    operator.asks("[device.veth-server]\npolicy = \"latency\"\n")?;
    for command in [&["set", "device", SERVER_DEVICE, "latency"][..], &["plan"], &["apply"], &["try"]] {
        let words = operator.runs(command, 0)?.words;
        let first = words.lines().next().unwrap_or_default();
        assert!(
            first.contains("policy latency") && first.contains("changes nothing"),
            "{command:?}: {words}"
        );
        assert!(words.contains("the policy results in the kernel's defaults here"), "{command:?}: {words}");
        assert!(
            !words.contains("already matches the policy") && !words.contains("already in force"),
            "{command:?}: {words}"
        );
    }
    Ok(())
}

/// Returns the JSON output of `status`, and whether everything is in order.
fn status(operator: &Operator) -> Result<(String, bool), Failed> {
    let code = operator.netpolicy(&["status"]).output()?.status.code().ok_or("a signal")?;
    Ok((operator.runs(&["-o", "json", "status"], code)?.data, code == 0))
}

fn kernel_refuses() -> Result<(), Failed> {
    let operator = Operator::new("answers-kernel", 2)?;
    let _daemon = operator.starts(&["daemon", "--disruptive", "--allow-irreversible"])?;
    operator.waits_to_hear("at work")?;
    sets(&operator, &["defer50"], 0)?;
    // On a kernel with this qdisc, there is no refusal to test.
    let refused = ["defer20", "--setting", "qdisc=fq"];
    let has_fq = operator.inside(&format!("tc qdisc add dev {SERVER_DEVICE} root fq")).is_ok();
    if !has_fq {
        let said = sets(&operator, &refused, 1)?;
        assert!(said.words.contains("qdisc"), "{}", said.words);
        assert!(said.words.contains("Nothing was changed."), "{}", said.words);
        assert_eq!(flushes(&operator.devices()?), [50_000; 2], "the earlier request stays in force");
        let (state, in_order) = status(&operator)?;
        assert!(in_order && !state.contains("refused-by-kernel"), "{state}");
        // The refusal affects neither the next attempt nor another setting of the device.
        sets(&operator, &refused, 1)?;
    }
    let said = sets(&operator, &["defer20", "--setting", "rx-gro-list=on"], 0)?;
    assert!(said.words.contains("it is set"), "{}", said.words);
    let features = || operator.inside(&format!("ethtool -k {SERVER_DEVICE}"));
    assert!(features()?.contains("rx-gro-list: on"));
    assert_eq!(flushes(&operator.devices()?), [20_000; 2]);
    // The kernel remembers a request for an offload whose prerequisite is off, and turns the offload on when
    // the prerequisite is turned on.
    operator.inside(&format!("ethtool -K {SERVER_DEVICE} tso off"))?;
    operator.inside(&format!("ethtool -K {SERVER_DEVICE} tx off"))?;
    sets(&operator, &["defer20", "--setting", "tx-tcp-segmentation=on"], 0)?;
    assert!(features()?.contains("tx-tcp-segmentation: off [requested on]"));
    operator.inside(&format!("ethtool -K {SERVER_DEVICE} tx on"))?;
    assert!(features()?.contains("tx-tcp-segmentation: on"));
    Ok(())
}

fn not_allowed() -> Result<(), Failed> {
    let (operator, _daemon) = begun("answers-allowed", 2)?;
    sets(&operator, &["interrupt", "--setting", "rx-gro-list=on"], 0)?;
    let said = sets(&operator, &["interrupt", "--setting", "rx-channels=1"], 7)?;
    assert!(said.words.contains("rx-channels") && said.words.contains("--disruptive"), "{}", said.words);
    assert_eq!(flushes(&operator.devices()?).len(), 2, "of two queues, as before");
    assert!(operator.inside(&format!("ethtool -k {SERVER_DEVICE}"))?.contains("rx-gro-list: on"));
    let (state, in_order) = status(&operator)?;
    assert!(in_order && !state.contains("not-allowed"), "{state}");
    Ok(())
}

fn same_exit() -> Result<(), Failed> {
    let operator = Operator::new("answers-exit", 2)?;
    let maker = EpollMaker::new(&operator)?;
    let pid = maker.pid().to_string();
    let asked: [&[&str]; 4] = [
        &["set", "device", SERVER_DEVICE, "interrupt", "--setting", "rx-usecs=8"],
        &["set", "device", SERVER_DEVICE, "threaded-busy"],
        &["set", "device", "lo", "latency"],
        &["set", "task", &pid, "userbusy"],
    ];
    let ends = || {
        let each = asked.iter().map(|words| {
            let output = operator.netpolicy(words).output()?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            Ok((output.status.code(), said.lines().next().map(str::to_owned)))
        });
        each.collect::<Result<Vec<_>, Failed>>()
    };
    let without = ends()?;
    assert!(without.iter().all(|(code, _)| *code != Some(0)), "{without:?}");
    let _daemon = operator.starts(&["daemon"])?;
    operator.waits_to_hear("at work")?;
    assert_eq!(ends()?, without);
    Ok(())
}

fn later() -> Result<(), Failed> {
    let (operator, _daemon) = begun("answers-later", 1)?;
    let said = operator.runs(&["set", "device", "wan7", "defer50"], 3)?;
    assert!(said.words.contains("waiting until device wan7 exists"), "{}", said.words);
    operator.sets_link("down")?;
    operator.changes_link(SERVER_DEVICE, &["name", "wan7"])?;
    operator.changes_link("wan7", &["up"])?;
    waited_for("its policy", || Ok((flushes(&operator.devices()?) == [50_000]).then_some(())))?;
    for name in ["", "a device's name", "../../etc"] {
        operator.runs(&["set", "device", name, "defer50"], 2)?;
    }
    Ok(())
}

fn taken_up() -> Result<(), Failed> {
    let (operator, _daemon) = begun("answers-again", 2)?;
    sets(&operator, &["defer50"], 0)?;
    operator.runs(&["rollback"], 0)?;
    operator.waits_to_hear("it manages nothing until a reload")?;
    assert_eq!(flushes(&operator.devices()?), [0; 2]);
    let said = sets(&operator, &["defer50"], 0)?;
    assert!(said.words.contains("it is set"), "{}", said.words);
    assert_eq!(flushes(&operator.devices()?), [50_000; 2]);
    let (state, in_order) = status(&operator)?;
    assert!(in_order && !state.contains("rolled-back"), "{state}");
    Ok(())
}

fn precious() -> Result<(), Failed> {
    let operator = Operator::new("answers-file", 1)?;
    let file = operator.file("precious", b"precious")?;
    for option in ["--socket", "--metrics-socket"] {
        let said = operator.runs(&["daemon", option, &file], 2)?;
        assert!(said.words.contains("not a socket"), "{}", said.words);
    }
    assert_eq!(std::fs::read_to_string(&file)?, "precious");
    let said = operator.runs(&["daemon", "--metrics-file", &file], 2)?;
    assert!(said.words.contains(".prom"), "{}", said.words);
    assert_eq!(std::fs::read_to_string(&file)?, "precious");
    Ok(())
}

fn no_metrics() -> Result<(), Failed> {
    for (name, arguments, there) in
        [("metrics-none", vec!["daemon", "--metrics-socket", ""], false), ("metrics", vec!["daemon"], true)]
    {
        let operator = Operator::new(name, 1)?;
        let _daemon = operator.starts(&arguments)?;
        operator.waits_to_hear("at work")?;
        assert_eq!(operator.state().join("metrics").exists(), there, "{arguments:?}");
        assert!(operator.state().join("io.netpolicy").exists());
    }
    Ok(())
}

fn stopped() -> Result<(), Failed> {
    let (operator, daemon) = begun("answers-stopped", 1)?;
    operator.runs(&["status"], 0)?;
    let pid = i32::try_from(daemon.child.id()).ok().and_then(rustix::process::Pid::from_raw).ok_or("pid")?;
    rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
    let said = operator.runs(&["status"], 1)?;
    assert!(said.words.contains(&format!("process {}", daemon.child.id())), "{}", said.words);
    assert!(said.words.contains("has not answered within"), "{}", said.words);
    Ok(())
}

fn ended() -> Result<(), Failed> {
    let (operator, _daemon) = begun("answers-ended", 1)?;
    for _ in 0..2 {
        let maker = EpollMaker::new(&operator)?;
        operator.runs(&["set", "task", &maker.pid().to_string(), "suspend20"], 0)?;
        assert_eq!(maker.epolls(&operator)?.len(), 1);
    }
    // The daemon restores the queues only when a second observation does not find the service either, because
    // the service may be restarting.
    let nothing = || Ok(status(&operator)?.0.contains("\"settings\": 0").then_some(()));
    waited_for("no held settings", nothing).or_else(|_| waited_for("no held settings", nothing))?;
    let said = operator.runs(&["verify"], 0)?;
    assert!(!said.data.contains("gone"), "{}", said.data);
    Ok(())
}

fn unreadable() -> Result<(), Failed> {
    let operator = Operator::new("answers-unreadable", 1)?;
    std::fs::create_dir_all(operator.state())?;
    std::fs::write(operator.state().join("requests.json"), b"")?;
    let said = operator.runs(&["daemon"], 1)?;
    assert!(said.words.contains("requests.json") && said.words.contains("move it away"), "{}", said.words);
    Ok(())
}
