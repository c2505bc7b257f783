//! Tests loads that a signal stops.

use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::Instant;

use libtest_mimic::{Failed, Trial};
use testkit::{Need, test};

use crate::rules::{HOOK, LOOK_AGAIN, SOON, Stage, rules, text};

pub(crate) fn tests() -> Vec<Trial> {
    let root = [Need::Root];
    vec![
        test("a_load_that_a_signal_ends_accounts_for_every_line", &root, accounted),
        test("an_atomic_load_is_taken_back_before_a_signal_ends_it", &root, atomic),
        test("two_resumed_loads_of_one_file_load_it_once", &root, twice),
    ]
}

const RULES: u32 = 50_000;

fn begun(stage: &Stage, arguments: &[&str], file: &Path) -> Child {
    let arguments = [&["-o", "json", "tc", "load", text(file)], arguments].concat();
    let spawned = stage
        .netns
        .run(|| Stage::command(testkit::programs::netpolicy(), &arguments).stdin(Stdio::null()).spawn());
    spawned.expect("inside").expect("started")
}

/// Sends the signal to a load once some rules exist, and returns the load's output and report.
fn signalled(stage: &Stage, signal: &str, arguments: &[&str], file: &Path) -> (Output, serde_json::Value) {
    let mut child = begun(stage, arguments, file);
    let began = Instant::now();
    while !stage.has(1000) {
        assert!(
            began.elapsed() < SOON && child.try_wait().expect("asked").is_none(),
            "the load ended too soon"
        );
        std::thread::sleep(LOOK_AGAIN);
    }
    assert!(stage.run("kill", &[signal, &child.id().to_string()]).status.success());
    let output = child.wait_with_output().expect("waited");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let report = report["data"].clone();
    assert_eq!(report["interrupted"], true, "{:?}", output.status);
    (output, report)
}

fn accounted() -> Result<(), Failed> {
    for signal in ["-INT", "-TERM", "-HUP"] {
        let stage = Stage::new(&format!("signal{signal}"));
        let file = stage.file(&format!("{HOOK}{}", rules(1, RULES)));
        let (output, report) = signalled(&stage, signal, &[], &file);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("--resume"), "{:?}: {said}", output.status);
        let loaded = report["loaded"].as_u64().expect("a number");
        let not_sent = report["not_sent"].as_array().expect("a list").len() as u64;
        assert_eq!(loaded + not_sent, u64::from(RULES) + 2);
        assert!(not_sent > 0);
        // All lines except the hook are rules.
        assert_eq!(stage.rules() as u64, loaded - 1);
        let (code, report) = stage.netpolicy(&["tc", "load", "--resume", text(&file)]);
        assert_eq!((code, &report["loaded"]), (0, &not_sent.into()));
    }
    Ok(())
}

fn atomic() -> Result<(), Failed> {
    let stage = Stage::new("signal_atomic");
    assert_eq!(stage.netpolicy(&["tc", "load", text(&stage.file(HOOK))]).0, 0);
    let file = stage.file(&rules(1, RULES));
    let (output, report) = signalled(&stage, "-TERM", &["--atomic"], &file);
    assert_eq!(stage.rules(), 0, "no rule is left when the command has ended");
    assert_eq!((output.status.code(), &report["undone"]), (Some(4), &true.into()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("a signal ended it") && said.contains("The host was restored."), "{said}");
    Ok(())
}

fn twice() -> Result<(), Failed> {
    let stage = Stage::new("resumed_twice");
    assert_eq!(stage.netpolicy(&["tc", "load", text(&stage.file(HOOK))]).0, 0);
    let file: String = (0..2000_u32)
        .map(|rule| {
            format!(
                "filter add dev d0 ingress protocol ip prio 1 u32 match ip src 10.0.{}.{} classid 1:1\n",
                rule >> 8,
                rule & 255
            )
        })
        .collect();
    let file = stage.file(&file);
    let both = [(); 2].map(|()| begun(&stage, &["--resume"], &file));
    for child in both {
        assert!(child.wait_with_output().expect("waited").status.success());
    }
    assert_eq!(stage.rules(), 2000);
    Ok(())
}
