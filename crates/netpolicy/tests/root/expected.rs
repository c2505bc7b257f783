//! Tests that the daemon reports expected gains of policies without being asked, for a real memcached without
//! a policy.

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use serde_json::Value;
use testkit::operator::{Operator, at_work, waited_for};
use testkit::{Need, test};

use crate::searched::status;
use crate::{goals, requests};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached];
    vec![
        test("expected/doctor_init_and_status_say_what_a_policy_may_gain", NEEDS, by_commands),
        test("expected/the_daemon_says_it_of_a_section_without_a_policy_and_of_no_other", NEEDS, by_daemon),
    ]
}

fn expected_of(operator: &Operator) -> Result<Option<Value>, Failed> {
    let output = operator.netpolicy(&["-o", "json", "doctor", "--seconds", "3"]).output()?;
    let said: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let findings = said["data"]["findings"].as_array().ok_or("findings")?;
    Ok(findings.iter().find(|finding| finding["rule"] == "policy-expected").cloned())
}

fn by_commands() -> Result<(), Failed> {
    let operator = Operator::new("expected-commands", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.host()?;
    requests::while_asked(&operator, || {
        let found = expected_of(&operator)?.ok_or("no expectation")?;
        let (summary, evidence) = (found["summary"].to_string(), found["evidence"].to_string());
        assert!(summary.contains("CPU per request ") && summary.contains(" %, p50 "), "{found}");
        assert!(evidence.contains("requests/s on ") && evidence.contains("packets per poll"), "{found}");
        assert!(evidence.contains("nine of ten services"), "{found}");
        let remedy = found["remedy"].as_str().unwrap_or_default();
        assert!(remedy.starts_with("netpolicy compare --port 11211 --b "), "{found}");
        let first = operator.runs(&["init"], 0)?.data;
        assert!(first.contains("# expected with cpu: CPU per request "), "{first}");
        let daemon = at_work(&operator, "")?;
        let words = operator.runs(&["status"], 0)?.words;
        assert!(words.contains("memcached has no policy; measured "), "{words}");
        assert!(words.contains("expected with power: CPU per request "), "{words}");
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })?;
    operator.is_again(&before)?;
    Ok(())
}

fn by_daemon() -> Result<(), Failed> {
    let section =
        |policy: &str| format!("[service.cache]\nmatch = {{ port = 11211 }}\npolicy = \"{policy}\"\n");
    let operator = Operator::new("expected-daemon", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    requests::while_asked(&operator, || {
        let daemon = at_work(&operator, &section("none"))?;
        let said = waited_for("an expectation", || {
            let expected = status(&operator)?["requests"][0]["expected"].clone();
            Ok(expected["expected"].as_array().is_some_and(|all| all.len() == 2).then_some(expected))
        })?;
        assert!(said["load"]["rate"].as_f64().is_some_and(|rate| rate > 50.0), "{said}");
        for of in said["expected"].as_array().into_iter().flatten() {
            let [low, middle, high] =
                ["low", "estimate", "high"].map(|end| of["cpu"][end].as_f64().unwrap_or(f64::NAN));
            assert!(low < middle && middle < high, "{said}");
        }
        let page = goals::page(&operator)?;
        let sample = "netpolicy_expected_change_ratio{target=\"service cache\",policy=\"cpu\",quantity=\"cpu\",bound=\"low\"} ";
        assert!(page.contains(sample), "{page}");
        let words = operator.runs(&["status"], 0)?.data;
        assert!(words.contains("service cache: expected with "), "{words}");
        operator.asks(&section("cpu"))?;
        waited_for("the policy without an expectation", || {
            let request = status(&operator)?["requests"][0].clone();
            let is_set = request["policy"] == "cpu" && request["set"].as_u64() > Some(0);
            Ok((is_set && request["expected"].is_null()).then_some(()))
        })?;
        let found = expected_of(&operator)?;
        assert!(found.is_none(), "the service's policy is in force: {found:?}");
        assert_eq!(daemon.terminated()?, Some(0));
        Ok(())
    })?;
    operator.runs(&["rollback"], 0)?;
    Ok(())
}
