//! Tests how layouts group queues, interrupts and CPUs.

use model::host::CpuInfo;
use model::nic::Rss;
use model::{Cpu, CpuSet, Host, IrqKnob, NicKnob, NumaNode, PolicyName, ProcessKnob, Setting};
use plan::{RefusalKind, Resolved, place};

use crate::made::{device, host, on_device, on_service, policy, server, tx_queues, with_irqs};
use crate::read_aloud::planned;

/// Two NUMA nodes, each with this many cores. A core has two hardware threads: CPU n, and n plus half the
/// CPUs.
fn two_nodes(cores_each: u32) -> Host {
    let mut host = host();
    let cores = 2 * cores_each;
    host.topology.online = (0..2 * cores).map(Cpu).collect();
    host.topology.cpus = (0..2 * cores)
        .map(|cpu| {
            let core = cpu % cores;
            let node = core / cores_each;
            let of_node = |core: u32| [Cpu(core), Cpu(core + cores)];
            CpuInfo {
                cpu: Cpu(cpu),
                siblings: of_node(core).into_iter().collect(),
                llc: (node * cores_each..(node + 1) * cores_each).flat_map(of_node).collect(),
                node: Some(NumaNode(node)),
            }
        })
        .collect();
    host
}

/// Adds a NIC on this node, with this many queues and with interrupts numbered from 40.
fn with_nic(mut host: Host, node: u32, queues: u32, tx: u32) -> Host {
    let napis: Vec<u32> = (300..300 + queues).collect();
    let mut nic = device(2, "eth0", &napis);
    nic.node = Some(NumaNode(node));
    nic.rss = Some(Rss { table: (0..queues).cycle().take(128).collect(), key: vec![1; 40] });
    nic.tx_queues = tx_queues(tx);
    host.devices.push(nic);
    with_irqs(host, 40)
}

/// Returns one line for each object of the layout: its receive queues, its transmit queues, the CPUs of its
/// interrupts, and all its CPUs.
fn objects(host: &Host, layout: &str) -> Vec<String> {
    let mut intent = on_device(2, "eth0", PolicyName::Bulk);
    intent.layout = Some(layout.parse().expect("a layout"));
    let placement = place(&policy([intent]), host, &Resolved::default()).expect("placed");
    let objects = placement.parts[0].objects.as_ref().expect("a layout");
    let list = |queues: Vec<u32>| queues.into_iter().map(Cpu).collect::<CpuSet>().to_string();
    objects
        .objects
        .iter()
        .map(|object| {
            let rx = list(object.rx.iter().map(|queue| queue.index.0).collect());
            let tx = list(object.tx.iter().map(|queue| queue.0).collect());
            format!("rx {rx} tx {tx} irq {} cpus {}", object.irq_cpus, object.cpus)
        })
        .collect()
}

#[test]
fn one_to_one_takes_whole_cores_first_and_those_of_the_nics_node_before_others() {
    let host = with_nic(two_nodes(2), 1, 6, 6);
    assert_eq!(
        objects(&host, "one-to-one"),
        [
            "rx 0 tx 0 irq 2 cpus 2",
            "rx 1 tx 1 irq 3 cpus 3",
            "rx 2 tx 2 irq 0 cpus 0,4",
            "rx 3 tx 3 irq 1 cpus 1,5",
            "rx 4 tx 4 irq 6 cpus 6",
            "rx 5 tx 5 irq 7 cpus 7",
        ]
    );
}

#[test]
fn with_more_cpus_than_queues_each_further_cpu_sends_by_the_nearest_object() {
    let host = with_nic(two_nodes(2), 0, 2, 2);
    assert_eq!(
        objects(&host, "one-to-one"),
        ["rx 0 tx 0 irq 0 cpus 0,2,4,6", "rx 1 tx 1 irq 1 cpus 1,3,5,7"]
    );
}

#[test]
fn with_more_queues_than_cpus_they_are_dealt_out_from_the_start_again() {
    let mut host = with_nic(two_nodes(1), 0, 6, 6);
    host.topology.online = "0-1".parse().expect("CPUs");
    assert_eq!(
        objects(&host, "one-to-one"),
        ["rx 0,2,4 tx 0,2,4 irq 0 cpus 0", "rx 1,3,5 tx 1,3,5 irq 1 cpus 1"]
    );
}

#[test]
fn one_receive_queue_for_each_core_and_one_transmit_queue_for_each_cpu() {
    let host = with_nic(two_nodes(1), 0, 2, 4);
    assert_eq!(objects(&host, "rx-per-core"), ["rx 0 tx 0,2 irq 0 cpus 0,2", "rx 1 tx 1,3 irq 1 cpus 1,3"]);
    let mut intent = on_device(2, "eth0", PolicyName::Bulk);
    intent.layout = Some("rx-per-core".parse().expect("a layout"));
    let placement = place(&policy([intent]), &host, &Resolved::default()).expect("placed");
    let senders: Vec<String> = placement.parts[0]
        .objects
        .as_ref()
        .expect("a layout")
        .senders()
        .map(|(tx, cpus)| format!("tx {tx}: {cpus}"))
        .collect();
    assert_eq!(senders, ["tx 0: 0", "tx 2: 2", "tx 1: 1", "tx 3: 3"]);
}

#[test]
fn receive_queues_beyond_the_cores_get_no_packets_by_the_hash() {
    let host = with_nic(two_nodes(1), 0, 4, 4);
    let mut intent = on_device(2, "eth0", PolicyName::Bulk);
    intent.layout = Some("rx-per-core".parse().expect("a layout"));
    let plan = planned(&policy([intent]), &host, &Resolved::default()).expect("planned");
    let table = plan.changes().find_map(|change| match change.to() {
        Setting::Nic(_, NicKnob::RssTable(table)) => Some(table.clone()),
        _ => None,
    });
    assert_eq!(table.expect("a table")[..4], [0, 1, 0, 1]);
}

#[test]
fn local_numa_leaves_the_other_nodes_alone_and_says_so_where_its_own_may_not_be_used() {
    let mut host = with_nic(two_nodes(2), 1, 4, 0);
    assert_eq!(
        objects(&host, "local-numa"),
        ["rx 0 tx  irq 2 cpus 2", "rx 1 tx  irq 3 cpus 3", "rx 2 tx  irq 6 cpus 6", "rx 3 tx  irq 7 cpus 7"]
    );
    host.topology.isolated = "2-3,6-7".parse().expect("CPUs");
    let mut intent = on_device(2, "eth0", PolicyName::Bulk);
    intent.layout = Some("local-numa".parse().expect("a layout"));
    let placement = place(&policy([intent]), &host, &Resolved::default()).expect("placed");
    assert!(placement.parts[0].notes.iter().any(|note| note.contains("uses others")));
}

#[test]
fn shared_keeps_all_interrupts_on_few_cpus_near_the_nic() {
    let host = with_nic(two_nodes(2), 1, 5, 5);
    assert_eq!(objects(&host, "shared:2"), ["rx 0,2,4 tx  irq 2 cpus 2", "rx 1,3 tx  irq 3 cpus 3"]);
}

#[test]
fn an_explicit_layout_is_taken_as_it_is_written_and_refused_where_it_names_what_is_not_there() {
    let host = with_nic(two_nodes(2), 0, 4, 4);
    assert_eq!(
        objects(&host, "rx 0-1 tx 0 cpus 0,4; rx 3 cpus 5"),
        ["rx 0-1 tx 0 irq 0,4 cpus 0,4", "rx 3 tx  irq 5 cpus 5"]
    );
    for (layout, kind, words) in [
        ("rx 4 cpus 0", RefusalKind::Usage, "no receive queue 4"),
        ("rx 0 tx 9 cpus 0", RefusalKind::Usage, "no transmit queue 9"),
        ("rx 0 cpus 9", RefusalKind::Missing, "none of the CPUs 9 may be used"),
    ] {
        let mut intent = on_device(2, "eth0", PolicyName::Bulk);
        intent.layout = Some(layout.parse().expect("a layout"));
        let refusal = place(&policy([intent]), &host, &Resolved::default()).expect_err(layout);
        assert_eq!(refusal.kind, kind, "{refusal}");
        assert!(refusal.message.contains(words), "{refusal}");
    }
}

#[test]
fn isolated_and_offline_cpus_get_no_interrupt_unless_they_are_asked_for_by_name() {
    let mut host = with_nic(two_nodes(2), 0, 4, 0);
    host.topology.isolated = "0".parse().expect("CPUs");
    host.topology.online = "0-2".parse().expect("CPUs");
    assert_eq!(objects(&host, "one-to-one"), ["rx 0,2 tx  irq 1 cpus 1", "rx 1,3 tx  irq 2 cpus 2"]);
    let mut intent = on_device(2, "eth0", PolicyName::Bulk);
    intent.cpus = Some("0,3".parse().expect("CPUs"));
    intent.layout = Some("one-to-one".parse().expect("a layout"));
    let plan = planned(&policy([intent]), &host, &Resolved::default()).expect("planned");
    let irqs: Vec<String> = plan
        .changes()
        .filter(|change| matches!(change.to(), Setting::Irq(_, IrqKnob::Affinity(..))))
        .map(|change| change.to().value())
        .collect();
    assert_eq!(irqs, ["0", "0", "0", "0"]);
}

#[test]
fn threads_stay_within_the_cpuset_of_their_service() {
    let mut host = with_nic(two_nodes(2), 0, 2, 0);
    let mut process = server(812, "memcached", &[&[300], &[301]]);
    process.cpuset = Some("2-3".parse().expect("CPUs"));
    host.processes.push(process);
    let mut intent = on_service(2, "memcached", PolicyName::Latency);
    intent.cpus = Some("1-2".parse().expect("CPUs"));
    let asked = policy([intent]);
    let resolved = Resolved::default().with(0, [model::Pid(812)]);
    let plan = planned(&asked, &host, &resolved).expect("planned");
    let threads: Vec<String> = plan
        .changes()
        .filter(|change| matches!(change.to(), Setting::Process(ProcessKnob::ThreadAffinity(..))))
        .map(|change| change.to().value())
        .collect();
    assert_eq!(threads, ["2", "2"]);
    host.processes[0].cpuset = None;
    host.processes.push(server(901, "memcached", &[&[300]]));
    let both = Resolved::default().with(0, [model::Pid(812), model::Pid(901)]);
    let plan = planned(&asked, &host, &both).expect("planned");
    let threads = plan
        .changes()
        .filter(|change| matches!(change.to(), Setting::Process(ProcessKnob::ThreadAffinity(..))));
    assert_eq!(threads.map(|change| change.to().value()).collect::<Vec<_>>(), ["1", "2", "1"], "dealt on");
    host.processes.pop();
    host.processes[0].cpuset = Some("7".parse().expect("CPUs"));
    let placement = place(&asked, &host, &resolved).expect("placed");
    let desired = plan::desired(&placement, &host).expect("desired");
    assert!(desired.notes.iter().any(|note| note.contains("is in the cpuset")), "{:?}", desired.notes);
}
