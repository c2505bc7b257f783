//! Tests device settings that a request names in addition to the mode.

use model::host::{Channels, Coalesce, Pair, Rings, TxQueueState};
use model::nic::{NicRequest, Rss};
use model::{
    ChannelKind, CoalesceParam, CpuSet, FlowRule, Host, Nanoseconds, NicKnob, Offload, PolicyName, QdiscKind,
    Qdiscs, QueueIndex, QueueSpan, RingKind, Setting, Threading,
};
use plan::{RefusalKind, Resolved, desired, diff, place};

use crate::made::{device, host, on_device, policy, veth, write};

/// A NIC that supports everything.
fn with_nic() -> Host {
    let mut host = host();
    let mut nic = device(2, "eth0", &[300, 301, 302, 303]);
    nic.rings = Some(Rings { rx: Pair { current: 512, max: 4096 }, tx: Pair { current: 512, max: 4096 } });
    nic.coalesce = Some(Coalesce { rx_usecs: Some(50), adaptive_rx: Some(true), ..Coalesce::default() });
    nic.offloads.insert(Offload::Lro, true);
    nic.offloads.insert(Offload::Gro, true);
    nic.rss = Some(Rss { table: vec![0, 1, 2, 3, 0, 1, 2, 3], key: vec![1; 40] });
    for queue in &mut nic.rx_queues {
        queue.rps_flow_cnt = Some(0);
    }
    host.devices.push(nic);
    host
}

fn planned(host: &Host, nic: Vec<NicRequest>) -> Result<(model::Plan, plan::Desired), plan::Refusal> {
    let intent = model::Intent { nic, ..on_device(2, "eth0", PolicyName::None) };
    let placement = place(&policy(vec![intent]), host, &Resolved::default())?;
    let desired = desired(&placement, host)?;
    Ok((diff(&desired, host)?, desired))
}

#[test]
fn a_value_is_one_change_and_the_values_of_one_request_are_one_step() {
    let host = with_nic();
    let (plan, desired) = planned(
        &host,
        vec![
            NicRequest::Coalescing(CoalesceParam::RxUsecs, 8),
            NicRequest::Offload(Offload::Gro, true),
            NicRequest::Coalescing(CoalesceParam::AdaptiveRx, 0),
        ],
    )
    .expect("planned");
    assert!(!desired.first_stage);
    let lines: Vec<String> = plan.changes().map(ToString::to_string).collect();
    assert_eq!(
        (plan.steps.len(), lines),
        (1, vec!["eth0: rx-usecs 50 → 8".to_owned(), "eth0: adaptive-rx on → off".to_owned(),])
    );
}

#[test]
fn what_recreates_queues_comes_alone_and_the_rest_when_they_are_there() {
    let mut host = with_nic();
    let requests = vec![
        NicRequest::Coalescing(CoalesceParam::RxUsecs, 8),
        NicRequest::Channels(ChannelKind::Combined, 2),
        NicRequest::Ring(RingKind::Rx, 1024),
        NicRequest::Offload(Offload::Lro, false),
    ];
    let (plan, desired) = planned(&host, requests.clone()).expect("planned");
    assert!(desired.first_stage && desired.notes[0].contains("recreates the queues"), "{:?}", desired.notes);
    let order: Vec<&str> = plan.changes().map(|change| change.to().knob()).collect();
    assert_eq!(order, ["combined-channels", "rx-ring", "rx-lro"]);
    for change in plan.changes() {
        write(&mut host, change.to());
    }
    let (plan, desired) = planned(&host, requests.clone()).expect("planned");
    assert!(!desired.first_stage);
    assert_eq!(plan.changes().map(|change| change.to().knob()).collect::<Vec<_>>(), ["rx-usecs"]);
    for change in plan.changes() {
        write(&mut host, change.to());
    }
    assert!(planned(&host, requests).expect("planned").0.is_empty(), "applying twice changes nothing");
}

#[test]
fn a_veth_that_would_lose_its_napis_is_not_given_a_mode_on_them() {
    let mut host = host();
    host.devices.push(veth(2, "eth0", &[300]));
    host.devices[0].offloads.insert(Offload::Gro, true);
    let asked = |policy| model::Intent {
        nic: vec![NicRequest::Offload(Offload::Gro, false)],
        ..on_device(2, "eth0", policy)
    };
    let planned = |host: &Host, name| {
        let placement = place(&policy(vec![asked(name)]), host, &Resolved::default())?;
        desired(&placement, host)
    };
    let refused = planned(&host, PolicyName::Latency).expect_err("no NAPI would be left");
    assert!(refused.to_string().contains("removes a veth's NAPIs"), "{refused}");
    assert!(planned(&host, PolicyName::None).expect("planned").first_stage, "the change replaces its NAPIs");
}

#[test]
fn a_veth_does_not_lose_its_napis_with_values_of_their_own() {
    let mut host = host();
    host.devices.push(veth(2, "eth0", &[300]));
    host.devices[0].offloads.insert(Offload::Gro, true);
    let asked = model::Intent {
        nic: vec![NicRequest::Offload(Offload::Gro, false)],
        ..on_device(2, "eth0", PolicyName::None)
    };
    let planned = |host: &Host| {
        let placement = place(&policy(vec![asked.clone()]), host, &Resolved::default())?;
        desired(&placement, host)
    };
    host.devices[0].napis[0].threaded = Some(Threading::On);
    let refused = planned(&host).expect_err("the thread would be lost");
    assert_eq!(refused.kind, RefusalKind::Safety);
    assert!(refused.to_string().contains("settings of its NAPI"), "{refused}");
    // The device sets threading on each new NAPI, so the setting would not be lost with the queue.
    host.devices[0].threaded = Some(Threading::On);
    planned(&host).expect("planned");
    host.devices[0].napis[0].threaded = Some(Threading::Off);
    host.devices[0].napis[0].gro_flush_timeout = Some(Nanoseconds(20_000));
    planned(&host).expect_err("the timeout would be lost");
    host.devices[0].napis.clear();
    host.devices[0].offloads.insert(Offload::Gro, false);
    planned(&host).expect("no setting is left to lose");
}

#[test]
fn queues_that_have_the_default_mask_lose_nothing_and_new_ones_begin_with_it() {
    let mut host = with_nic();
    let channels =
        |host: &Host, count| planned(host, vec![NicRequest::Channels(ChannelKind::Combined, count)]);
    let mask: CpuSet = "0-1".parse().expect("a list");
    host.devices[0].rx_queues[3].rps_cpus = mask.clone();
    let refused = channels(&host, 2).expect_err("no undo could restore it");
    assert!(refused.to_string().contains("rps_cpus 0-1"), "{refused}");
    host.rps_default_mask = mask;
    channels(&host, 2).expect("a recreated queue begins with it");
    let (_, desired) = channels(&host, 6).expect("planned");
    let note = "new receive queues of eth0 start with rps_cpus 0-1, because of net.core.rps_default_mask";
    assert!(desired.notes.iter().any(|found| found == note), "{:?}", desired.notes);
}

#[test]
fn an_offload_that_is_off_and_requested_on_is_switched_off_and_back_by_its_request() {
    let mut host = with_nic();
    host.devices[0].offloads.insert(Offload::Tso, false);
    let changes = |host: &Host, on| {
        let (plan, _) = planned(host, vec![NicRequest::Offload(Offload::Tso, on)]).expect("planned");
        plan.changes().map(|change| (change.from().clone(), change.to().clone())).collect::<Vec<_>>()
    };
    assert_eq!(changes(&host, false), []);
    host.devices[0].offloads_requested.insert(Offload::Tso, true);
    assert_eq!(changes(&host, true), []);
    let tso = |on| Setting::Nic(host.devices[0].id, NicKnob::Offload(Offload::Tso, on));
    assert_eq!(changes(&host, false), [(tso(true), tso(false))]);
}

#[test]
fn packets_are_spread_over_the_first_queues_by_a_table_of_the_devices_own_length() {
    let (plan, _) = planned(&with_nic(), vec![NicRequest::RssQueues(3)]).expect("planned");
    let to = plan.changes().next().expect("a change").to().clone();
    let Setting::Nic(_, NicKnob::RssTable(table)) = to else { panic!("{to}") };
    assert_eq!(table, [0, 1, 2, 0, 1, 2, 0, 1]);
}

#[test]
fn a_count_of_flows_is_wanted_as_the_kernel_rounds_it() {
    let (plan, _) = planned(&with_nic(), vec![NicRequest::RpsFlowCount(1000)]).expect("planned");
    assert!(plan.changes().all(|change| change.to().value() == "1024"));
    assert_eq!(plan.changes().count(), 4, "every receive queue");
}

fn refused(host: &Host, request: NicRequest) -> plan::Refusal {
    planned(host, vec![request]).expect_err("refused")
}

#[test]
fn what_the_driver_cannot_is_refused_before_anything_is_touched() {
    let mut host = with_nic();
    let many = refused(&host, NicRequest::Channels(ChannelKind::Combined, 64));
    assert_eq!((many.kind, many.nearest.as_deref()), (RefusalKind::Usage, Some("combined-channels = 8")));
    let none = refused(&host, NicRequest::Channels(ChannelKind::Combined, 0));
    assert!(none.to_string().contains("left without rx-channels"), "{none}");
    let mut apart = with_nic();
    let pair = |current, max| Pair { current, max };
    apart.devices[0].channels = Some(Channels { rx: pair(4, 8), tx: pair(4, 8), combined: pair(0, 0) });
    let refusal = refused(&apart, NicRequest::Channels(ChannelKind::Combined, 2));
    assert_eq!(refusal.kind, RefusalKind::Unsupported);
    assert_eq!(refusal.nearest.as_deref(), Some("rx-channels = 2, tx-channels = 2"));
    let ring = refused(&host, NicRequest::Ring(RingKind::Tx, 8192));
    assert_eq!(ring.nearest.as_deref(), Some("tx-ring = 4096"));
    let wide = refused(&host, NicRequest::RssQueues(5));
    assert_eq!(wide.nearest.as_deref(), Some("rss-queues = 4"));
    let lacking = refused(&host, NicRequest::Coalescing(CoalesceParam::CqeModeRx, 1));
    assert_eq!(lacking.kind, RefusalKind::Unsupported);
    host.devices[0].rss = None;
    assert_eq!(refused(&host, NicRequest::RssQueues(2)).kind, RefusalKind::Unsupported);
    let none: CpuSet = CpuSet::new();
    assert!(planned(&host, vec![NicRequest::RpsCpus(none)]).expect("is so already").0.is_empty());
}

fn rule(text: &str) -> FlowRule {
    text.parse().expect("a rule")
}

fn span(text: &str) -> QueueSpan {
    text.parse().expect("queues")
}

/// The host of [`with_nic`], with RSS contexts, rules and transmit queues in the kernel's default state.
fn with_steering() -> Host {
    let mut host = with_nic();
    let nic = &mut host.devices[0];
    (nic.rss_contexts, nic.flow_rules) = (Some(Vec::new()), Some(Vec::new()));
    nic.offloads.insert(Offload::Ntuple, true);
    let queue = |index| TxQueueState {
        index: QueueIndex(index),
        napi: None,
        xps_cpus: CpuSet::new(),
        xps_rxqs: Vec::new(),
    };
    nic.tx_queues = (0..2).map(queue).collect();
    nic.qdiscs = Some(Qdiscs::Default(vec!["pfifo_fast".to_owned(); 2]));
    host
}

#[test]
fn a_context_is_made_before_the_rule_that_leads_to_it_and_goes_after_it() {
    let host = with_steering();
    let requests = vec![
        NicRequest::FlowRules(vec![
            rule("tcp4 dst-port 11211 context 2-3"),
            rule("udp4 dst-port 53 queue 1"),
        ]),
        NicRequest::RssContexts(vec![span("2-3")]),
    ];
    let (plan, _) = planned(&host, requests.clone()).expect("planned");
    let lines = |plan: &model::Plan| plan.changes().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        lines(&plan),
        [
            "eth0 rss-context 2-3: present no → yes",
            "eth0 ntuple tcp4 dst-port 11211: action none → context 2-3",
            "eth0 ntuple udp4 dst-port 53: action none → queue 1",
        ]
    );
    let mut after = host;
    plan.changes().for_each(|change| write(&mut after, change.to()));
    assert!(planned(&after, requests).expect("planned").0.is_empty());
    assert_eq!(lines(&plan.inverse())[2], "eth0 rss-context 2-3: present yes → no");
}

#[test]
fn contexts_and_rules_over_queues_that_are_not_there_are_refused() {
    let host = with_steering();
    let rules = |texts: &[&str]| NicRequest::FlowRules(texts.iter().map(|text| rule(text)).collect());
    assert!(refused(&host, rules(&["tcp4 queue 4"])).to_string().contains("it has 4"));
    assert!(refused(&host, NicRequest::RssContexts(vec![span("3-4")])).to_string().contains("it has 4"));
    let nowhere = refused(&host, rules(&["tcp4 dst-port 80 context 2-3"]));
    assert!(nowhere.to_string().contains("there is none"), "{nowhere}");
    assert_eq!(nowhere.nearest.as_deref(), Some("also rss-contexts = \"2-3\""));
    let ports: Vec<String> = (1..66).map(|port| format!("tcp4 dst-port {port} queue 0")).collect();
    let many: Vec<&str> = ports.iter().map(String::as_str).collect();
    assert!(
        refused(&host, rules(&many)).to_string().contains("65 rules: netpolicy adds at most 64 per device")
    );
    let mut off = host.clone();
    off.devices[0].offloads.insert(Offload::Ntuple, false);
    assert!(refused(&off, rules(&["tcp4 queue 0"])).to_string().contains("rx-ntuple-filter"));
    let mut without = host;
    (without.devices[0].rss_contexts, without.devices[0].flow_rules) = (None, None);
    let lacking = refused(&without, NicRequest::RssContexts(vec![span("2-3")]));
    assert_eq!(lacking.kind, RefusalKind::Unsupported);
    assert!(lacking.to_string().contains("no RSS contexts"), "{lacking}");
    assert_eq!(refused(&without, rules(&["tcp4 queue 0"])).kind, RefusalKind::Unsupported);
}

#[test]
fn a_discipline_is_wanted_of_every_transmit_queue_unless_the_kernel_gave_it() {
    let host = with_steering();
    let (plan, desired) = planned(&host, vec![NicRequest::Qdisc(QdiscKind::Fq)]).expect("planned");
    assert!(!desired.first_stage, "queues stay as they are");
    let lines: Vec<String> = plan.changes().map(ToString::to_string).collect();
    assert_eq!(lines, ["eth0: qdisc default (2 × pfifo_fast) → mq of 2 × fq"]);
    assert!(planned(&host, vec![NicRequest::Qdisc(QdiscKind::PfifoFast)]).expect("planned").0.is_empty());
    let (plan, _) = planned(&host, vec![NicRequest::Qdisc(QdiscKind::Noqueue)]).expect("planned");
    assert!(
        plan.changes()
            .all(|change| matches!(change.to(), Setting::Nic(_, NicKnob::Qdiscs(Qdiscs::Whole(_)))))
    );
    let mut down = host;
    down.devices[0].qdiscs = None;
    assert_eq!(refused(&down, NicRequest::Qdisc(QdiscKind::Fq)).kind, RefusalKind::Missing);
}
