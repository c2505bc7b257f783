//! Tests services with a `holdback`: in a lab, the daemon withdraws the policy of a real memcached for short
//! windows and measures the difference.

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::operator::{Operator, at_work, caught, flushes, waited_for, waited_long_for};
use testkit::{Need, test};

use crate::searched::{finding, status};
use crate::{goals, requests, trial};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached];
    vec![test("proven/a_policy_is_withdrawn_now_and_then_and_what_it_does_is_counted", NEEDS, proven)]
}

/// A policy that makes packets wait for two milliseconds, which the measurement shows to be harmful.
const POLICY: &str =
    "[service.cache]\nmatch = { port = 11211 }\ndelivery = \"defer:2ms\"\nholdback = \"10%\"\n";

/// The `gro-flush-timeout` values that the policy sets.
const TWO_MS: [u64; 1] = [2_000_000];

/// Returns the proof in the daemon's status.
fn proof(operator: &Operator) -> Result<Value, Failed> {
    Ok(status(operator)?["requests"][0]["proof"].clone())
}

fn proven() -> Result<(), Failed> {
    let operator = Operator::new("proven", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.devices()?.devices;
    let in_force = || Ok((flushes(&operator.devices()?) == TWO_MS).then_some(()));
    let daemon = at_work(&operator, POLICY)?;
    waited_for("the policy", in_force)?;
    waited_for("a proof in progress", || Ok(proof(&operator)?.is_object().then_some(())))?;
    assert_eq!(daemon.terminated()?, Some(0));
    // Pretend that the policy has been in force for a day, so that an episode is due.
    let path = operator.state().join("proofs.json");
    let mut stored: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    stored["services"]["service cache"]["managed_millis"] = json!(86_400_000);
    std::fs::write(&path, stored.to_string())?;
    let daemon = at_work(&operator, POLICY)?;
    let waits = waited_for("the reason why there is no proof", || finding(&operator, "proof-waits"))?;
    assert!(waits["evidence"].to_string().contains("received no request"), "{waits}");
    assert_eq!(daemon.terminated()?, Some(0));
    requests::while_asked(&operator, || {
        let mut daemon = at_work(&operator, POLICY)?;
        caught(
            "a window without the policy",
            || Ok((flushes(&operator.devices()?) != TWO_MS).then_some(())),
        )?;
        daemon.signalled(Signal::KILL)?;
        daemon.child.wait()?;
        waited_for("the end of the guard process", || {
            Ok(trial::guards(&operator)?.is_empty().then_some(()))
        })?;
        in_force()?.ok_or("a killed daemon leaves the policy in force")?;
        let daemon = at_work(&operator, POLICY)?;
        let found = waited_long_for("the finding", || finding(&operator, "proof-reversed"))?;
        assert!(found["evidence"].to_string().contains("p50 recently +"), "{found}");
        let shown = proof(&operator)?;
        assert!(shown["pairs"].as_u64() >= Some(7) && shown["standing"] == "reversed", "{shown}");
        assert!(shown["share_without"].as_f64().is_some_and(|share| share > 0.0 && share < 0.001), "{shown}");
        let page = goals::page(&operator)?;
        let of_page = |name: &str, labels: &str| goals::sample(&page, name, labels);
        assert_eq!(of_page("netpolicy_proof_standing", ",standing=\"reversed\""), Some(1), "{page}");
        assert!(of_page("netpolicy_proof_pairs_total", "") >= Some(7), "{page}");
        assert!(
            page.contains("netpolicy_proof_effect_ratio{target=\"service cache\",quantity=\"p50\","),
            "{page}"
        );
        waited_for("the policy again", in_force)?;
        let words = operator.runs(&["status"], 0)?.data;
        assert!(
            words.contains("service cache: its proof: p50 +") && words.contains(" pairs over "),
            "{words}"
        );
        // The transactions of the measurement do not stay in the journal.
        let history: Value = serde_json::from_str(&operator.runs(&["-o", "json", "history"], 0)?.data)?;
        let all = history["data"]["transactions"].as_array().ok_or("transactions")?;
        let withdrawn = all.iter().filter(|one| one.to_string().contains("standing proof"));
        assert!(withdrawn.count() <= 1, "except what the killed daemon left: {history}");
        assert_eq!(daemon.terminated()?, Some(0));
        let words = operator.runs(&["history"], 0)?.data;
        assert!(words.contains("service cache: its proof: p50 +") && words.contains(", reversed"), "{words}");
        let words = operator.runs(&["explain", "cache"], 0)?.words;
        assert!(words.contains("service cache: its proof: p50 +"), "{words}");
        rolled_back(&operator, in_force)
    })?;
    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.devices()?.devices, before);
    Ok(())
}

/// With `on_reversed = "rollback"`, the next measurement ends the policy until the daemon is told to reload.
fn rolled_back(operator: &Operator, in_force: impl Fn() -> Result<Option<()>, Failed>) -> Result<(), Failed> {
    let path = operator.state().join("proofs.json");
    let mut stored: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    stored["services"]["service cache"]["managed_millis"] = json!(86_400_000 * 2);
    std::fs::write(&path, stored.to_string())?;
    let policy = format!("{POLICY}on_reversed = \"rollback\"\n");
    let daemon = at_work(operator, &policy)?;
    let gone = || Ok((flushes(&operator.devices()?) != TWO_MS).then_some(()));
    let found = waited_long_for("the rollback", || finding(operator, "proof-rolled-back"))?;
    assert!(found["evidence"].to_string().contains("p50 recently +"), "{found}");
    waited_for("the host without the policy", gone)?;
    let words = operator.runs(&["status"], 3)?.data;
    assert!(words.contains("service cache: not in force: it was rolled back"), "{words}");
    for command in [&["apply"][..], &["plan"], &["try", "--seconds", "5"]] {
        let words = operator.runs(command, 7)?.words;
        assert!(words.contains("its standing proof showed that it harms: p50 +"), "{words}");
        assert!(words.contains("kill -HUP ") && words.contains("on_reversed = \"report\""), "{words}");
    }
    gone()?.ok_or("`apply` leaves it rolled back")?;
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["apply"], 7)?;
    let drawn = operator.file("proofs.html", b"")?;
    let words = operator.runs(&["history", "--report", &drawn], 0)?.data;
    assert!(words.contains("; rolled back"), "{words}");
    let page = std::fs::read_to_string(&drawn)?;
    assert!(
        page.contains("p50 of service cache with its policy") && page.contains("class=\"band\""),
        "{page}"
    );
    // The next daemon keeps the policy rolled back; a reload puts it in force again.
    let daemon = at_work(operator, &policy)?;
    waited_for("the finding again", || finding(operator, "proof-rolled-back"))?;
    gone()?.ok_or("the policy stays rolled back")?;
    daemon.signalled(Signal::HUP)?;
    waited_for("the policy after a reload", &in_force)?;
    waited_for("the end of the finding", || no_finding(operator))?;
    assert_eq!(daemon.terminated()?, Some(0));
    by_report(operator, &policy, in_force)
}

fn no_finding(operator: &Operator) -> Result<Option<()>, Failed> {
    Ok(finding(operator, "proof-rolled-back")?.is_none().then_some(()))
}

/// A section that only requests a report gets its policy back. When the earlier section returns, its policy
/// is not rolled back again.
fn by_report(
    operator: &Operator,
    rolls_back: &str,
    in_force: impl Fn() -> Result<Option<()>, Failed>,
) -> Result<(), Failed> {
    let path = operator.state().join("proofs.json");
    let mut stored: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    stored["services"]["service cache"]["rolled_back_unix_micros"] = json!(9);
    std::fs::write(&path, stored.to_string())?;
    let daemon = at_work(operator, rolls_back)?;
    waited_for("the finding of the stored rollback", || finding(operator, "proof-rolled-back"))?;
    operator.asks(POLICY)?;
    waited_for("the policy without its rollback", &in_force)?;
    waited_for("the end of the finding", || no_finding(operator))?;
    operator.runs(&["status"], 0)?;
    operator.asks(rolls_back)?;
    waited_for("the section that was read", || {
        let policy = status(operator)?["policy"].clone();
        Ok((policy["reads"].as_u64() >= Some(3)).then_some(()))
    })?;
    in_force()?.ok_or("the policy stays in force")?;
    assert_eq!(daemon.terminated()?, Some(0));
    Ok(())
}
