//! Tests `tune`, which finds the best setting for a server on the server's own traffic.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use model::{EmptyPolls, Nanoseconds, NapiKnob, Setting};
use rustix::fs::{FlockOperation, flock};
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
        test(
            "tuned/one_that_is_killed_leaves_the_host_as_it_was_and_resumes_with_its_windows",
            NEEDS,
            killed,
        ),
        test("tuned/one_lock_is_held_for_all_stages_of_a_search", NEEDS, repeated(locked)),
        test("tuned/what_an_earlier_search_found_orders_the_next", NEEDS, repeated(ordered)),
    ]
}

/// Makes packets wait for a timer of two milliseconds, as an earlier experiment might have left the host.
pub(crate) fn badly_set(operator: &Operator) -> Result<(), Failed> {
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
    // The winner's shorter timer costs CPU time, which the default guard might not allow.
    let keep = ["--guard", "p99=+50%", "--seconds", "150", "--write", &file, "--keep-winner"];
    let said = while_asked(&operator, || operator.runs(&[&TUNE[..], &more, &keep].concat(), 0))?;
    let report: Value = serde_json::from_str(&said.data)?;
    let data = &report["data"];
    let winner = data["winner"]["candidate"].as_str().ok_or_else(|| format!("no winner: {report}"))?;
    assert!(["defer20", "defer50"].contains(&winner), "{report}");
    let stages: Vec<&Value> =
        data["stages"].as_array().into_iter().flatten().map(|stage| &stage["stage"]).collect();
    assert!(
        stages.iter().any(|stage| **stage == "first-look")
            && stages.last().is_some_and(|last| **last == "proof"),
        "{report}"
    );
    let tried =
        data["stages"].as_array().into_iter().flatten().flat_map(|stage| stage["candidates"].as_array());
    let worst = tried.flatten().find(|tried| tried["candidate"] == "defer:4ms" && !tried["out"].is_null());
    worst.ok_or_else(|| format!("it was dropped: {report}"))?;
    let text = std::fs::read_to_string(&file)?;
    assert!(text.starts_with("# Found by `netpolicy tune`, ") && text.contains(winner), "{text}");
    // The settings that the written file requests are already in force.
    let planned = operator.runs(&["-o", "json", "plan", "--policy-file", &file], 0)?;
    let planned: Value = serde_json::from_str(&planned.data)?;
    assert_eq!(planned["data"]["changes"], Value::Array(Vec::new()), "{planned}");
    let kept = data["kept"].as_str().ok_or("the winner stays in force")?;
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

/// Tests clients whose request rate depends on the candidate in force, so that no round is valid.
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

/// Returns the lines of an unfinished search's record. The first line is the setup.
fn recorded(operator: &Operator) -> Result<Vec<String>, Failed> {
    // The directory may not exist yet: the first transaction creates it.
    for entry in std::fs::read_dir(operator.state()).into_iter().flatten() {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("tuning-") && name.ends_with(".jsonl") {
            return Ok(std::fs::read_to_string(path)?.lines().map(str::to_owned).collect());
        }
    }
    Ok(Vec::new())
}

/// Returns the number of windows in the lines of a record.
fn windows(lines: &[String]) -> Result<usize, Failed> {
    let windows = |line: &String| -> Result<usize, Failed> {
        let round: Value = serde_json::from_str(line)?;
        Ok(round["figures"].as_array().map_or(0, Vec::len))
    };
    lines.iter().skip(1).map(windows).sum()
}

fn killed() -> Result<(), Failed> {
    let operator = Operator::new("tuned-killed", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    badly_set(&operator)?;
    let more = ["--candidate", "defer20", "--candidate", "defer50", "--candidate", "defer200"];
    let more = [&TUNE[..], &more, &["--guard", "p99=+900%,cpu=+900%"]].concat();
    let before = while_asked(&operator, || {
        let before = operator.devices()?.devices;
        let mut tune = operator.netpolicy(&more).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        waited_for("five rounds", || Ok((recorded(&operator)?.len() > 5).then_some(())))?;
        caught("a candidate in force", || Ok((flushes(&operator.devices()?) != [2_000_000]).then_some(())))?;
        tune.kill()?; // SIGKILL
        tune.wait()?;
        waited_for("the host as it was", || Ok((operator.devices()?.devices == before).then_some(())))?;
        Ok(before)
    })?;
    let lines = recorded(&operator)?;
    let complete: Vec<String> = lines.iter().filter(|line| line.ends_with('}')).cloned().collect();
    let measured = windows(&complete)?;
    assert!(measured >= 15, "{measured} windows");
    // No requests arrive now, so the load differs from the recorded one.
    let said = operator.runs(&[&more[..], &["--resume"]].concat(), 7)?;
    assert!(said.words.contains("cannot resume: the request rate was"), "{}", said.words);
    let others = [&more[..], &["--margin", "6", "--resume"]].concat();
    let said = operator.runs(&others, 7)?;
    assert!(said.words.contains("--margin or --seconds differs"), "{}", said.words);
    while_asked(&operator, || {
        let said = operator.runs(&[&more[..], &["--resume"]].concat(), 0)?;
        let report: Value = serde_json::from_str(&said.data)?;
        let data = &report["data"];
        assert_eq!(data["resumed"], measured, "all rounds count: {report}");
        assert!(data["windows"].as_u64() >= data["resumed"].as_u64(), "{report}");
        assert!(said.words.contains(&format!("resumes after {measured} windows")), "{}", said.words);
        assert!(recorded(&operator)?.is_empty(), "it has ended");
        assert_eq!(operator.devices()?.devices, before);
        let said = operator.runs(&[&more[..], &["--resume"]].concat(), 7)?;
        assert!(said.words.contains("there is no unfinished search"), "{}", said.words);
        Ok(())
    })
}

/// Tests that a search keeps its lock between its stages.
fn locked() -> Result<(), Failed> {
    let operator = Operator::new("tuned-locked", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    badly_set(&operator)?;
    std::fs::create_dir_all(operator.state())?;
    let path = operator.state().join(format!("comparing-{}", operator.lab.server().id().0));
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
    let is_free = || {
        let taken = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        flock(&file, FlockOperation::Unlock).map(|()| taken)
    };
    while_asked(&operator, || {
        // Without `--only`, variants of the best candidate, if it has any, and the proof follow in a second
        // comparison.
        let tune = ["tune", "--port", "11211", "--goal", "p50", "--guard", "p99=+900%,cpu=+900%"];
        let tune = operator.starts(&[&tune[..], &["--seconds", "140"]].concat())?;
        // `is_free` takes the lock, so call it only after `tune` holds the lock and has written its pid.
        let pid = tune.child.id().to_string();
        waited_for("the lock", || Ok((std::fs::read_to_string(&path)?.trim() == pid).then_some(())))?;
        let said = operator.runs(&["compare", "memcached", "--b", "defer20"], 7)?;
        let kills = format!("kill {}", tune.child.id());
        assert!(said.words.contains("already") && said.words.contains(&kills), "{}", said.words);
        let until = Instant::now() + Duration::from_secs(150);
        let is_of_second = |line: &String| line.contains("\"neighbourhood\"") || line.contains("\"proof\"");
        while !recorded(&operator)?.iter().any(is_of_second) {
            for _ in 0..100 {
                if is_free()? {
                    return Err(format!("the lock is free: {}", operator.said()?).into());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(Instant::now() < until, "there was no second comparison: {}", operator.said()?);
        }
        assert_eq!(tune.terminated()?, Some(0));
        Ok(())
    })
}

fn ordered() -> Result<(), Failed> {
    let operator = Operator::new("tuned-ordered", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    badly_set(&operator)?;
    let more =
        ["--candidate", "defer:9ms", "--candidate", "defer20", "--seconds", "150", "--guard", "p99=+900%"];
    let more = [&TUNE[..], &more].concat();
    // `tune` tries a candidate given by `--candidate` even if it lost in an earlier search, so give none in
    // the next search.
    let next =
        ["-o", "json", "tune", "--port", "11211", "--goal", "p50", "--guard", "p99=+900%", "--dry-run"];
    while_asked(&operator, || {
        let said = operator.runs(&more, 0)?;
        let first: Value = serde_json::from_str(&said.data)?;
        assert_eq!(first["data"]["winner"]["candidate"], "defer20", "{first}");
        let offers = |arguments: &[&str]| -> Result<Vec<Value>, Failed> {
            let report: Value = serde_json::from_str(&operator.runs(arguments, 0)?.data)?;
            Ok(report["data"]["offers"].as_array().ok_or("offers")?.clone())
        };
        let ordered = offers(&next)?;
        assert_eq!(ordered[0]["candidate"], "defer20", "the winner comes first: {ordered:?}");
        assert!(ordered[0]["earlier"].as_str().is_some_and(|words| words.contains("the winner in a search")));
        let named = offers(&[&more[..], &["--dry-run"]].concat())?;
        let last = named.last().ok_or("an offer")?;
        assert_eq!(
            (&last["candidate"], &last["out"]),
            (&Value::from("defer:9ms"), &Value::Null),
            "{named:?}"
        );
        assert!(last["earlier"].as_str().is_some_and(|words| words.contains("worse")), "{last}");
        let afresh = offers(&[&next[..], &["--afresh"]].concat())?;
        assert!(afresh.iter().all(|offer| offer["earlier"].is_null()), "{afresh:?}");
        Ok(())
    })
}
