//! Tests sessions of the daemon's API, on memcached under load in a lab.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use model::host::Device;
use serde_json::{Value, json};
use testkit::operator::{Operator, Started, at_work, caught, flushes, waited_for};
use testkit::{Need, test};

use crate::desk::Talk;
use crate::requests::while_asked;

/// One more poll after each batch, 10 us later: visible in the settings, but not to clients.
const SLIGHT: &str = "defer50,defer_hard_irqs=1,gro_flush_timeout=10us";
const SLIGHT_POLICY: &str = "[service.memcached]\nmatch = { exe = \"memcached\" }\ndelivery = \"defer50\"\n\
                             defer_hard_irqs = 1\ngro_flush_timeout = \"10us\"\n";

/// Wide limits on everything measurable at the clients' rate.
const WIDE: &str = "p50=+1000%,p90=+1000%,cpu=+1000%";

/// A policy that changes nothing here.
const NOTHING: &str = "[service.other]\nmatch = { port = 9 }\npolicy = \"none\"\n";

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached];
    vec![
        test("sessions/watch_streams_each_window_and_ends_with_the_summary", NEEDS, watched),
        test("sessions/compare_alternates_under_the_daemon_and_restores_the_host", NEEDS, compared),
        test("sessions/a_client_that_leaves_gets_its_host_back", NEEDS, left),
        test("sessions/a_daemon_that_is_killed_in_a_session_leaves_nothing", NEEDS, killed),
        test("sessions/a_policy_is_tried_confirmed_and_rolled_back", NEEDS, tried),
        test("sessions/a_policy_is_judged_and_kept_with_its_verdict", NEEDS, judged),
        test("sessions/what_cannot_be_done_is_refused_with_the_exit_code_of_the_command", NEEDS, refused),
    ]
}

/// Runs `body` in a lab with memcached and a daemon that changes nothing.
fn begins<T>(name: &str, body: impl FnOnce(&Operator, Started) -> Result<T, Failed>) -> Result<T, Failed> {
    let operator = Operator::new(name, 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let daemon = at_work(&operator, NOTHING)?;
    while_asked(&operator, || body(&operator, daemon))
}

fn talk(operator: &Operator) -> Talk {
    let talk = Talk::to(&operator.state().join("io.netpolicy"));
    talk.stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
    talk
}

/// Waits until all settings of devices are as before. Meanwhile clients are connected.
fn is_again(operator: &Operator, before: &[Device]) -> Result<(), Failed> {
    waited_for("the host as it was", || Ok((operator.devices()?.devices == before).then_some(())))
}

/// Formats a method call. With `more`, the first reply is the number of the session.
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
        // may.
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
        // The daemon changes settings again.
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
        // Without a confirmation, the trial is rolled back.
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
        let reply = talk(operator).ask(&call("Try", false, &parameters))["parameters"].clone();
        let records = reply["records"].as_array().cloned().unwrap_or_default();
        let verdict = records.iter().find(|record| record["kind"] == "guard").ok_or("no verdict")?;
        let kept = verdict["data"]["kept"] == true;
        assert_eq!(reply["exit"], if kept { 0 } else { 4 }, "{reply}");
        let transactions = reply["transactions"].as_array().cloned().unwrap_or_default();
        assert_eq!(transactions.is_empty(), !kept, "{reply}");
        for name in transactions {
            assert_eq!(flushes(&operator.devices()?), [10_000]);
            let history = operator.runs(&["-o", "json", "history"], 0)?.data;
            assert!(history.contains("io.netpolicy.Try by uid 0"), "{history}");
            let back = talk(operator).ask(&call("Rollback", false, &json!({ "transaction": name })));
            assert!(back["error"].is_null(), "{back}");
        }
        is_again(operator, &before)?;
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
