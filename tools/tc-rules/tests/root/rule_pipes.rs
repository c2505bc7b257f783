//! Tests loads from a pipe, which can only be read once.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use testkit::{Need, test};

use crate::rules::{HOOK, LOOK_AGAIN, SOON, Stage, rules, text};

pub(crate) fn tests() -> Vec<Trial> {
    let root = [Need::Root];
    vec![
        test("what_is_read_twice_may_come_out_of_a_fifo", &root, fifo),
        test("an_atomic_load_from_a_pipe_that_is_killed_leaves_what_was_there", &root, atomic_killed),
        test("a_file_that_is_replaced_while_it_is_loaded_is_read_to_its_end", &root, replaced),
    ]
}

fn begun(stage: &Stage, arguments: &[&str], stdin: Stdio) -> Child {
    let mut command = Command::new(testkit::programs::netpolicy());
    command.args(["-o", "json", "tc"]).args(arguments).stdin(stdin);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    stage.netns.run(|| command.spawn()).expect("inside").expect("started")
}

/// Waits until the process exits, and returns its exit code and report.
fn ended(mut child: Child) -> (i32, serde_json::Value) {
    let began = Instant::now();
    while child.try_wait().expect("asked").is_none() {
        if began.elapsed() > SOON {
            child.kill().expect("killed");
            panic!("the load waits for a pipe without a writer");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("waited");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code().expect("ended"), report["data"].clone())
}

fn fifo() -> Result<(), Failed> {
    let stage = Stage::new("fifo");
    let fifo = stage.scratch.path("rules.fifo");
    assert!(stage.run("mkfifo", &[text(&fifo)]).status.success());
    let all = format!("{HOOK}{}", rules(1, 1000));
    let through = |written: &str, arguments: &[&str]| {
        let child = begun(&stage, &[arguments, &[text(&fifo)]].concat(), Stdio::null());
        // Opening the FIFO blocks until the reader opens it.
        std::fs::write(&fifo, written).expect("written");
        ended(child)
    };
    assert_eq!(through(&all, &["load"]).0, 0);
    let (code, report) = through(&format!("{HOOK}{}", rules(1, 2000)), &["load", "--resume"]);
    assert_eq!((code, &report["loaded"], &report["skipped"]), (0, &1000.into(), &1002.into()), "{report}");
    let (code, report) = through(&rules(1, 2000), &["load", "--check"]);
    assert_eq!((code, &report["same"]), (0, &2001.into()), "{report}");
    assert_eq!(through(&rules(1, 2001), &["diff"]).0, 3, "one is missing");
    let (code, report) = through(&rules(2, 10), &["load", "--atomic"]);
    assert_eq!((code, &report["loaded"]), (0, &11.into()), "{report}");
    // Without a writer, opening the FIFO times out.
    assert_eq!(ended(begun(&stage, &["load", text(&fifo)], Stdio::null())).0, 2);
    Ok(())
}

fn atomic_killed() -> Result<(), Failed> {
    let stage = Stage::new("pipe_killed");
    let file = stage.file(&format!("{HOOK}{}", rules(1, 10)));
    assert_eq!(stage.netpolicy(&["tc", "load", text(&file)]).0, 0);
    // The priority existed before, so the rules are undone one by one, from the file.
    let more: String = rules(1, 50_000).lines().skip(11).map(|line| format!("{line}\n")).collect();
    let mut child = begun(&stage, &["load", "--atomic", "-"], Stdio::piped());
    child.stdin.take().expect("a pipe").write_all(more.as_bytes()).expect("written");
    let began = Instant::now();
    while !stage.has(1000) {
        assert!(
            began.elapsed() < SOON && child.try_wait().expect("asked").is_none(),
            "the process ended too soon"
        );
        std::thread::sleep(LOOK_AGAIN);
    }
    child.kill().expect("killed");
    child.wait().expect("waited");
    while stage.rules() != 11 {
        assert!(began.elapsed() < SOON, "{} rules exist, 11 were expected", stage.rules());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn replaced() -> Result<(), Failed> {
    let stage = Stage::new("replaced");
    let hook = stage.file(HOOK);
    assert_eq!(stage.netpolicy(&["tc", "load", text(&hook)]).0, 0);
    let file = stage.file(&rules(1, 50_000));
    let child = begun(&stage, &["load", "--resume", text(&file)], Stdio::null());
    let began = Instant::now();
    while !stage.has(100) {
        assert!(began.elapsed() < SOON, "it never began");
        std::thread::sleep(LOOK_AGAIN);
    }
    let other = stage.scratch.path("other");
    std::fs::write(&other, "wrong\n").expect("written");
    std::fs::rename(&other, &file).expect("renamed");
    let (code, report) = ended(child);
    assert_eq!((code, &report["loaded"]), (0, &50_001.into()), "{report}");
    Ok(())
}
