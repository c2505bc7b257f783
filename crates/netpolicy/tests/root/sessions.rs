//! Tests sessions of the daemon's API, on memcached under load in a lab.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use model::host::Device;
use serde_json::{Value, json};
use testkit::operator::{Operator, Started, at_work, caught, flushes, waited_for};
use testkit::{Need, repeated, test};

use crate::desk::Talk;
use crate::requests::while_asked;
use crate::tuned::badly_set;

/// Settings with one more poll after each batch, 10 us later: visible on the host, but not to clients.
const SLIGHT: &str = "defer50,defer_hard_irqs=1,gro_flush_timeout=10us";
const SLIGHT_POLICY: &str = "[service.memcached]\nmatch = { exe = \"memcached\" }\ndelivery = \"defer50\"\n\
                             defer_hard_irqs = 1\ngro_flush_timeout = \"10us\"\n";

/// Wide limits on every metric that can be measured at the clients' rate.
const WIDE: &str = "p50=+1000%,p90=+1000%,cpu=+1000%";

/// A policy that changes nothing on this host.
const NOTHING: &str = "[service.other]\nmatch = { port = 9 }\npolicy = \"none\"\n";

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached];
    vec![
        test("sessions/watch_streams_each_window_and_ends_with_the_summary", NEEDS, watched),
        test("sessions/compare_alternates_under_the_daemon_and_restores_the_host", NEEDS, compared),
        test("sessions/a_client_that_leaves_gets_its_host_back", NEEDS, left),
        test("sessions/a_daemon_that_is_killed_in_a_session_leaves_nothing", NEEDS, killed),
        test("sessions/a_daemon_that_is_killed_at_any_moment_of_a_search_leaves_nothing", NEEDS, searching),
        test("sessions/a_policy_is_tried_confirmed_and_rolled_back", NEEDS, tried),
        test("sessions/a_policy_is_judged_and_kept_with_its_verdict", NEEDS, judged),
        test("sessions/tune_streams_its_progress_and_keeps_the_winner", NEEDS, repeated(tuned)),
        test("sessions/a_cancelled_comparison_keeps_no_winner", NEEDS, repeated(cancelled)),
        test("sessions/a_dry_run_needs_no_session_next_to_the_daemon", NEEDS, dry),
        test("sessions/what_cannot_be_done_is_refused_with_the_exit_code_of_the_command", NEEDS, refused),
    ]
}

/// Runs `body` in a lab with memcached and a daemon that changes nothing.
fn begins<T>(name: &str, body: impl FnOnce(&Operator, Started) -> Result<T, Failed>) -> Result<T, Failed> {
    begins_with(name, |_| Ok(()), body)
}

/// Does the same as [`begins`], on a host that `prepare` has changed.
fn begins_with<T>(
    name: &str,
    prepare: impl FnOnce(&Operator) -> Result<(), Failed>,
    body: impl FnOnce(&Operator, Started) -> Result<T, Failed>,
) -> Result<T, Failed> {
    let operator = Operator::new(name, 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    prepare(&operator)?;
    let daemon = at_work(&operator, NOTHING)?;
    while_asked(&operator, || body(&operator, daemon))
}

fn talk(operator: &Operator) -> Talk {
    let talk = Talk::to(&operator.state().join("io.netpolicy"));
    talk.stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
    talk
}

/// Waits until all device settings are as before. Clients may be connected meanwhile.
fn is_again(operator: &Operator, before: &[Device]) -> Result<(), Failed> {
    waited_for("the host as it was", || Ok((operator.devices()?.devices == before).then_some(())))
}

/// Formats a method call. With `more`, the first reply contains the session's number.
fn call(method: &str, more: bool, parameters: &Value) -> String {
    json!({ "method": format!("io.netpolicy.{method}"), "more": more, "parameters": parameters }).to_string()
}

fn memcached(rest: Value) -> Value {
    let mut parameters = rest;
    parameters["service"] = json!({ "port": 11211 });
    parameters
}

/// Waits until the settings of a session are in force.
fn in_force(operator: &Operator) -> Result<(), Failed> {
    caught("the settings in force", || Ok((flushes(&operator.devices()?) == [10_000]).then_some(())))
}

fn watched() -> Result<(), Failed> {
    begins("sessions-watch", |operator, daemon| {
        let mut talk = talk(operator);
        talk.say(&call("Watch", true, &memcached(json!({ "seconds": 4 }))));
        let mut replies = Vec::new();
        while let Some(reply) = talk.receive() {
            let last = reply["continues"] != true;
            replies.push(reply);
            if last {
                break;
            }
        }
        let last = &replies.last().ok_or("no reply")?["parameters"];
        assert_eq!((&last["exit"], &last["transactions"]), (&json!(0), &json!([])), "{replies:?}");
        let records = replies.iter().flat_map(|reply| reply["parameters"]["records"].as_array());
        let kinds: Vec<&Value> = records.flatten().map(|record| &record["kind"]).collect();
        assert!(kinds.iter().filter(|kind| **kind == "watch-window").count() >= 3, "{kinds:?}");
        assert!(kinds.contains(&&json!("watch")), "{kinds:?}");
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })
}

fn compared() -> Result<(), Failed> {
    begins("sessions-compare", |operator, daemon| {
        let before = operator.devices()?.devices;
        let mut first = talk(operator);
        first.say(&call("Compare", true, &memcached(json!({ "candidates": [SLIGHT], "seconds": 12 }))));
        let number = first.receive().ok_or("no reply")?["parameters"]["session"].clone();
        in_force(operator)?;
        // Another session may measure, but not change settings; the daemon stores a `Set` request until it
        // may apply it.
        let tune = call("Tune", false, &memcached(json!({ "goal": "p50" })));
        let other = talk(operator).ask(&tune);
        assert_eq!(other["parameters"]["exit"], 7, "{other}");
        assert!(other["parameters"]["hint"].as_str().is_some_and(|hint| hint.contains("Cancel")), "{other}");
        let device = linux::lab::SERVER_DEVICE;
        let set = call("Set", false, &json!({ "target": { "device": device }, "request": "defer20" }));
        let set = talk(operator).ask(&set);
        assert_eq!(set["parameters"]["pending"], true, "{set}");
        let rollback = talk(operator).ask(&call("Rollback", false, &json!({})));
        assert_eq!(rollback["parameters"]["exit"], 7, "{rollback}");
        let unset = call("Unset", false, &json!({ "target": { "device": device } }));
        assert!(talk(operator).ask(&unset)["error"].is_null());
        let mut last = Value::Null;
        let mut rounds = 0;
        while let Some(reply) = first.receive() {
            let records = reply["parameters"]["records"].as_array().into_iter().flatten();
            rounds += records.filter(|record| record["kind"] == "compare-round").count();
            last = reply;
            if last["continues"] != true {
                break;
            }
        }
        assert_eq!((&last["parameters"]["exit"], &last["parameters"]["session"]), (&json!(0), &number));
        assert!(rounds >= 2, "{rounds} rounds");
        is_again(operator, &before)?;
        // After the session, the daemon changes settings again.
        let set = call("Set", false, &json!({ "target": { "device": device }, "request": "defer20" }));
        let set = talk(operator).ask(&set);
        assert_eq!(set["parameters"]["pending"], false, "{set}");
        assert!(talk(operator).ask(&unset)["error"].is_null());
        is_again(operator, &before)?;
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })
}

fn left() -> Result<(), Failed> {
    begins("sessions-left", |operator, daemon| {
        let before = operator.devices()?.devices;
        let calls = [
            ("Compare", memcached(json!({ "candidates": [SLIGHT], "seconds": 300 }))),
            (
                "Tune",
                memcached(json!({ "goal": "p50", "candidates": [SLIGHT], "only": true, "seconds": 300 })),
            ),
            ("Try", json!({ "policy": SLIGHT_POLICY, "guard": WIDE, "seconds": 300 })),
        ];
        for (method, parameters) in calls {
            let begun = waited_for("room for a session", || {
                let mut talk = talk(operator);
                talk.say(&call(method, true, &parameters));
                Ok(talk.receive().filter(|reply| reply["error"].is_null()).map(|_| talk))
            })?;
            in_force(operator)?;
            drop(begun);
            is_again(operator, &before).map_err(|failed| format!("{method}: {failed:?}"))?;
        }
        let history = operator.runs(&["-o", "json", "history"], 0)?.data;
        assert!(!history.contains("unfinished") && !history.contains("\"abandoned\": true"), "{history}");
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })
}

fn killed() -> Result<(), Failed> {
    begins("sessions-killed", |operator, mut daemon| {
        let before = operator.devices()?.devices;
        let mut talk = talk(operator);
        talk.say(&call("Compare", true, &memcached(json!({ "candidates": [SLIGHT], "seconds": 300 }))));
        in_force(operator)?;
        daemon.child.kill()?; // SIGKILL
        daemon.child.wait()?;
        is_again(operator, &before)?;
        let again = at_work(operator, NOTHING)?;
        is_again(operator, &before)?;
        assert_eq!(again.terminated()?, Some(0));
        Ok(())
    })
}

fn searching() -> Result<(), Failed> {
    begins("sessions-searching", |operator, daemon| {
        let before = operator.devices()?.devices;
        let candidates = [SLIGHT, "defer20", "defer50"];
        let parameters = memcached(json!({ "goal": "cpu", "candidates": candidates, "only": true }));
        let mut daemon = Some(daemon);
        // Kill the daemon before the first window, and while the settings of each candidate are in force.
        for setting in [None, Some(10_000), Some(20_000), Some(50_000)] {
            let mut killed = match daemon.take() {
                Some(first) => first,
                None => at_work(operator, NOTHING)?,
            };
            let mut talk = talk(operator);
            talk.say(&call("Tune", true, &parameters));
            talk.receive().ok_or("no reply")?;
            if let Some(nanoseconds) = setting {
                caught("a candidate in force", || {
                    Ok((flushes(&operator.devices()?) == [nanoseconds]).then_some(()))
                })?;
            }
            killed.child.kill()?; // SIGKILL
            killed.child.wait()?;
            is_again(operator, &before).map_err(|failed| format!("killed at {setting:?}: {failed:?}"))?;
            let history = operator.runs(&["-o", "json", "history"], 0)?.data;
            assert!(!history.contains("unfinished"), "killed at {setting:?}: {history}");
        }
        let again = at_work(operator, NOTHING)?;
        let reply = talk_resumed(operator, &parameters)?;
        assert!(reply["error"].is_null(), "{reply}");
        is_again(operator, &before)?;
        assert_eq!(again.terminated()?, Some(0));
        Ok(())
    })
}

/// Starts a dry run of a search after the kills, which shows that no session and no lock is left.
fn talk_resumed(operator: &Operator, parameters: &Value) -> Result<Value, Failed> {
    let mut parameters = parameters.clone();
    parameters["dry_run"] = true.into();
    waited_for("room for a session", || {
        let reply = talk(operator).ask(&call("Tune", false, &parameters));
        Ok(reply["error"].is_null().then_some(reply))
    })
}

fn tried() -> Result<(), Failed> {
    begins("sessions-tried", |operator, daemon| {
        let before = operator.devices()?.devices;
        let mut talk = talk(operator);
        let trial =
            |seconds: u64| call("Try", false, &json!({ "policy": SLIGHT_POLICY, "seconds": seconds }));
        let reply = talk.ask(&trial(120));
        let name = reply["parameters"]["transactions"][0].clone();
        assert!(name.is_string(), "{reply}");
        assert_eq!(flushes(&operator.devices()?), [10_000]);
        // The settings on trial belong to this transaction: another trial of them would change nothing.
        let confirmed = talk.ask(&call("Confirm", false, &json!({ "transaction": name })));
        assert_eq!(confirmed["parameters"]["transaction"], name, "{confirmed}");
        let again = talk.ask(&call("Confirm", false, &json!({})));
        assert_eq!(again["parameters"]["exit"], 1, "{again}");
        let back = talk.ask(&call("Rollback", false, &json!({ "transaction": name })));
        assert_eq!(back["parameters"]["transactions"], json!([name]), "{back}");
        is_again(operator, &before)?;
        // A trial that is not confirmed is rolled back.
        assert_eq!(talk.ask(&trial(3))["parameters"]["exit"], 0);
        assert_eq!(flushes(&operator.devices()?), [10_000]);
        is_again(operator, &before)?;
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })
}

fn judged() -> Result<(), Failed> {
    begins("sessions-judged", |operator, daemon| {
        let before = operator.devices()?.devices;
        let parameters = json!({ "policy": SLIGHT_POLICY, "guard": WIDE, "seconds": 25 });
        let mut client = talk(operator);
        client.say(&call("Try", true, &parameters));
        client.receive().ok_or("no reply")?;
        not_confirmed(operator)?;
        let mut reply = Value::Null;
        let mut records = Vec::new();
        while let Some(next) = client.receive() {
            reply = next["parameters"].clone();
            records.extend(reply["records"].as_array().cloned().unwrap_or_default());
            if next["continues"] != true {
                break;
            }
        }
        let verdict = records.iter().find(|record| record["kind"] == "guard").ok_or("no verdict")?;
        let kept = verdict["data"]["kept"] == true;
        assert_eq!(reply["exit"], if kept { 0 } else { 4 }, "{reply}");
        let transactions = reply["transactions"].as_array().cloned().unwrap_or_default();
        assert_eq!(transactions.is_empty(), !kept, "{reply}");
        for name in transactions {
            assert_eq!(flushes(&operator.devices()?), [10_000]);
            let history = operator.runs(&["-o", "json", "history"], 0)?.data;
            assert!(history.contains("io.netpolicy.Try by uid 0"), "{history}");
            // The verdict has already confirmed the settings, so there is nothing to confirm.
            for named in [json!({ "transaction": name }), json!({})] {
                let confirmed = talk(operator).ask(&call("Confirm", false, &named));
                assert_eq!(confirmed["parameters"]["exit"], 1, "{confirmed}");
            }
            assert_eq!(flushes(&operator.devices()?), [10_000]);
            let back = talk(operator).ask(&call("Rollback", false, &json!({ "transaction": name })));
            assert!(back["error"].is_null(), "{back}");
        }
        is_again(operator, &before)?;
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })
}

/// Returns the daemon's metrics whose names begin with `name`.
fn metrics(operator: &Operator, name: &str) -> Result<Vec<String>, Failed> {
    let mut collector = UnixStream::connect(operator.state().join("metrics"))?;
    collector.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    let mut page = String::new();
    collector.read_to_string(&mut page)?;
    Ok(page.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect())
}

fn tuned() -> Result<(), Failed> {
    begins_with("sessions-tuned", badly_set, |operator, daemon| {
        let before = operator.devices()?.devices;
        let parameters = json!({
            "goal": "p50", "guard": "p99=+50%", "candidates": ["defer20", "defer50", "defer:4ms"],
            "only": true, "seconds": 150, "keep_winner": true,
        });
        let mut talk = talk(operator);
        talk.say(&call("Tune", true, &memcached(parameters)));
        let number = talk.receive().ok_or("no reply")?["parameters"]["session"].clone();
        let status: Value = serde_json::from_str(&operator.runs(&["-o", "json", "status"], 0)?.data)?;
        let running = &status["data"]["sessions"]["running"];
        assert_eq!((&running[0]["id"], &running[0]["kind"]), (&number, &json!("tune")), "{status}");
        let words = operator.runs(&["status"], 0)?.data;
        assert!(words.contains(&format!("Session {number} (tune) of uid 0")), "{words}");
        let running = "netpolicy_sessions{kind=\"tune\"} 1";
        assert!(metrics(operator, "netpolicy_sessions{")?.iter().any(|line| line == running));
        let (mut progress, mut records, mut last) = (0, Vec::new(), Value::Null);
        while let Some(reply) = talk.receive() {
            progress += reply["parameters"]["notes"].as_array().map_or(0, Vec::len);
            records.extend(reply["parameters"]["records"].as_array().cloned().unwrap_or_default());
            last = reply;
            if last["continues"] != true {
                break;
            }
        }
        let parameters = &last["parameters"];
        assert_eq!((&parameters["session"], &parameters["exit"]), (&number, &json!(0)), "{last}");
        assert!(progress > 10, "{progress} notes");
        let report = records.iter().find(|record| record["kind"] == "tune").ok_or("no result")?;
        let winner = report["data"]["winner"]["candidate"].as_str().ok_or_else(|| format!("{report}"))?;
        assert!(["defer20", "defer50"].contains(&winner), "{report}");
        let name = parameters["transactions"][0].clone();
        assert_eq!(report["data"]["kept"], name, "{report}");
        assert!(flushes(&operator.devices()?) != [2_000_000], "the winner is in force");
        // The verdict has already confirmed the settings, so there is nothing to confirm; the journal has the
        // verdict.
        let confirm = call("Confirm", false, &json!({ "transaction": name }));
        assert_eq!(talk.ask(&confirm)["parameters"]["exit"], 1);
        let history = operator.runs(&["-o", "json", "history"], 0)?.data;
        assert!(
            history.contains("io.netpolicy.Tune by uid 0") && history.contains("\"better\""),
            "{history}"
        );
        let back = talk.ask(&call("Rollback", false, &json!({ "transaction": name })));
        assert_eq!(back["parameters"]["transactions"], json!([name]), "{back}");
        is_again(operator, &before)?;
        let status: Value = serde_json::from_str(&operator.runs(&["-o", "json", "status"], 0)?.data)?;
        let sessions = json!({ "running": [], "ended": { "completed": 1 } });
        assert_eq!(status["data"]["sessions"], sessions);
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })
}

fn cancelled() -> Result<(), Failed> {
    begins_with("sessions-cancelled", badly_set, |operator, daemon| {
        let before = operator.devices()?.devices;
        // The first candidate is soon judged better. The second equals the settings in force, so its verdict
        // takes long.
        let candidates = ["defer20", "defer:2ms,defer_hard_irqs=1000"];
        let parameters =
            json!({ "candidates": candidates, "metrics": ["p50"], "margin": 1.0, "keep_winner": true });
        let mut first = talk(operator);
        first.say(&call("Compare", true, &memcached(parameters)));
        let number = first.receive().ok_or("no reply")?["parameters"]["session"].clone();
        let is_better = |record: &Value| {
            record["kind"] == "compare-round" && record["data"]["so_far"][0]["verdict"] == "better"
        };
        let mut last = first.receive().ok_or("no record")?;
        while !last["parameters"]["records"].as_array().into_iter().flatten().any(is_better) {
            assert_eq!(last["continues"], true, "{last}");
            last = first.receive().ok_or("no record")?;
        }
        not_confirmed(operator)?;
        let cancel = talk(operator).ask(&call("Cancel", false, &json!({ "session": number })));
        assert!(cancel["error"].is_null(), "{cancel}");
        while last["continues"] == true {
            last = first.receive().ok_or("no reply")?;
        }
        let kept = last["parameters"]["transactions"].as_array().map_or(0, Vec::len);
        assert_eq!(kept, 0, "{last}");
        is_again(operator, &before)?;
        let ended = "netpolicy_sessions_ended_total{outcome=\"cancelled\"} 1";
        assert!(metrics(operator, "netpolicy_sessions_ended")?.iter().any(|line| line == ended));
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })
}

/// Tests that settings that are being measured cannot be confirmed, because they are not on trial.
fn not_confirmed(operator: &Operator) -> Result<(), Failed> {
    caught("the settings of a window, which cannot be confirmed", || {
        let Some(name) = newest_held(operator)? else { return Ok(None) };
        let confirmed = talk(operator).ask(&call("Confirm", false, &json!({ "transaction": name })));
        assert!(!confirmed["error"].is_null(), "{confirmed}");
        let why = confirmed["parameters"]["why"].as_str().unwrap_or_default();
        Ok(why.contains("is not on trial: process").then_some(()))
    })
}

/// Returns the newest transaction that is in force until a deadline.
fn newest_held(operator: &Operator) -> Result<Option<Value>, Failed> {
    let history: Value = serde_json::from_str(&operator.runs(&["-o", "json", "history"], 0)?.data)?;
    let mut all = history["data"]["transactions"].as_array().into_iter().flatten();
    let held = all.find(|one| one["standing"].to_string().contains("held-until"));
    Ok(held.map(|one| one["id"].clone()))
}

fn dry() -> Result<(), Failed> {
    begins("sessions-dry", |operator, daemon| {
        let before = operator.devices()?.devices;
        let policy = operator.file("slight.toml", SLIGHT_POLICY.as_bytes())?;
        let commands: [&[&str]; 3] = [
            &["compare", "--port", "11211", "--b", SLIGHT],
            &["tune", "--port", "11211", "--goal", "cpu"],
            &["try", "--policy-file", &policy, "--guard", WIDE],
        ];
        for command in commands {
            operator.runs(&[command, &["--dry-run"]].concat(), 0)?;
            let said = operator.runs(command, 7)?;
            assert!(said.words.contains("manages this network namespace"), "{}", said.words);
        }
        assert!(operator.devices()?.devices == before, "nothing was changed");
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })
}

fn refused() -> Result<(), Failed> {
    let operator = Operator::new("sessions-refused", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let daemon = at_work(&operator, NOTHING)?;
    let before = operator.devices()?.devices;
    let no_transaction = "20261121T040500.123456Z-1a2b";
    for (method, parameters, exit, why) in [
        ("Compare", memcached(json!({ "candidates": [SLIGHT], "seconds": 30 })), 7, "too few requests"),
        ("Compare", json!({ "service": { "port": 9 }, "candidates": ["latency"] }), 1, "port 9"),
        ("Compare", memcached(json!({ "candidates": ["latency", "latency"] })), 2, "given twice"),
        ("Tune", memcached(json!({ "goal": "speed" })), 2, "speed"),
        ("Tune", memcached(json!({ "goal": "p50", "seconds": 30 })), 7, "too short"),
        (
            "Tune",
            memcached(json!({ "goal": "p99", "guard": "p99=+5%" })),
            7,
            "limits only p99, which is the goal",
        ),
        ("Tune", memcached(json!({ "goal": "p50", "guard": "p99=+5%,p99=+9%" })), 2, "p99 has two limits"),
        ("Try", json!({ "policy": "[service.x]\npolicy = \"latncy\"\n" }), 2, "did you mean `latency`?"),
        ("Try", json!({ "policy": "" }), 2, "there is no policy"),
        ("Confirm", json!({}), 1, "nothing to confirm"),
        ("Rollback", json!({ "transaction": no_transaction }), 1, no_transaction),
        ("Rollback", json!({ "transaction": "../x" }), 2, "is not the name of a transaction"),
    ] {
        let reply = talk(&operator).ask(&call(method, false, &parameters));
        assert_eq!(reply["parameters"]["exit"], exit, "{method}: {reply}");
        let said = reply["parameters"]["why"].as_str().unwrap_or_default();
        assert!(said.contains(why), "{method}: {reply}");
    }
    is_again(&operator, &before)?;
    assert_eq!(daemon.terminated()?, Some(0));
    Ok(())
}
