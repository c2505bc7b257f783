//! Tests `compare`: settings alternate on memcached under load, in a lab.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use serde_json::Value;
use testkit::operator::{Operator, Started, at_work, caught, delivered_by, flushes, flushes_of, waited_for};
use testkit::scratch::Scratch;
use testkit::{Need, repeated, test};

use crate::requests::{ask_ahead, beside, while_asked, while_asked_every};

/// A candidate setting that makes packets wait for two milliseconds.
const WORSE: &str = "defer50,gro_flush_timeout=2ms";

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached];
    vec![
        test("compared/a_worse_setting_is_found_worse_and_the_host_is_as_it_was", NEEDS, repeated(worse)),
        test(
            "compared/loss_while_a_candidate_is_in_force_is_not_blamed_on_it",
            &[Need::Root, Need::Bpf, Need::Memcached, Need::Program("iptables"), Need::Program("ethtool")],
            repeated(lossy),
        ),
        test("compared/what_a_quiet_machine_recorded_is_found_worse_again", &[], again),
        test("compared/the_same_twice_has_no_winner", NEEDS, repeated(same)),
        test("compared/the_winner_is_kept_with_its_verdict", NEEDS, kept),
        test("compared/one_that_is_killed_at_any_moment_leaves_the_host_as_it_was", NEEDS, repeated(killed)),
        test("compared/after_many_switchbacks_every_queue_is_as_it_was", NEEDS, switchbacks),
        test("compared/one_that_is_interrupted_reports_what_it_has", NEEDS, interrupted),
        test("compared/a_restart_voids_its_round_and_the_comparison_goes_on", NEEDS, disturbed),
        test("compared/another_transaction_voids_its_round", NEEDS, repeated(another_transaction)),
        test("compared/what_disturbs_traffic_is_made_once_and_taken_back", NEEDS, once),
        test("compared/what_disturbs_traffic_and_wins_is_kept_in_all_its_transactions", NEEDS, once_kept),
        test("compared/the_wire_says_the_same_of_a_change_that_hurts", NEEDS, repeated(on_the_wire)),
        test("compared/clients_that_wait_for_answers_are_named_before_the_time_is_up", NEEDS, closed_loop),
        test("compared/what_cannot_be_compared_is_refused_with_what_to_do", NEEDS, refused),
    ]
}

fn of_metric<'a>(report: &'a Value, metric: &str) -> &'a Value {
    let changes = report["data"]["comparisons"][0]["changes"].as_array().into_iter().flatten();
    changes.into_iter().find(|change| change["metric"] == metric).unwrap_or(&Value::Null)
}

fn worse() -> Result<(), Failed> {
    let operator = Operator::new("compared-worse", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let record = operator.file("compare.jsonl", b"")?;
    let page = operator.file("compare.html", b"")?;
    let before = operator.host()?;
    let said = while_asked(&operator, || {
        operator.runs(
            &[
                "-o",
                "jsonl",
                "compare",
                "--port",
                "11211",
                "--b",
                WORSE,
                "--seconds",
                "90",
                "--record",
                &record,
            ],
            0,
        )
    })?;
    operator.is_again(&before)?;
    let documents: Vec<Value> = said.data.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let report = documents.last().ok_or("no report")?;
    let again = operator.runs(&["-o", "json", "bench", "report", &record, "--report", &page], 0)?;
    let again: Value = serde_json::from_str(&again.data)?;
    assert_eq!(of_metric(&again, "p50"), of_metric(report, "p50"), "the record contains the same result");
    let drawn = std::fs::read_to_string(&page)?;
    if is_undecided(report)? {
        return Ok(());
    }
    assert_eq!(report["data"]["comparisons"][0]["verdict"], "worse", "{report}");
    assert!(drawn.contains("p50 of defer50") && drawn.contains("<polygon"), "{drawn}");
    if std::env::var_os("RECORD").is_some() {
        std::fs::copy(&record, RECORDED)?;
    }
    assert_eq!(report["data"]["winner"], "current", "{report}");
    let history: Value = serde_json::from_str(&operator.runs(&["-o", "json", "history"], 0)?.data)?;
    let newest = &history["data"]["transactions"][0];
    let verdict = &newest["verdicts"][0];
    let known = (&verdict["ruling"], &verdict["with"]);
    assert_eq!(
        known,
        (&"worse".into(), &"current".into()),
        "the restored transaction has its verdict: {history}"
    );
    let p50 = of_metric(report, "p50");
    assert!(p50["change"]["low"].as_f64().is_some_and(|low| low > 1.0), "{p50}");
    assert!(of_metric(report, "engaged")["after"].as_f64().is_some_and(|share| share > 0.9), "{report}");
    let rounds = documents.iter().filter(|document| document["kind"] == "compare-round").count();
    assert!(rounds >= 7, "{rounds} rounds");
    Ok(())
}

/// Drops two per cent of the TCP segments with requests while a setting that affects only UDP is in force.
fn lossy() -> Result<(), Failed> {
    const DROP: &str = "INPUT -p tcp --dport 11211 -m statistic --mode random --probability 0.02 -j DROP";
    const LOOK_EVERY: Duration = Duration::from_millis(5);
    let operator = Operator::new("compared-loss", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let file = b"[device.veth-server]\npolicy = \"none\"\nsettings = { rx-udp-gro-forwarding = true }\n";
    let file = operator.file("udp.toml", file)?;
    let loses_with_it = |stop: &AtomicBool| -> Result<(), Failed> {
        let mut lossy = false;
        while !stop.load(Ordering::Relaxed) {
            let is_on = operator.inside("ethtool -k veth-server")?.contains("rx-udp-gro-forwarding: on");
            if is_on != lossy {
                operator.inside(&format!("iptables -w -{} {DROP}", if is_on { "A" } else { "D" }))?;
                lossy = is_on;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    };
    let compare = ["-o", "json", "compare", "--port", "11211", "--b", &file, "--seconds", "25"];
    let said = beside(
        |stop| ask_ahead(&operator.lab, stop),
        || beside(loses_with_it, || operator.runs(&compare, 0)),
    )?;
    let report: Value = serde_json::from_str(&said.data)?;
    let data = &report["data"];
    assert_eq!(data["comparisons"][0]["verdict"], "cannot-tell", "{report}");
    let void = data["void"].as_array().into_iter().flatten();
    let lost: Option<u64> =
        void.filter(|void| void["reason"] == "loss").find_map(|void| void["rounds"].as_u64());
    assert!(lost.is_some_and(|rounds| rounds >= 3), "{report}");
    let gaps = |candidate: usize| data["network"][candidate]["out_of_order"].as_u64().unwrap_or(0);
    assert!(gaps(1) > 10 * gaps(0) + 50, "{report}");
    let rules = data["findings"].as_array().into_iter().flatten().map(|found| &found["rule"]);
    assert!(rules.into_iter().any(|rule| rule == "live-loss-differs"), "{report}");
    Ok(())
}

/// The windows recorded on a quiet machine. With `RECORD=1`, the previous test writes this file.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/root/recorded/compare-worse.jsonl");

fn again() -> Result<(), Failed> {
    let scratch = Scratch::new("compared-again")?;
    let page = scratch.path("compare.html");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_netpolicy"));
    let output = command.args(["-o", "json", "bench", "report", RECORDED, "--report"]).arg(&page).output()?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let comparison = &report["data"]["comparisons"][0];
    assert_eq!(
        (&comparison["verdict"], &report["data"]["winner"]),
        (&"worse".into(), &"current".into()),
        "{report}"
    );
    let p50 = of_metric(&report, "p50");
    assert!(p50["change"]["low"].as_f64().is_some_and(|low| low > 1.0), "{p50}");
    assert!(std::fs::read_to_string(&page)?.contains("<polygon"));
    Ok(())
}

/// Returns whether there is no verdict on the candidate; if so, checks that no setting was kept. Other load
/// may leave too few valid windows.
fn is_undecided(report: &Value) -> Result<bool, Failed> {
    let data = &report["data"];
    if data["comparisons"][0]["verdict"] != "cannot-tell" {
        return Ok(false);
    }
    assert_eq!(data["kept"], Value::Null, "{report}");
    assert!(windows(report) > 0, "{report}");
    Ok(true)
}

/// Returns the number of windows of a comparison, including void ones.
fn windows(report: &Value) -> u64 {
    let void = report["data"]["void"].as_array().into_iter().flatten();
    let void: u64 = void.filter_map(|void| void["rounds"].as_u64()).sum();
    report["data"]["rounds"].as_u64().unwrap_or(0) + void
}

fn same() -> Result<(), Failed> {
    let operator = Operator::new("compared-same", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let said = while_asked(&operator, || {
        let compare =
            ["-o", "json", "compare", "memcached", "--b", "current", "--seconds", "25", "--keep-winner"];
        operator.runs(&compare, 0)
    })?;
    assert!(said.words.contains("result in the same settings on this host"), "{}", said.words);
    let report: Value = serde_json::from_str(&said.data)?;
    let verdict = report["data"]["comparisons"][0]["verdict"].as_str();
    assert!(matches!(verdict, Some("cannot-tell" | "no-difference")), "{report}");
    assert_eq!(report["data"]["kept"], Value::Null);
    assert!(windows(&report) > 0, "{report}");
    Ok(())
}

fn kept() -> Result<(), Failed> {
    let operator = Operator::new("compared-kept", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.host()?;
    let compare = [
        "-o",
        "json",
        "compare",
        "memcached",
        "--a",
        WORSE,
        "--b",
        "defer20",
        "--seconds",
        "90",
        "--keep-winner",
    ];
    let said = while_asked(&operator, || operator.runs(&compare, 0))?;
    let report: Value = serde_json::from_str(&said.data)?;
    if is_undecided(&report)? {
        return operator.is_again(&before);
    }
    let name = report["data"]["kept"].as_str().ok_or_else(|| format!("nothing was kept: {report}"))?;
    assert_eq!(flushes(&operator.devices()?), [20_000], "defer20 is in force");
    let history = operator.runs(&["-o", "json", "history"], 0)?;
    let history: Value = serde_json::from_str(&history.data)?;
    let verdict = &history["data"]["transactions"][0]["verdicts"][0];
    let known = (&verdict["ruling"], &verdict["by"], &verdict["with"]);
    assert_eq!(known, (&"better".into(), &"switchback".into(), &WORSE.into()), "{history}");
    let p50 = &verdict["changes"][0];
    assert!(p50["metric"] == "p50" && p50["high"].as_f64().is_some_and(|high| high < 0.0), "{verdict}");
    for command in ["history", "explain"] {
        let said = operator.runs(&[command], 0)?;
        assert!(said.data.contains("better: p50 ") && said.data.contains(" pairs, "), "{}", said.data);
    }
    let said = operator.runs(&["rollback", name], 0)?;
    assert!(
        said.words.contains("According to its verdict on memcached, the rollback changes: p50 "),
        "{}",
        said.words
    );
    operator.is_again(&before)?;
    Ok(())
}

/// Kills comparisons at moments spread over switches and windows.
fn killed() -> Result<(), Failed> {
    const KILLS: u64 = 8;
    let operator = Operator::new("compared-killed", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    while_asked(&operator, || {
        let before = operator.devices()?.devices;
        for kill in 0..KILLS {
            let begin = || -> Result<Started, Failed> {
                let mut command =
                    operator.netpolicy(&["compare", "memcached", "--a", WORSE, "--b", "defer20"]);
                let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
                Ok(Started { child })
            };
            let mut compare = begin()?;
            caught("a candidate in force", || {
                // netpolicy refuses a comparison while the guard process of the previous one is still
                // restoring the host.
                if let Some(ended) = compare.child.try_wait()? {
                    assert_eq!(ended.code(), Some(7), "another comparison is in progress");
                    compare = begin()?;
                }
                Ok((flushes(&operator.devices()?) != [0]).then_some(()))
            })?;
            std::thread::sleep(Duration::from_millis(kill * 171));
            compare.child.kill()?; // SIGKILL
            compare.child.wait()?;
            waited_for("the former state of the host", || {
                Ok((operator.devices()?.devices == before).then_some(()))
            })?;
        }
        Ok(())
    })?;
    let live = operator.runs(&["-o", "json", "history"], 0)?;
    let live: Value = serde_json::from_str(&live.data)?;
    let transactions = live["data"]["transactions"].as_array().cloned().unwrap_or_default();
    assert!(transactions.iter().all(|one| one["in_force"] == 0), "{live}");
    Ok(())
}

fn switchbacks() -> Result<(), Failed> {
    const QUEUES: u32 = 8;
    const SWITCHBACKS: usize = 20;
    let operator = Operator::new("compared-switchbacks", QUEUES)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let file = operator.file("mode.toml", b"[device.veth-server]\ndelivery = \"defer50\"\n")?;
    let session = session::Session {
        netns: Some(format!("pid:{}", operator.lab.server_pid())),
        state_dir: operator.state(),
        ..session::Session::default()
    };
    let failed = |fault: session::Fault| fault.cause.to_string();
    let target = latency::live::MeasuredService::of(
        &latency::live::ServiceSelection::Port(11_211),
        &session,
        &session::Silent,
    )
    .map_err(failed)?;
    let candidates = [latency::judge::Candidate::current(), file.parse()?];
    let journal = session.journal().map_err(failed)?;
    let journal = journal.owned_by_session(apply::AtExit::RollBack)?;
    let before = operator.host()?;
    let turn = Duration::from_secs(60);
    let mut alternation =
        latency::judge::Alternation::plan(&candidates, &target, &session, &session::Silent, &journal, turn)
            .map_err(failed)?;
    for _ in 0..SWITCHBACKS {
        alternation.switch_to(1).map_err(failed)?;
        assert_eq!(flushes_of_server(&operator)?, [50_000; QUEUES as usize]);
        alternation.switch_to(0).map_err(failed)?;
        assert_eq!(operator.devices()?.devices, before.devices);
    }
    drop(alternation);
    operator.is_again(&before)?;
    Ok(())
}

fn interrupted() -> Result<(), Failed> {
    let operator = Operator::new("compared-interrupted", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.host()?;
    while_asked(&operator, || {
        let compare = operator.starts(&["compare", "memcached", "--a", WORSE, "--b", "defer20"])?;
        caught("a candidate in force", || Ok((flushes(&operator.devices()?) != [0]).then_some(())))?;
        assert_eq!(compare.terminated()?, Some(0));
        Ok(())
    })?;
    operator.is_again(&before)?;
    let said = operator.said()?;
    assert!(said.contains("interrupted") && said.contains("The host was restored."), "{said}");
    Ok(())
}

fn disturbed() -> Result<(), Failed> {
    let operator = Operator::new("compared-disturbed", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.devices()?.devices;
    let report = while_asked(&operator, || {
        let mut command = operator.netpolicy(&[
            "-o",
            "json",
            "compare",
            "--port",
            "11211",
            "--b",
            "defer200",
            "--seconds",
            "30",
        ]);
        let compare = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        std::thread::sleep(Duration::from_secs(4));
        drop(server);
        std::thread::sleep(Duration::from_millis(500));
        let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
        let output = compare.wait_with_output()?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{words}");
        Ok(serde_json::from_slice::<Value>(&output.stdout)?)
    })?;
    let void = report["data"]["void"].as_array().cloned().unwrap_or_default();
    assert!(void.iter().any(|void| void["reason"] == "restart"), "{report}");
    assert!(windows(&report) > 1, "it went on: {report}");
    assert_eq!(operator.devices()?.devices, before);
    Ok(())
}

fn another_transaction() -> Result<(), Failed> {
    let operator = Operator::new("compared-transaction", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.inside("ip link add other0 type veth peer name other1")?;
    let before = operator.devices()?.devices;
    let compare = ["-o", "json", "compare", "--port", "11211", "--b", "defer200", "--seconds", "20"];
    let report = while_asked(&operator, || {
        let mut command = operator.netpolicy(&compare);
        let compare = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        caught("a candidate in force", || Ok((flushes_of_server(&operator)? != [0]).then_some(())))?;
        // Set a device that no candidate changes.
        let set = ["set", "device", "other0", "none", "--setting", "rx-udp-gro-forwarding=true"];
        operator.runs(&set, 0)?;
        let output = compare.wait_with_output()?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{words}");
        Ok(serde_json::from_slice::<Value>(&output.stdout)?)
    })?;
    let void = report["data"]["void"].as_array().cloned().unwrap_or_default();
    assert!(void.iter().any(|void| void["reason"] == "transaction"), "{report}");
    assert_ne!(operator.devices()?.devices, before, "the change of the other process is in force");
    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.devices()?.devices, before);
    Ok(())
}

fn flushes_of_server(operator: &Operator) -> Result<Vec<u64>, Failed> {
    let host = operator.devices()?;
    Ok(flushes_of(&host, host.device_named(linux::lab::SERVER_DEVICE)))
}

fn once() -> Result<(), Failed> {
    let operator = Operator::new("compared-once", 2)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = delivered_by(&operator)?;
    let record = operator.file("once.jsonl", b"")?;
    let one = ["--b", "qdisc=pfifo", "--disruptive"];
    let refused = |more: &[&str], words: &str| -> Result<(), Failed> {
        let said = operator.runs(&[&["compare", "memcached"], more].concat(), 7)?;
        assert!(said.words.contains(words), "{more:?}: {}", said.words);
        Ok(())
    };
    refused(&["--b", "qdisc=pfifo"], "--disruptive")?;
    refused(&[&one[..], &["--b", "defer50"]].concat(), "compared at a time")?;
    refused(&[&one[..], &["--a", "defer50"]].concat(), "the current host")?;
    refused(&[&one[..], &["--seconds", "20"]].concat(), "too short")?;
    let said = while_asked(&operator, || {
        let more = ["--seconds", "40", "--record", &record];
        operator.runs(&[&["-o", "json", "compare", "memcached"], &one[..], &more[..]].concat(), 0)
    })?;
    assert!(said.words.contains("Without alternation"), "{}", said.words);
    let report: Value = serde_json::from_str(&said.data)?;
    assert_eq!(
        (&report["data"]["by"], &report["data"]["kept"]),
        (&"before-after".into(), &Value::Null),
        "{report}"
    );
    assert!(windows(&report) >= 6, "{report}");
    assert_eq!(report["data"]["switching"]["switches"], 2, "there, and back: {report}");
    assert_eq!(delivered_by(&operator)?, before);
    let again = operator.runs(&["-o", "json", "bench", "report", &record], 0)?;
    let again: Value = serde_json::from_str(&again.data)?;
    assert_eq!(
        again["data"]["comparisons"], report["data"]["comparisons"],
        "the record contains the same result"
    );
    Ok(())
}

fn once_kept() -> Result<(), Failed> {
    let operator = Operator::new("compared-once-kept", 2)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.asks("[device.veth-server]\ndelivery = \"defer50\"\ngro_flush_timeout = \"2ms\"\n")?;
    operator.runs(&["apply"], 0)?;
    let before = delivered_by(&operator)?;
    let better = operator.file(
        "better.toml",
        b"[device.veth-server]\ndelivery = \"defer20\"\nsettings = { tx-channels = 1 }\n",
    )?;
    let compare =
        ["compare", "memcached", "--b", &better, "--disruptive", "--seconds", "45", "--keep-winner"];
    let said = while_asked(&operator, || operator.runs(&[&["-o", "json"], &compare[..]].concat(), 0))?;
    let report: Value = serde_json::from_str(&said.data)?;
    if is_undecided(&report)? {
        assert_eq!(delivered_by(&operator)?, before);
        return Ok(());
    }
    let kept = report["data"]["kept"].as_str().ok_or_else(|| format!("nothing was kept: {report}"))?;
    assert!(said.words.contains(&format!("rollback {kept}`")), "{}", said.words);
    assert_eq!(flushes(&operator.devices()?), [20_000; 2], "the order of the file");
    let commands = said.words.split('`').filter(|word| word.contains(" rollback "));
    let undo: Vec<&str> = commands.filter_map(|command| command.rsplit(' ').next()).collect();
    let history: Value = serde_json::from_str(&operator.runs(&["-o", "json", "history"], 0)?.data)?;
    let transactions = history["data"]["transactions"].as_array().cloned().unwrap_or_default();
    for name in &undo {
        let verdict =
            transactions.iter().find(|one| one["id"] == *name).map(|one| one["verdicts"][0].clone());
        let known = verdict.map(|verdict| (verdict["ruling"].clone(), verdict["by"].clone()));
        assert_eq!(known, Some(("better".into(), "before-after".into())), "{history}");
    }
    for name in undo {
        operator.runs(&["rollback", name], 0)?;
    }
    assert_eq!(delivered_by(&operator)?, before);
    Ok(())
}

fn on_the_wire() -> Result<(), Failed> {
    let operator = Operator::new("compared-wire", 1)?;
    let bench =
        ["bench", "judge", "--scenario", "same-short,much-slower", "--seconds", "40", "--trials", "100"];
    let judged = || -> Result<Value, Failed> {
        Ok(serde_json::from_str(&operator.runs(&[&["-o", "json"], &bench[..]].concat(), 0)?.data)?)
    };
    let report = judged()?;
    let [same, slower] = [0, 1].map(|at| &report["data"]["scenarios"][at]);
    // On a busy machine, there may be too few pairs for a verdict, which is not an error.
    for said in [&slower["said"]["verdict"], &slower["truth"]["verdict"]] {
        assert!(said == "worse" || said == "cannot-tell", "{report}");
    }
    assert_ne!(same["said"]["verdict"], "mixed", "{report}");
    // Under load, windows are short. With the longest windows, of a second each, a pair would take longer
    // than this limit.
    let pair_seconds = report["data"]["replayed"][0]["pair_seconds"].as_f64();
    assert!(
        slower["said"]["verdict"] == "cannot-tell" || pair_seconds.is_some_and(|seconds| seconds < 2.0),
        "{report}"
    );
    let regressions = report["data"]["replayed"].as_array().map_or(0, Vec::len);
    assert_eq!((regressions, &report["data"]["replayed"][0]["trials"]), (4, &100.into()), "{report}");
    Ok(())
}

/// Each connection sends a request a millisecond after its previous request, or as soon as that is answered
/// if the answer takes longer: a wait of two milliseconds in the ring halves the request rate.
fn closed_loop() -> Result<(), Failed> {
    let operator = Operator::new("compared-closed-loop", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    while_asked_every(&operator, Duration::from_millis(1), || {
        let compare = operator.starts(&["compare", "memcached", "--b", WORSE])?;
        // A verdict needs six valid rounds, each with two windows of a second or more.
        let heard = operator.waits_to_hear("--metric requests");
        let code = compare.terminated()?;
        match heard {
            Ok(()) => assert_eq!(code, Some(0), "{}", operator.said()?),
            // On a busy machine, the rounds may be void.
            Err(failed) if !operator.said()?.contains("void") => return Err(failed),
            Err(_) => {}
        }
        Ok(())
    })
}

fn refused() -> Result<(), Failed> {
    let operator = Operator::new("compared-refused", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let said = operator.runs(&["compare", "memcached", "--b", "latancy"], 2)?;
    assert!(said.words.contains("did you mean `latency`?"), "{}", said.words);
    operator.runs(&["compare", "memcached"], 2)?;
    operator.runs(&["compare", "memcached", "--b", "defer50", "--window", "500ms"], 2)?;
    let said = operator.runs(&["compare", "memcached", "--b", "gro_flush_timeout=50us"], 2)?;
    assert!(said.words.contains("belongs to a delivery mode"), "{}", said.words);
    let said = operator.runs(&["compare", "memcached", "--b", "defer50", "--b", "defer50"], 2)?;
    assert!(said.words.contains("given twice"), "{}", said.words);
    let record = operator.file("full.jsonl", b"{}\n")?;
    let said = operator.runs(&["compare", "memcached", "--b", "defer50", "--record", &record], 1)?;
    assert!(said.words.contains("the file is not empty"), "{}", said.words);
    let silent =
        operator.runs(&["-o", "json", "compare", "memcached", "--b", "defer50", "--seconds", "6"], 0)?;
    assert!(silent.words.contains("6 s are too short for a verdict"), "{}", silent.words);
    let silent: Value = serde_json::from_str(&silent.data)?;
    let reason = &silent["data"]["void"][0]["reason"];
    assert!(reason == "requests" || reason == "machine", "{silent}");
    let silent = operator.runs(&["-o", "json", "compare", "memcached", "--b", "defer50"], 7)?;
    assert!(silent.words.contains("too few requests for a comparison"), "{}", silent.words);
    let silent: Value = serde_json::from_str(&silent.data)?;
    assert_eq!(silent["data"]["ended"], "too few requests", "{silent}");
    let first = operator.starts(&["compare", "memcached", "--b", "defer50", "--window", "10s"])?;
    operator.waits_to_hear("press Ctrl-C to stop")?;
    let said = operator.runs(&["compare", "memcached", "--b", "defer20"], 7)?;
    assert!(said.words.contains("already") && said.words.contains("kill "), "{}", said.words);
    // The lock is independent of the journal: with two journals, each process would otherwise record and
    // restore the other's candidate.
    let said = operator.runs_elsewhere(&["compare", "memcached", "--b", "defer20"], 7)?;
    let kills = format!("kill {}", first.child.id());
    assert!(said.words.contains("already") && said.words.contains(&kills), "{}", said.words);
    assert_eq!(first.terminated()?, Some(0));
    let daemon = at_work(&operator, "[device.veth-server]\ndelivery = \"defer20\"\n")?;
    let its = format!("process {}, manages this network namespace", daemon.child.id());
    let compare = ["compare", "memcached", "--b", "defer50"];
    for said in [operator.runs(&compare, 7)?, operator.runs_elsewhere(&compare, 7)?] {
        assert!(said.words.contains(&its) && said.words.contains("stop it meanwhile"), "{}", said.words);
    }
    Ok(())
}
