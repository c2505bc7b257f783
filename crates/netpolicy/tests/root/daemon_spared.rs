//! Tests what the daemon leaves unchanged: after a refused request, after a rollback, after another program's
//! change, and while another program holds the settings.

use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};
use linux::lab::SERVER_DEVICE;
use model::{EmptyPolls, Nanoseconds, NapiKnob, Setting};
use testkit::operator::{Operator, are, at_work, flushes, somebody_else_sets, threads, waited_for};
use testkit::{Need, test};

/// `gro-flush-timeout` of defer50, in nanoseconds.
const DEFER50: u64 = 50_000;
/// `gro-flush-timeout` of defer30, in nanoseconds.
const DEFER30: u64 = 30_000;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension];
    const THREADS: &[Need] = &[Need::Root, Need::Suspension, Need::ThreadPerNapi];
    vec![
        test("daemon/a_refused_set_touches_nothing_of_what_is_in_force", THREADS, refused),
        test("daemon/what_is_on_trial_is_left_alone_and_no_commit_is_tried_until_its_end", NEEDS, on_trial),
        test("daemon/a_request_that_becomes_refused_keeps_what_an_earlier_one_had_written", NEEDS, mixture),
        test("daemon/what_is_rolled_back_but_not_wholly_is_left_alone", NEEDS, half_undone),
        test("daemon/unset_names_what_somebody_else_has_set_and_verify_does_not_miss_it", NEEDS, theirs),
    ]
}

fn deferring(microseconds: u32) -> String {
    format!("[device.{SERVER_DEVICE}]\ndelivery = \"defer{microseconds}\"\n")
}

fn status(operator: &Operator) -> Result<serde_json::Value, Failed> {
    let output = operator.netpolicy(&["-o", "json", "status"]).output()?;
    let said: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    Ok(said["data"].clone())
}

fn refused() -> Result<(), Failed> {
    let operator = Operator::new("spared-refused", 2)?;
    let _daemon = at_work(&operator, "# nothing\n")?;
    let set = ["set", "device", SERVER_DEVICE, "threaded"];
    operator.runs(&[&set[..], &["--kthread-class", "fifo:10"]].concat(), 0)?;
    let before = threads(&operator)?;
    assert!(before.iter().all(Option::is_some), "{before:?}");
    let written = || -> Result<(u64, u64), Failed> {
        let counters = &status(&operator)?["counters"];
        let number = |name: &str| counters[name].as_u64().ok_or_else(|| format!("{name} in {counters}"));
        Ok((number("commits")?, number("changes")?))
    };
    let counted = written()?;
    // The driver lacks `rx-usecs`. The request is refused only after the policy and a different thread class
    // were planned.
    operator.runs(&[&set[..], &["--kthread-class", "rr:5", "--setting", "rx-usecs=8"]].concat(), 6)?;
    // The class exceeds the allowed bound, so this request is refused as well.
    operator.runs(&[&set[..], &["--kthread-class", "rr:60"]].concat(), 7)?;
    assert_eq!(threads(&operator)?, before, "the same threads");
    assert_eq!(written()?, counted, "no setting was restored and set again");
    let said = operator.runs(&[&set[..], &["--kthread-class", "fifo:11"]].concat(), 0)?;
    assert!(said.data.contains("fifo:10 → fifo:11"), "the earlier request counts: {}", said.data);
    Ok(())
}

fn on_trial() -> Result<(), Failed> {
    let operator = Operator::new("spared-trial", 2)?;
    let _daemon = at_work(&operator, &deferring(50))?;
    are(&operator, &[DEFER50; 2])?;
    let elsewhere = operator.file("trial.toml", deferring(30).as_bytes())?;
    let mut trial = Command::new(env!("CARGO_BIN_EXE_netpolicy"));
    trial.arg("--state-dir").arg(operator.state()).arg(format!("--policy-file={elsewhere}"));
    trial.arg(format!("--netns=pid:{}", operator.lab.server_pid())).args(["try", "--seconds", "4"]);
    let tried = trial.stdin(Stdio::null()).output()?;
    assert!(tried.status.success(), "{}", String::from_utf8_lossy(&tried.stderr));
    are(&operator, &[DEFER30; 2])?;
    // The daemon observes the whole host while another program holds the settings of a request.
    let said = operator.runs(&["set", "device", SERVER_DEVICE, "defer77"], 7)?;
    assert!(said.words.contains("is held"), "{}", said.words);
    let status = status(&operator)?;
    assert_eq!(status["counters"]["failures"], 0, "{status}");
    let findings = status["findings"].as_array().ok_or("findings")?;
    let taken: Vec<_> = findings.iter().filter(|finding| finding["rule"] == "taken").collect();
    assert_eq!(taken.len(), 1, "{status}");
    let plans = status["counters"]["plans"].as_u64().ok_or("plans")?;
    are(&operator, &[DEFER50; 2])?;
    waited_for("a status without it", || {
        let after = self::status(&operator)?;
        let plans_after = after["counters"]["plans"].as_u64().ok_or("plans")?;
        assert!(plans_after < plans + 50, "no plan without a reason: {plans} before and {plans_after} after");
        assert_eq!(after["counters"]["failures"], 0, "{after}");
        let findings = after["findings"].as_array().ok_or("findings")?;
        Ok(findings.iter().all(|finding| finding["rule"] != "taken").then_some(()))
    })
}

fn mixture() -> Result<(), Failed> {
    let operator = Operator::new("spared-mixture", 2)?;
    let cpu = format!("[device.{SERVER_DEVICE}]\npolicy = \"cpu\"\n");
    let _daemon = at_work(&operator, &cpu)?;
    let deferrals = || -> Result<Vec<Option<EmptyPolls>>, Failed> {
        let host = operator.devices()?;
        let napis = host.devices.iter().flat_map(|device| &device.napis);
        Ok(napis.map(|napi| napi.defer_hard_irqs).collect())
    };
    waited_for("the settings of policy cpu", || {
        Ok(deferrals()?.iter().all(|polls| *polls > Some(EmptyPolls(0))).then_some(()))
    })?;
    operator.asks(&deferring(50))?;
    are(&operator, &[DEFER50; 2])?;
    let before = deferrals()?;
    operator.asks(&format!("{}settings = {{ rx-usecs = 8 }}\n", deferring(50)))?;
    operator.waits_to_hear("rx-usecs")?;
    assert_eq!(deferrals()?, before, "all settings stay in force");
    assert_eq!(flushes(&operator.devices()?), [DEFER50; 2]);
    operator.asks("# nothing\n")?;
    are(&operator, &[0; 2])
}

fn half_undone() -> Result<(), Failed> {
    let operator = Operator::new("spared-half", 2)?;
    let _daemon = at_work(&operator, &deferring(50))?;
    are(&operator, &[DEFER50; 2])?;
    // A device has no NAPIs while it is down.
    operator.sets_link("down")?;
    operator.runs(&["rollback"], 5)?;
    operator.waits_to_hear("it manages nothing until a reload")?;
    operator.sets_link("up")?;
    waited_for("the device", || Ok((flushes(&operator.devices()?).len() == 2).then_some(())))?;
    // Each setting is now in two transactions: the partly undone one, and that of the new request.
    operator.runs(&["set", "device", SERVER_DEVICE, "defer30"], 0)?;
    are(&operator, &[DEFER30; 2])?;
    let said = operator.runs(&["rollback"], 0)?;
    assert!(said.words.contains("4 settings"), "{}", said.words);
    are(&operator, &[0; 2])?;
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(flushes(&operator.devices()?), [0; 2], "the request was not repeated");
    Ok(())
}

fn theirs() -> Result<(), Failed> {
    let operator = Operator::new("spared-theirs", 2)?;
    let _daemon = at_work(&operator, "# nothing\n")?;
    operator.runs(&["set", "device", SERVER_DEVICE, "defer50"], 0)?;
    let queue = operator.devices()?.device_named(SERVER_DEVICE).ok_or("the device")?.rx_queues[1].id;
    // After this second, the daemon has handled the device's events, and its next observation is still
    // seconds away.
    std::thread::sleep(std::time::Duration::from_secs(1));
    somebody_else_sets(Setting::Napi(queue, NapiKnob::GroFlushTimeout(Nanoseconds(61_000))))?;
    let said = operator.runs(&["unset", "device", SERVER_DEVICE], 0)?;
    assert_eq!(flushes(&operator.devices()?), [0, 61_000]);
    let notes = "rx-1 gro-flush-timeout is 61us, and was 0 before";
    assert!(said.words.contains(notes), "{}\n{}", said.words, said.data);
    let verified = operator.runs(&["verify"], 0)?;
    assert!(!verified.data.contains("61us"), "{}", verified.data);
    Ok(())
}
