//! The best setting of a server, found on its own traffic.

use std::process::Stdio;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use model::{EmptyPolls, Nanoseconds, NapiKnob, Setting};
use serde_json::Value;
use testkit::operator::{Operator, caught, flushes, somebody_else_sets, waited_for};
use testkit::{Need, repeated, test};

use crate::requests::{while_asked, while_asked_every};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached, Need::Suspension];
    vec![
        test("tuned/the_best_setting_is_found_written_and_kept", NEEDS, repeated(found)),
        test("tuned/where_nothing_helps_there_is_no_winner_and_no_file", NEEDS, repeated(nothing)),
        test("tuned/clients_that_wait_for_answers_are_named", NEEDS, repeated(closed_loop)),
        test("tuned/what_is_not_tried_is_listed_with_the_reason", NEEDS, listed),
        test("tuned/one_that_is_killed_leaves_the_host_as_it_was", NEEDS, killed),
    ]
}

/// Makes packets wait for a timer of two milliseconds, as someone may have left it.
fn badly_set(operator: &Operator) -> Result<(), Failed> {
    let host = operator.devices()?;
    let device = host.device_named(linux::lab::SERVER_DEVICE).ok_or("the device")?;
    for queue in &device.rx_queues {
        somebody_else_sets(Setting::Napi(queue.id, NapiKnob::DeferHardIrqs(EmptyPolls(1_000))))?;
        somebody_else_sets(Setting::Napi(queue.id, NapiKnob::GroFlushTimeout(Nanoseconds::from_millis(2))))?;
    }
    Ok(())
}

const TUNE: [&str; 8] = ["-o", "json", "tune", "--port", "11211", "--goal", "p50", "--only"];

fn found() -> Result<(), Failed> {
    let operator = Operator::new("tuned-found", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    badly_set(&operator)?;
    let before = operator.host()?;
    let file = operator.state().with_file_name("tuned.toml").display().to_string();
    let more = ["--candidate", "defer20", "--candidate", "defer:4ms", "--candidate", "defer50"];
    // A shorter timer costs CPU time.
    let keep = ["--guard", "p99=+50%", "--seconds", "150", "--write", &file, "--keep-winner"];
    let said = while_asked(&operator, || operator.runs(&[&TUNE[..], &more, &keep].concat(), 0))?;
    let report: Value = serde_json::from_str(&said.data)?;
    let data = &report["data"];
    let winner = data["winner"]["candidate"].as_str().ok_or_else(|| format!("no winner: {report}"))?;
    assert!(["defer20", "defer50"].contains(&winner), "{report}");
    let stages: Vec<&Value> =
        data["stages"].as_array().into_iter().flatten().map(|stage| &stage["stage"]).collect();
    assert_eq!(stages, ["halving", "proof"], "{report}");
    let first = data["stages"][0]["candidates"].as_array().ok_or("candidates")?;
    let worst = first.iter().find(|tried| tried["candidate"] == "defer:4ms").ok_or("it was tried")?;
    assert!(!worst["out"].is_null(), "{worst}");
    let text = std::fs::read_to_string(&file)?;
    assert!(text.starts_with("# Found by `netpolicy tune`, ") && text.contains(winner), "{text}");
    // The file asks for what is in force already.
    let planned = operator.runs(&["-o", "json", "plan", "--policy-file", &file], 0)?;
    let planned: Value = serde_json::from_str(&planned.data)?;
    assert_eq!(planned["data"]["changes"], Value::Array(Vec::new()), "{planned}");
    let kept = data["kept"].as_str().ok_or("it stays in force")?;
    operator.runs(&["rollback", kept], 0)?;
    operator.is_again(&before)?;
    Ok(())
}

fn nothing() -> Result<(), Failed> {
    let operator = Operator::new("tuned-nothing", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.host()?;
    let file = operator.state().with_file_name("tuned.toml").display().to_string();
    let more = ["--candidate", "defer:2ms", "--candidate", "defer:4ms", "--seconds", "150", "--write", &file];
    let said = while_asked(&operator, || operator.runs(&[&TUNE[..], &more].concat(), 0))?;
    let report: Value = serde_json::from_str(&said.data)?;
    assert_eq!(report["data"]["winner"], Value::Null, "{report}");
    assert!(!std::path::Path::new(&file).exists());
    assert!(said.words.contains("was not written: there is no winner"), "{}", said.words);
    operator.is_again(&before)?;
    Ok(())
}

/// The rate of such clients is the candidate's doing: no round counts.
fn closed_loop() -> Result<(), Failed> {
    let operator = Operator::new("tuned-closed-loop", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.host()?;
    let more = ["--candidate", "defer:2ms", "--candidate", "defer:4ms"];
    let said = while_asked_every(&operator, Duration::from_millis(1), || {
        operator.runs(&[&TUNE[..], &more].concat(), 7)
    })?;
    assert!(
        said.words.contains("no valid round") && said.words.contains("--goal requests"),
        "{}",
        said.words
    );
    operator.is_again(&before)?;
    Ok(())
}

fn listed() -> Result<(), Failed> {
    let operator = Operator::new("tuned-listed", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let tune = ["-o", "json", "tune", "memcached", "--goal", "cpu"];
    let said = operator.runs(&[&tune[..], &["--dry-run", "--candidate", "interrupt"]].concat(), 0)?;
    let report: Value = serde_json::from_str(&said.data)?;
    let offers = report["data"]["offers"].as_array().ok_or("offers")?;
    let of = |name: &str| offers.iter().find(|offer| offer["candidate"] == name).unwrap_or(&Value::Null);
    assert_eq!(
        of("interrupt")["out"]["candidate"],
        "current",
        "the kernel's own settings are in force: {report}"
    );
    assert!(of("defer50")["changes"].as_array().is_some_and(|changes| !changes.is_empty()), "{report}");
    let twice = offers.iter().filter(|offer| offer["out"]["why"] == "same").count();
    assert!(twice >= 2, "a policy and its mode are one candidate: {report}");
    let said = operator.runs(&[&tune[..], &["--seconds", "60"]].concat(), 7)?;
    assert!(said.words.contains("too short for"), "{}", said.words);
    let only = ["--only", "--candidate", "interrupt"];
    let said = operator.runs(&[&tune[..], &only].concat(), 7)?;
    assert!(said.words.contains("no candidate can be tried"), "{}", said.words);
    Ok(())
}

fn killed() -> Result<(), Failed> {
    let operator = Operator::new("tuned-killed", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    while_asked(&operator, || {
        let before = operator.devices()?.devices;
        let more = ["--candidate", "defer200", "--candidate", "defer50"];
        let mut command = operator.netpolicy(&[&TUNE[..], &more].concat());
        let mut tune = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        caught("a candidate in force", || Ok((flushes(&operator.devices()?) != [0]).then_some(())))?;
        std::thread::sleep(Duration::from_millis(171));
        tune.kill()?; // SIGKILL
        tune.wait()?;
        waited_for("the host as it was", || Ok((operator.devices()?.devices == before).then_some(())))
    })
}
