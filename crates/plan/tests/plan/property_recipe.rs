//! Tests properties of random recipes, layouts and divisions on random hosts.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::host::{Coalesce, CpuInfo, PacketSizes, Pair, Rings, Socket, SocketState};
use model::nic::Rss;
use model::recipe::Mechanism;
use model::setting::Disruption;
use model::{
    Budget, ChannelKind, CoalesceParam, Cpu, CpuSet, Fd, Host, Intent, IrqKnob, Layout, NumaNode, Offload,
    PacketSize, Pid, Plan, Policy, PolicyName, ProcessKnob, Reason, RecipeEntry, RecipeValue, RingKind,
    RxQueueKnob, Setting, TxQueueKnob,
};
use plan::{Desired, Placement, Resolved, desired, diff, place};
use proptest::prelude::*;
use proptest::sample::select;

use crate::made::{device, host, on_device, on_service, policy, server, tx_queues, with_irqs, write};

const PIDS: [u32; 3] = [812, 901, 950];
const QUEUES_MAX: u32 = 8;

prop_compose! {
    /// Generates random cores with one or two threads, on one or two nodes, some of them isolated or offline.
    fn topologies()(
        cores in 1_u32..5,
        threads in 1_u32..3,
        nodes in 1_u32..3,
        offline in prop::collection::btree_set(1_u32..16, 0..3),
        isolated in prop::collection::btree_set(0_u32..16, 0..3),
    ) -> (CpuSet, CpuSet, Vec<CpuInfo>) {
        let total = cores * nodes * threads;
        let online: CpuSet = (0..total).filter(|cpu| !offline.contains(cpu)).map(Cpu).collect();
        let infos = online.iter().map(|cpu| {
            let core = cpu.0 % (cores * nodes);
            let siblings: CpuSet = (0..threads).map(|t| Cpu(core + t * cores * nodes)).collect();
            let siblings = siblings.intersection(&online);
            CpuInfo { cpu, llc: siblings.clone(), siblings, node: Some(NumaNode(core / cores)) }
        });
        let infos = infos.collect();
        (online, isolated.into_iter().filter(|cpu| *cpu < total).map(Cpu).collect(), infos)
    }
}

prop_compose! {
    fn hosts()(
        (online, isolated, cpus) in topologies(),
        queues in 1_u32..=QUEUES_MAX,
        transmit in 0_u32..=QUEUES_MAX,
        node in prop::option::of(0_u32..2),
        moderation in 0_u8..3,
        rings in any::<bool>(),
        offloads in prop::collection::btree_map(select(Offload::ALL.to_vec()), any::<bool>(), 0..6),
        steers in 0_u8..3,
        driver in select(vec![None, Some(PacketSize::LEGACY), Some(100_000), Some(PacketSize::MAX)]),
        napis in prop::collection::vec(prop::collection::vec(0_u32..QUEUES_MAX, 0..4), PIDS.len()),
        listens in prop::collection::vec(prop::option::of(1_u16..4), PIDS.len()),
        cpusets in prop::collection::vec(prop::option::of(0_u32..8), PIDS.len()),
    ) -> Host {
        let mut host = host();
        host.topology = model::host::Topology { online, isolated, sched_ext: None, cpus };
        let ids: Vec<u32> = (300..300 + queues).collect();
        let mut nic = device(2, "eth0", &ids);
        nic.node = node.map(NumaNode);
        let coalesce = Coalesce { rx_usecs: Some(8), adaptive_rx: Some(true), ..Coalesce::default() };
        nic.coalesce = (moderation > 0).then_some(coalesce);
        nic.rings = rings.then_some(Rings { rx: Pair { current: 256, max: 1024 }, ..Rings::default() });
        nic.offloads = offloads;
        nic.packet_sizes = PacketSizes {
            gso_max_size: Some(PacketSize::LEGACY),
            gro_max_size: driver.map(|_| PacketSize::LEGACY),
            tso_max_size: driver,
            ..PacketSizes::default()
        };
        nic.rss = (steers > 0).then(|| Rss { table: (0..queues).cycle().take(16).collect(), key: vec![1; 40] });
        nic.rss_contexts = (steers > 1).then(Vec::new);
        nic.flow_rules = (steers > 0).then(Vec::new);
        for queue in &mut nic.rx_queues {
            queue.coalesce = (moderation > 1).then_some(coalesce);
            queue.rps_flow_cnt = Some(0);
        }
        nic.tx_queues = tx_queues(transmit);
        host.devices.push(nic);
        let mut host = with_irqs(host, 40);
        for (((&pid, napis), port), cpuset) in PIDS.iter().zip(napis).zip(listens).zip(cpusets) {
            let napis: Vec<u32> = napis.into_iter().map(|napi| 300 + napi % queues).collect();
            let (first, rest) = napis.split_at(napis.len() / 2);
            let mut process = server(pid, "server", &[first, rest]);
            if let Some(port) = port {
                process.sockets.push(listener(pid, port));
            }
            process.cpuset = cpuset.map(|cpu| [Cpu(cpu)].into_iter().collect());
            for thread in &mut process.threads {
                thread.affinity = host.topology.online.clone();
            }
            host.processes.push(process);
        }
        host
    }
}

fn values() -> impl Strategy<Value = (Mechanism, RecipeValue)> {
    let switch = |mechanism| any::<bool>().prop_map(move |on| (mechanism, RecipeValue::Switch(on)));
    prop_oneof![
        (0_u32..500).prop_map(|n| (Mechanism::Coalescing(CoalesceParam::RxUsecs), RecipeValue::Number(n))),
        switch(Mechanism::Coalescing(CoalesceParam::AdaptiveRx)),
        select(vec![RecipeValue::Max, RecipeValue::Number(512), RecipeValue::Keep])
            .prop_map(|value| (Mechanism::Ring(RingKind::Rx), value)),
        select(vec![RecipeValue::PerCore, RecipeValue::Max, RecipeValue::Number(3)])
            .prop_map(|value| (Mechanism::Channels(ChannelKind::Combined), value)),
        (select(Offload::ALL.to_vec()), any::<bool>())
            .prop_map(|(offload, on)| (Mechanism::Offload(offload), RecipeValue::Switch(on))),
        (
            select(PacketSize::ALL.to_vec()),
            select(vec![RecipeValue::Max, RecipeValue::Number(185_000), RecipeValue::Number(16_384)])
        )
            .prop_map(|(size, value)| (Mechanism::PacketSize(size), value)),
        select(vec![RecipeValue::CpusIfShort, RecipeValue::Cpus(CpuSet::new()), RecipeValue::Keep])
            .prop_map(|value| (Mechanism::RpsCpus, value)),
        (0_u32..100).prop_map(|n| (Mechanism::RpsFlowCount, RecipeValue::Number(n))),
        switch(Mechanism::Xps),
        switch(Mechanism::Threads),
        layouts().prop_map(|layout| (Mechanism::Layout, RecipeValue::Layout(layout))),
    ]
}

fn layouts() -> impl Strategy<Value = Layout> {
    select(vec![Layout::OneToOne, Layout::RxPerCore, Layout::LocalNuma, Layout::Shared(1), Layout::Shared(3)])
}

prop_compose! {
    fn policies()(
        device in prop::option::of(select(PolicyName::ALL.to_vec())),
        services in prop::collection::vec(
            (select(vec![PolicyName::Latency, PolicyName::Bulk, PolicyName::Cpu, PolicyName::None]),
             prop::option::of(1_u32..4),
             prop::option::of(prop::collection::btree_set(0_u32..12, 1..4))),
            0..3,
        ),
        layout in prop::option::of(layouts()),
        cpus in prop::option::of(prop::collection::btree_set(0_u32..12, 1..5)),
        recipe in prop::collection::vec((select(PolicyName::ALL.to_vec()), values()), 0..12),
        disruptive in any::<bool>(),
    ) -> Policy {
        let set = |cpus: BTreeSet<u32>| cpus.into_iter().map(Cpu).collect::<CpuSet>();
        let device = device.map(|name| Intent { layout, cpus: cpus.map(set), ..on_device(2, "eth0", name) });
        let services = (10..).zip(services).map(|(line, (name, queues, cpus))| {
            Intent { queues, cpus: cpus.map(set), ..on_service(line, "service", name) }
        });
        let intents: Vec<Intent> = device
            .into_iter()
            .chain(services)
            .map(|intent| Intent { budget: Budget { polling_cpus: Some(2), ..Budget::default() }, ..intent })
            .collect();
        let mut policy = policy(intents);
        for (name, (mechanism, value)) in recipe {
            let entry = RecipeEntry::new(value, Reason::new("test", "test"));
            Arc::make_mut(&mut policy.recipes).policies.entry(name).or_default().entries.insert(mechanism, entry);
        }
        policy.disruptive = disruptive;
        policy
    }
}

/// Makes the first device divisible, and requests a division: its driver has rules, every process listens on
/// a separate port, and the device's request is `mix`.
fn divisible((mut host, mut policy): (Host, Policy)) -> (Host, Policy) {
    let nic = &mut host.devices[0];
    nic.rss_contexts = Some(Vec::new());
    nic.flow_rules = Some(Vec::new());
    for (process, port) in host.processes.iter_mut().zip(80_u16..) {
        process.sockets.retain(|socket| socket.state != SocketState::TcpListen);
        process.sockets.push(listener(process.id.pid.0, port));
    }
    policy.intents.retain(|intent| !matches!(intent.target, model::Target::Device(_)));
    policy.intents.insert(0, on_device(2, "eth0", PolicyName::Mix));
    (host, policy)
}

fn cases() -> impl Strategy<Value = (Host, Policy)> {
    let divided = |(host, policy, divided)| if divided { divisible((host, policy)) } else { (host, policy) };
    (hosts(), policies(), any::<bool>()).prop_map(divided)
}

fn listener(pid: u32, port: u16) -> Socket {
    Socket {
        fd: Fd(90),
        inode: u64::from(pid) * 1000 + 900,
        state: SocketState::TcpListen,
        local: Some(format!("[::]:{port}").parse().expect("an address")),
        remote: None,
        napi: None,
        polling: None,
    }
}

/// Resolves the n-th service to the n-th process.
fn resolved(policy: &Policy) -> Resolved {
    let services =
        policy.intents.iter().enumerate().filter(|(_, i)| matches!(i.target, model::Target::Service(..)));
    services.zip(PIDS).fold(Resolved::default(), |all, ((at, _), pid)| all.with(at, [Pid(pid)]))
}

fn planned(policy: &Policy, host: &Host) -> Option<(Placement, Desired, Plan)> {
    planned_for(policy, host, &resolved(policy))
}

fn planned_for(policy: &Policy, host: &Host, resolved: &Resolved) -> Option<(Placement, Desired, Plan)> {
    let placement = place(policy, host, resolved).ok()?;
    let desired = desired(&placement, host).ok()?;
    let plan = diff(&desired, host).expect("every desired setting of these hosts was read");
    Some((placement, desired, plan))
}

fn written(mut host: Host, plan: &Plan) -> Host {
    plan.changes().for_each(|change| write(&mut host, change.to()));
    host
}

/// The maximum number of stages of a policy: one that recreates queues, and one that sets the new queues.
const STAGES_MAX: usize = 2;

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, max_global_rejects: 8192, ..ProptestConfig::default() })]

    #[test]
    fn applied_in_stages_a_policy_is_in_force_and_nothing_is_left_to_do((mut host, policy) in cases()) {
        let mut fewer_queues = false;
        for stage in 0..=STAGES_MAX {
            let Some((_, desired, plan)) = planned(&policy, &host) else {
                // With fewer queues, two services may have to share a queue although their packets cannot be
                // separated. netpolicy then rolls back the first stage.
                prop_assert!(stage == 0 || fewer_queues, "a possible plan stays possible");
                return Ok(());
            };
            let queues = host.devices[0].rx_queues.len();
            host = written(host, &plan);
            fewer_queues = host.devices[0].rx_queues.len() < queues;
            for line in desired.explain(&host) {
                prop_assert_eq!(line.in_force.as_ref(), Some(&line.wanted));
            }
            prop_assert!(diff(&desired, &host).expect("read").is_empty());
            if plan.is_empty() {
                return Ok(());
            }
        }
        let (_, _, plan) = planned(&policy, &host).expect("possible");
        prop_assert!(plan.is_empty(), "still: {plan:?}");
    }

    #[test]
    fn the_inverse_returns_the_host((host, policy) in cases()) {
        let found = planned(&policy, &host);
        prop_assume!(found.is_some());
        let (_, _, plan) = found.expect("planned");
        let back = written(written(host.clone(), &plan), &plan.inverse());
        prop_assert_eq!(back, host);
    }

    #[test]
    fn no_cpu_outside_the_allowed_set_is_ever_named((host, policy) in cases()) {
        let found = planned(&policy, &host);
        prop_assume!(found.is_some());
        let (_, desired, _) = found.expect("planned");
        let asked: CpuSet = policy.intents.iter().filter_map(|i| i.cpus.as_ref()).flat_map(CpuSet::iter).collect();
        let free = host.topology.online.difference(&host.topology.isolated);
        let allowed: CpuSet = free.iter().chain(asked.intersection(&host.topology.online).iter()).collect();
        for wanted in &desired.wanted {
            match &wanted.setting {
                Setting::Irq(_, IrqKnob::Affinity(cpus)) | Setting::TxQueue(_, TxQueueKnob::XpsCpus(cpus)) | Setting::RxQueue(_, RxQueueKnob::RpsCpus(cpus)) => {
                    prop_assert!(cpus.is_subset(&allowed), "{} of {allowed}", wanted.setting);
                }
                Setting::Process(ProcessKnob::ThreadAffinity(thread, cpus)) => {
                    let process = host.process(thread.process.pid).expect("a process");
                    prop_assert!(!cpus.is_empty() && cpus.is_subset(&allowed));
                    prop_assert!(process.cpuset.as_ref().is_none_or(|cpuset| cpus.is_subset(cpuset)));
                }
                _ => {}
            }
        }
    }

    #[test]
    fn queues_that_requests_have_are_disjoint_and_one_is_left((host, policy) in cases().prop_map(divisible)) {
        let found = planned(&policy, &host);
        prop_assume!(found.as_ref().is_some_and(|(placement, ..)| !placement.divisions.is_empty()));
        let (placement, _, _) = found.expect("planned");
        for division in &placement.divisions {
            prop_assert!(division.rest.count >= 1 && division.rest.first == 0);
            let mut next = division.rest.count;
            for share in &division.shares {
                prop_assert_eq!(share.queues.first, next);
                prop_assert!(share.queues.count >= 1 && !share.rules.is_empty());
                next += share.queues.count;
            }
            prop_assert_eq!(usize::try_from(next).expect("few"), host.devices[0].rx_queues.len());
        }
        let mut owned = BTreeSet::new();
        for queue in placement.parts.iter().flat_map(|part| &part.queues) {
            prop_assert!(owned.insert(queue.queue), "{} twice", queue.queue);
        }
    }

    #[test]
    fn recipes_stop_no_queue_unasked_and_poll_within_the_budget((host, policy) in cases()) {
        let found = planned(&policy, &host);
        prop_assume!(found.is_some());
        let (placement, _, plan) = found.expect("planned");
        let stops = plan.changes().any(|change| change.to().disruption() != Disruption::None);
        prop_assert!(policy.disruptive || !stops, "{plan:?}");
        for part in &placement.parts {
            let mode = part.delivery.mode;
            let kthreads = u32::try_from(part.queues.len()).expect("few") * mode.polling_cpus_per_napi();
            prop_assert!(kthreads <= part.intent.budget.polling_cpus.unwrap_or(0));
            prop_assert_eq!(mode.polling_cpus_per_thread(), 0, "no recipe polls without traffic");
        }
    }

    #[test]
    fn withdrawing_a_service_for_its_standing_proof_disturbs_no_traffic((mut host, policy) in cases()) {
        for _ in 0..=STAGES_MAX {
            let found = planned(&policy, &host);
            prop_assume!(found.is_some());
            host = written(host, &found.expect("planned").2);
        }
        let (_, with, _) = planned(&policy, &host).expect("possible");
        let is_service = |at: &usize| matches!(policy.intents[*at].target, model::Target::Service(..));
        for at in (0..policy.intents.len()).filter(is_service) {
            let mut without = policy.clone();
            without.intents.remove(at);
            let services = (0..policy.intents.len()).filter(is_service).zip(PIDS).filter(|(of, _)| *of != at);
            let others = services
                .fold(Resolved::default(), |all, (of, pid)| all.with(of - usize::from(of > at), [Pid(pid)]));
            let Some((_, others, plan)) = planned_for(&without, &host, &others) else { continue };
            let own = with.wanted.iter().filter(|own| {
                others.wanted.iter().all(|other| !other.setting.same_knob(&own.setting))
            });
            let settings = plan.changes().map(|change| change.to()).chain(own.map(|own| &own.setting));
            for setting in settings {
                prop_assert_eq!(setting.disruption(), Disruption::None, "{}", setting);
            }
        }
    }

    #[test]
    fn the_same_input_gives_the_same_bytes((host, policy) in cases()) {
        let bytes = || planned(&policy, &host).map(|(_, _, plan)| serde_json::to_string(&plan).expect("serialises"));
        prop_assert_eq!(bytes(), bytes());
    }
}
