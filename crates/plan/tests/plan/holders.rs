//! Tests held queues: no plan takes one away, and the receive hash avoids queues of memory providers.

use model::host::{HolderKind, Pair, Rings};
use model::nic::{NicRequest, Rss};
use model::{
    ChannelKind, CoalesceParam, FlowMatch, FlowRule, Host, IpFlow, Offload, Plan, PolicyName, QueueIndex,
    QueueSpan, RingKind, SteerTo, Transport,
};
use plan::{Refusal, RefusalKind, Resolved, desired, diff, doctor, place};

use crate::made::{device, held, host, on_device, policy};

/// A NIC with four queues, whose receive hash uses the first three. One queue is held, either the second or
/// the last.
fn with_holder(queue: u32, kind: HolderKind) -> Host {
    let mut host = host();
    let mut nic = device(2, "eth0", &[300, 301, 302, 303]);
    nic.rings = Some(Rings { rx: Pair { current: 512, max: 4096 }, tx: Pair { current: 512, max: 4096 } });
    nic.rss = Some(Rss { table: vec![0, 1, 2, 0, 1, 2, 0, 1], key: vec![1; 40] });
    nic.rss_contexts = Some(Vec::new());
    nic.flow_rules = Some(Vec::new());
    nic.offloads.extend([(Offload::Lro, true), (Offload::Ntuple, true)]);
    nic.holders = vec![held(queue, kind)];
    host.devices.push(nic);
    host
}

fn kinds() -> [HolderKind; 5] {
    [
        HolderKind::Lease { to: "if7 rx-1 of netnsid 0".to_owned() },
        HolderKind::Dmabuf { id: 3 },
        HolderKind::IoUring { rx_buf_len: None },
        HolderKind::AfXdp { zero_copy: Some(true) },
        HolderKind::AfXdp { zero_copy: None },
    ]
}

fn planned(host: &Host, request: NicRequest) -> Result<Plan, Refusal> {
    let intent = model::Intent { nic: vec![request], ..on_device(2, "eth0", PolicyName::None) };
    let placement = place(&policy(vec![intent]), host, &Resolved::default())?;
    diff(&desired(&placement, host)?, host)
}

fn rule(queue: u32) -> NicRequest {
    let flow = FlowMatch::Ip4(IpFlow { destination_port: Some(80), ..IpFlow::all(Transport::Tcp) });
    NicRequest::FlowRules(vec![FlowRule { flow, to: SteerTo::Queue(QueueIndex(queue)) }])
}

#[test]
fn a_plan_that_takes_a_queue_from_any_holder_is_refused_with_its_process() {
    let (mut cells, mut refused) = (0, 0);
    for kind in kinds() {
        let host = with_holder(3, kind.clone());
        for request in [
            NicRequest::Channels(ChannelKind::Combined, 2),
            NicRequest::Channels(ChannelKind::Combined, 8),
            NicRequest::Ring(RingKind::Rx, 1024),
            NicRequest::Ring(RingKind::Tx, 1024),
            NicRequest::Offload(Offload::Lro, false),
            NicRequest::RssQueues(4),
            NicRequest::RssContexts(vec![QueueSpan { first: 2, count: 2 }]),
            rule(3),
        ] {
            cells += 1;
            let refusal = planned(&host, request.clone()).expect_err(&format!("{kind:?}: {request:?}"));
            assert_eq!(refusal.kind, RefusalKind::Safety, "{kind:?}: {refusal}");
            let named =
                refusal.evidence.iter().any(|line| line.contains("rx-3") && line.contains("xdpd[700]"));
            assert!(named, "{kind:?}, {request:?}: {refusal:?}");
            refused += 1;
        }
    }
    assert_eq!((cells, refused), (40, 40));
}

#[test]
fn what_leaves_the_held_queue_as_it_is_is_planned() {
    for kind in kinds() {
        let mut host = with_holder(3, kind);
        host.devices[0].coalesce =
            Some(model::host::Coalesce { rx_usecs: Some(50), ..model::host::Coalesce::default() });
        for request in [
            NicRequest::Coalescing(CoalesceParam::RxUsecs, 8),
            NicRequest::RssQueues(2),
            NicRequest::RssContexts(vec![QueueSpan { first: 1, count: 2 }]),
            rule(2),
        ] {
            let plan =
                planned(&host, request.clone()).unwrap_or_else(|refusal| panic!("{request:?}: {refusal}"));
            assert!(!plan.is_empty(), "{request:?}");
        }
    }
}

#[test]
fn a_receive_hash_that_leaves_an_af_xdp_queue_out_starves_its_socket_and_is_refused() {
    let host = with_holder(1, HolderKind::AfXdp { zero_copy: None });
    let refusal = planned(&host, NicRequest::RssQueues(1)).expect_err("the change takes the packets away");
    insta::assert_snapshot!(format!(
        "{refusal}\n{}\n{}",
        refusal.evidence.join("\n"),
        refusal.nearest.as_deref().unwrap_or_default()
    ));
}

#[test]
fn doctor_says_who_holds_what_and_warns_where_the_hash_leads_to_a_provider() {
    let says = |host: &Host| -> Vec<String> {
        let found = doctor(host, None, &[]);
        let held = found.iter().filter(|f| ["queue-held", "provider-in-rss"].contains(&f.rule.as_str()));
        held.map(|f| format!("{} {} {}: {}", f.severity, f.rule, f.object, f.summary)).collect()
    };
    assert_eq!(
        says(&with_holder(1, HolderKind::AfXdp { zero_copy: Some(false) })),
        ["note queue-held eth0 rx-1 and tx-1: held by xdpd[700] (AF_XDP, copying)"]
    );
    assert_eq!(
        says(&with_holder(3, HolderKind::Dmabuf { id: 3 })),
        ["note queue-held eth0 rx-3: held by xdpd[700] (dmabuf binding 3)"]
    );
    assert_eq!(
        says(&with_holder(1, HolderKind::IoUring { rx_buf_len: None })),
        [
            "note queue-held eth0 rx-1: held by xdpd[700] (io_uring zero-copy)",
            "warning provider-in-rss eth0: the receive hash also sends ordinary packets to rx-1, whose memory belongs to another program",
        ]
    );
}
