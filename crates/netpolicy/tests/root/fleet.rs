//! Tests `report` on a host, and `audit` on the reports of several hosts.

use libtest_mimic::{Failed, Trial};
use model::{Nanoseconds, NapiKnob, Setting};
use serde_json::Value;
use testkit::operator::{Operator, flushes, somebody_else_sets};
use testkit::{Need, test};

const DEFER50: &str = "[device.veth-server]\ndelivery = \"defer50\"\n[service.cache]\npolicy = \"none\"\nmatch = { port = 11211 }\n";

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension];
    vec![test("fleet/a_host_reports_what_is_wrong_with_it_and_the_audit_says_so", NEEDS, reported)]
}

fn reported() -> Result<(), Failed> {
    let operator = Operator::new("fleet", 2)?;
    let reports = |name: &str| -> Result<(String, Value), Failed> {
        let text = operator.runs(&["-o", "json", "report", "--seconds", "0"], 0)?.data;
        let value: Value = serde_json::from_str(&text)?;
        // Give each report another host name.
        let mut named = value.clone();
        named["data"]["host"] = name.into();
        Ok((operator.file(&format!("{name}.json"), named.to_string().as_bytes())?, value))
    };
    let issues = |files: &[&str], code| -> Result<Vec<(String, String)>, Failed> {
        let arguments = [&["-o", "json", "audit", "--gate", "pending"], files].concat();
        let audit: Value = serde_json::from_str(&operator.runs_here(&arguments, code)?.data)?;
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let groups = audit["data"]["groups"].as_array().cloned().unwrap_or_default();
        let of_gate = groups.iter().map(|group| (word(&group["issue"]), word(&group["detail"])));
        Ok(of_gate.filter(|(issue, _)| ["drift", "pending", "lacking"].contains(&&**issue)).collect())
    };
    operator.asks(DEFER50)?;
    let (pending, value) = reports("pending")?;
    let data = &value["data"];
    let name = rustix::system::uname();
    assert_eq!(data["host"].as_str(), Some(&*name.nodename().to_string_lossy()));
    assert_eq!(data["release"].as_str(), Some(&*name.release().to_string_lossy()));
    assert_eq!((&data["as_applied"], &data["policy"]["pending"]), (&0.into(), &4.into()), "{data}");
    assert_eq!(data["services"][0]["target"], "service cache", "{data}");
    assert_eq!(data["drivers"], serde_json::json!({ "veth": 1 }), "{data}");

    operator.runs(&["apply"], 0)?;
    let (applied, value) = reports("applied")?;
    assert_eq!(value["data"]["as_applied"], 4, "{value}");
    let host = operator.devices()?;
    assert_eq!(flushes(&host), [50_000, 50_000]);
    let device = host.device_named(linux::lab::SERVER_DEVICE).ok_or("no device")?;
    let queue = device.rx_queues[0].id;
    somebody_else_sets(Setting::Napi(queue, NapiKnob::GroFlushTimeout(Nanoseconds(77_000))))?;
    let (drifted, value) = reports("drifted")?;
    assert_eq!(value["data"]["drifted"].as_array().map(Vec::len), Some(1), "{value}");

    assert_eq!(issues(&[&applied], 0)?, []);
    let is = |issue: &str, detail: &str| (issue.to_owned(), detail.to_owned());
    let all = issues(&[&applied, &drifted, &pending], 3)?;
    let changes = "netpolicy apply would change settings";
    assert_eq!(all, [is("drift", "gro-flush-timeout: drifted"), is("pending", changes)]);
    operator.runs(&["rollback"], 0)?;
    Ok(())
}
