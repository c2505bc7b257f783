//! What an expert wants of a device besides its mode.

use model::host::{Coalesce, Pair, Rings};
use model::nic::{NicWish, Rss};
use model::{ChannelKind, CoalesceParam, CpuSet, Host, Offload, PolicyName, RingKind, Setting};
use plan::{RefusalKind, Resolved, desired, diff, place};

use crate::made::{device, host, on_device, policy, veth, write};

/// A NIC that has everything.
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

fn planned(host: &Host, nic: Vec<NicWish>) -> Result<(model::Plan, plan::Desired), plan::Refusal> {
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
            NicWish::Coalescing(CoalesceParam::RxUsecs, 8),
            NicWish::Offload(Offload::Gro, true),
            NicWish::Coalescing(CoalesceParam::AdaptiveRx, 0),
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
fn what_makes_queues_anew_comes_alone_and_the_rest_when_they_are_there() {
    let mut host = with_nic();
    let wishes = vec![
        NicWish::Coalescing(CoalesceParam::RxUsecs, 8),
        NicWish::Channels(ChannelKind::Combined, 2),
        NicWish::Ring(RingKind::Rx, 1024),
        NicWish::Offload(Offload::Lro, false),
    ];
    let (plan, desired) = planned(&host, wishes.clone()).expect("planned");
    assert!(desired.first_stage && desired.notes[0].contains("made anew"), "{:?}", desired.notes);
    let order: Vec<&str> = plan.changes().map(|change| change.to().knob()).collect();
    assert_eq!(order, ["combined-channels", "rx-ring", "rx-lro"]);
    for change in plan.changes() {
        write(&mut host, change.to());
    }
    let (plan, desired) = planned(&host, wishes.clone()).expect("planned");
    assert!(!desired.first_stage);
    assert_eq!(plan.changes().map(|change| change.to().knob()).collect::<Vec<_>>(), ["rx-usecs"]);
    for change in plan.changes() {
        write(&mut host, change.to());
    }
    assert!(planned(&host, wishes).expect("planned").0.is_empty(), "applying twice changes nothing");
}

#[test]
fn a_veth_that_would_lose_its_napis_is_not_given_a_mode_on_them() {
    let mut host = host();
    host.devices.push(veth(2, "eth0", &[300]));
    host.devices[0].offloads.insert(Offload::Gro, true);
    let asked = |policy| model::Intent {
        nic: vec![NicWish::Offload(Offload::Gro, false)],
        ..on_device(2, "eth0", policy)
    };
    let planned = |host: &Host, name| {
        let placement = place(&policy(vec![asked(name)]), host, &Resolved::default())?;
        desired(&placement, host)
    };
    let refused = planned(&host, PolicyName::Latency).expect_err("no NAPI would be left");
    assert!(refused.to_string().contains("takes a veth's NAPIs away"), "{refused}");
    assert!(planned(&host, PolicyName::None).expect("planned").first_stage, "its NAPIs are others after it");
}

#[test]
fn packets_are_spread_over_the_first_queues_by_a_table_of_the_devices_own_length() {
    let (plan, _) = planned(&with_nic(), vec![NicWish::RssQueues(3)]).expect("planned");
    let to = plan.changes().next().expect("a change").to().clone();
    let Setting::RssTable(_, table) = to else { panic!("{to}") };
    assert_eq!(table, [0, 1, 2, 0, 1, 2, 0, 1]);
}

#[test]
fn a_count_of_flows_is_wanted_as_the_kernel_rounds_it() {
    let (plan, _) = planned(&with_nic(), vec![NicWish::RpsFlowCount(1000)]).expect("planned");
    assert!(plan.changes().all(|change| change.to().value() == "1024"));
    assert_eq!(plan.changes().count(), 4, "every receive queue");
}

#[test]
fn what_the_driver_cannot_is_refused_before_anything_is_touched() {
    let mut host = with_nic();
    let refused = |host: &Host, wish| planned(host, vec![wish]).expect_err("refused");
    let many = refused(&host, NicWish::Channels(ChannelKind::Combined, 64));
    assert_eq!((many.kind, many.nearest.as_deref()), (RefusalKind::Usage, Some("combined-channels = 8")));
    let none = refused(&host, NicWish::Channels(ChannelKind::Combined, 0));
    assert!(none.to_string().contains("left without rx-channels"), "{none}");
    let ring = refused(&host, NicWish::Ring(RingKind::Tx, 8192));
    assert_eq!(ring.nearest.as_deref(), Some("tx-ring = 4096"));
    let wide = refused(&host, NicWish::RssQueues(5));
    assert_eq!(wide.nearest.as_deref(), Some("rss-queues = 4"));
    let lacking = refused(&host, NicWish::Coalescing(CoalesceParam::CqeModeRx, 1));
    assert_eq!(lacking.kind, RefusalKind::Unsupported);
    host.devices[0].rss = None;
    assert_eq!(refused(&host, NicWish::RssQueues(2)).kind, RefusalKind::Unsupported);
    let none: CpuSet = CpuSet::new();
    assert!(planned(&host, vec![NicWish::RpsCpus(none)]).expect("is so already").0.is_empty());
}
