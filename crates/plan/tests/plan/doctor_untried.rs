//! Tests what `doctor` proposes without a policy, and what it reports as unknown.

use std::sync::Arc;

use model::host::{Confidence, IrqEdge};
use model::recipe::{Mechanism, PaysFrom, RecipeEntry, RecipeValue};
use model::{
    Delivered, DeliveryMode, EmptyPolls, Finding, Host, IrqNumber, Nanoseconds, NapiKnob, Pid, PolicyName,
    Reason, Recipes, Ruling, Setting,
};
use plan::doctor::{HostContext, PendingChanges, not_known};
use plan::{RequestFacts, Resolved, doctor_with};

use crate::doctor::SOFTIRQ;
use crate::made::{Counted, delivered, device, host, listen, named, on_device, policy, server, veth};
use crate::read_aloud;

/// A busy cache and a quiet server on a NIC, and a proxy behind a veth. Nothing is set.
fn unprepared() -> Host {
    let mut host = host();
    host.devices = vec![device(2, "eth0", &[300, 301, 302]), veth(3, "veth0", &[303])];
    let mut idle = server(815, "sshd", &[&[302]]);
    listen(&mut idle, 0);
    host.processes = vec![
        server(812, "memcached", &[&[300, 300], &[301]]),
        server(814, "proxy", &[&[303]]),
        idle,
        server(816, "cron", &[&[0]]),
    ];
    host
}

fn counts() -> Delivered {
    let quiet = Counted { packets: 20, interrupt_polls: 20, ..Counted::default() };
    let some = Counted { packets: 9_000, interrupt_polls: 900, ..Counted::default() };
    delivered([SOFTIRQ.on(300), SOFTIRQ.on(301), quiet.on(302), some.on(303)])
}

fn proposed(host: &Host, counts: Option<&Delivered>, asked: &[RequestFacts], proposes: bool) -> Vec<Finding> {
    let context = HostContext { proposes, ..HostContext::default() };
    let findings = doctor_with(host, counts, asked, &context).into_iter();
    findings.filter(|finding| ["no-policy", "policy-untried"].contains(&&*finding.rule)).collect()
}

#[test]
fn on_a_host_without_a_policy_the_busiest_processes_are_proposed_first() {
    let findings = proposed(&unprepared(), Some(&counts()), &[], true);
    insta::assert_snapshot!(read_aloud::findings(&findings));
}

#[test]
fn a_word_that_was_measured_as_worse_is_not_proposed_again() {
    let host = unprepared();
    let queue = host.devices[1].rx_queues[0].id;
    let tried = |word: &str, ruling| plan::JournalVerdict {
        transaction: "20261122T030000.000000Z-0c01".to_owned(),
        command: format!("netpolicy compare --pid 814 --b {word}"),
        settings: vec![Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(100)))],
        service: "proxy".to_owned(),
        ruling,
        measured: "cpu +19.6 %, 40 pairs, switchback".to_owned(),
    };
    let of_proxy = |evidence: Vec<plan::JournalVerdict>| {
        let pending = PendingChanges { evidence, ..PendingChanges::default() };
        let context = HostContext { proposes: true, pending, ..HostContext::default() };
        let findings = doctor_with(&host, Some(&counts()), &[], &context);
        findings.into_iter().find(|finding| finding.object == "proxy[814]").expect("it is busy")
    };
    let found = of_proxy(vec![tried("cpu", Ruling::Worse)]);
    assert!(found.summary.contains("`cpu` was measured to be worse"), "{}", found.summary);
    assert_eq!(found.remedy, None);
    assert!(found.evidence[0].contains("cpu +19.6 %"), "{:?}", found.evidence);
    assert!(of_proxy(vec![tried("power", Ruling::Worse)]).remedy.is_some(), "of another word");
    assert!(of_proxy(vec![tried("cpu", Ruling::Better), tried("cpu", Ruling::Worse)]).remedy.is_some());
}

#[test]
fn a_word_is_proposed_only_where_the_traffic_is_enough_for_it_to_gain() {
    let of_proxy = |packets_per_flush, connections| {
        let mode: DeliveryMode = "defer200".parse().expect("a mode");
        let because = Reason::new("20 % less CPU, answers 200 us later", "a test");
        let entry = RecipeEntry {
            measured_on: vec!["veth".to_owned()],
            pays_from: Some(PaysFrom { packets_per_flush, connections }),
            ..RecipeEntry::new(RecipeValue::Delivery(mode), because)
        };
        let mut recipes = Recipes::default();
        recipes.policies.entry(PolicyName::Cpu).or_default().entries.insert(Mechanism::Delivery, entry);
        let context = HostContext { proposes: true, recipes: Arc::new(recipes), ..HostContext::default() };
        let findings = doctor_with(&unprepared(), Some(&counts()), &[], &context);
        findings.into_iter().find(|finding| finding.object == "proxy[814]").expect("it is busy")
    };
    // 9000 packets per second on one connection are 1.8 packets per flush timeout of 200 us.
    let enough = of_proxy(1, 1);
    assert!(enough.remedy.is_some_and(|remedy| remedy.ends_with("compare --pid 814 --b cpu")));
    assert_eq!(
        enough.evidence.last().expect("some"),
        "measured on veth: 20 % less CPU, answers 200 us later (a test)"
    );
    for (packets_per_flush, connections) in [(2, 1), (1, 2)] {
        let found = of_proxy(packets_per_flush, connections);
        assert_eq!(
            found.summary,
            format!(
                "no policy is proposed for the process: `cpu` (defer200) was measured to help only with at least {packets_per_flush} packet(s) on a queue per 200us and {connections} connection(s); here there are 1.8 and 1"
            )
        );
        assert_eq!(found.remedy, None);
    }
}

#[test]
fn without_counts_every_process_that_waits_in_epolls_is_proposed() {
    let findings = proposed(&unprepared(), None, &[], true);
    let objects: Vec<&str> = findings.iter().map(|finding| finding.object.as_str()).collect();
    assert_eq!(objects, ["eth0, veth0", "memcached[812]", "proxy[814]", "sshd[815]"]);
}

#[test]
fn where_something_is_asked_for_or_set_nothing_is_proposed() {
    let host = unprepared();
    assert!(proposed(&host, Some(&counts()), &[], false).is_empty(), "unless the operator requests it");
    let asked = RequestFacts {
        origin: "policy.toml:3".to_owned(),
        mode: "defer50".parse().expect("a mode"),
        queues: Vec::new(),
        processes: Vec::new(),
        goal: None,
        wake_within: None,
    };
    assert!(proposed(&host, Some(&counts()), &[asked], true).is_empty());
    let mut set = unprepared();
    crate::made::set_napis(&mut set.devices[0], 100, 200, 20);
    let objects: Vec<String> =
        proposed(&set, None, &[], true).into_iter().map(|found| found.object).collect();
    assert_eq!(objects, ["eth0, veth0", "proxy[814]"], "on eth0 another program has set something");
}

#[test]
fn what_a_look_cannot_tell_is_said() {
    let context = HostContext { watched: Nanoseconds::from_millis(2_010), ..HostContext::default() };
    let mut host = unprepared();
    assert_eq!(
        not_known(&host, Some(&counts()), &context),
        [
            "other loads than during these 2 s (--seconds N observes longer)",
            "how long requests take (`netpolicy watch`, or a goal in a policy file)",
        ]
    );
    let timed = HostContext { timed: true, ..context };
    assert_eq!(not_known(&host, Some(&counts()), &timed).len(), 1, "the measurements are known");
    host.capabilities.ptrace = false;
    host.devices[0].napis[0].irq = Some(IrqEdge { irq: IrqNumber(30), confidence: Confidence::ByName });
    assert_eq!(
        not_known(&host, None, &HostContext::default())[..3],
        [
            "how processes of other users wait (run it as root)",
            "which context delivers the packets (nothing was counted)",
            "the interrupts of the queues of eth0 (inferred, not reported)",
        ]
    );
}

#[test]
fn settings_that_are_asked_for_and_not_in_force_are_counted_with_what_brings_them_back() {
    let mut host = host();
    host.devices = vec![device(2, "eth0", &[300, 301])];
    let intent = named("suspend20".parse().expect("a mode"), on_device(2, "eth0", PolicyName::None));
    let plan = read_aloud::planned(&policy([intent]), &host, &Resolved::default()).expect("planned");
    let rolled_back = Some("20261122T030000.000000Z-0c01".to_owned());
    let said = |pending: PendingChanges| {
        let context = HostContext { pending, ..HostContext::default() };
        let findings = doctor_with(&host, None, &[], &context).into_iter();
        findings.filter(|finding| finding.rule == "policy-not-in-force").collect::<Vec<_>>()
    };
    let pending = PendingChanges { plan, rolled_back, ..PendingChanges::default() };
    insta::assert_snapshot!(read_aloud::findings(&said(pending.clone())));
    let measured = |ruling, transaction: &str| plan::JournalVerdict {
        transaction: transaction.to_owned(),
        command: "netpolicy compare --pid 812 --b policy".to_owned(),
        settings: pending.plan.changes().map(|change| change.to().clone()).collect(),
        service: "memcached".to_owned(),
        ruling,
        measured: "p50 10 → 200 µs (+1900 %, +1500…+2300), 40 pairs, switchback".to_owned(),
    };
    let worse = PendingChanges {
        evidence: vec![measured(Ruling::CannotTell, "newest"), measured(Ruling::Worse, "the-one-before")],
        ..pending.clone()
    };
    let found = said(worse.clone()).remove(0);
    assert!(found.summary.ends_with("not in force, and were measured to be worse"), "{}", found.summary);
    assert!(found.evidence[0].starts_with("measured on memcached as worse: p50 10"), "{:?}", found.evidence);
    assert!(!found.remedy.expect("one").contains("apply"), "a policy that was worse is not recommended");
    let better = PendingChanges {
        evidence: vec![measured(Ruling::Better, "newest"), measured(Ruling::Worse, "before")],
        ..worse
    };
    assert!(
        said(better)[0].remedy.as_deref().is_some_and(|remedy| remedy.ends_with("netpolicy apply")),
        "the newest counts"
    );
    let mut other = measured(Ruling::Worse, "of-other-values");
    other.settings.clear();
    assert!(!said(PendingChanges { evidence: vec![other], ..pending.clone() })[0].summary.contains("worse"));
    let by_daemon = said(PendingChanges { daemon: Some(Pid(812)), ..pending });
    assert_eq!(by_daemon[0].remedy.as_deref(), Some("kill -HUP 812"));
    assert!(said(PendingChanges::default()).is_empty(), "all pending changes are in force");
}

#[test]
fn refused_policy_files_are_the_first_finding_and_nothing_is_proposed() {
    let host = unprepared();
    let context = HostContext {
        proposes: true,
        pending: PendingChanges {
            refused: Some("two sections are for process nginx\n --> 10-host.toml:7:1".to_owned()),
            ..Default::default()
        },
        ..HostContext::default()
    };
    let findings = doctor_with(&host, Some(&counts()), &[], &context);
    assert_eq!(findings[0].rule, "policy-refused");
    assert!(findings[0].summary.contains("two sections are for process nginx"), "{}", findings[0].summary);
    assert_eq!(findings[0].evidence, [" --> 10-host.toml:7:1"]);
    assert!(findings.iter().all(|finding| finding.rule != "no-policy" && finding.rule != "policy-untried"));
}
