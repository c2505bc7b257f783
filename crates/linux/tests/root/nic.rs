//! Tests settings of a NIC and its driver, on a veth: its queues, offloads and steering files.

use apply::Knobs;
use libtest_mimic::{Failed, Trial};
use linux::{Cause, Errno, Kernel};
use model::host::PortRange;
use model::{
    ChannelKind, CoalesceParam, CpuSet, FlowRule, HostKnob, NicKnob, Offload, PacketSize, Qdisc, QdiscKind,
    QdiscOption, Qdiscs, QueueCoalesceParam, QueueIndex, QueueSpan, RingKind, RxQueue, RxQueueKnob, Setting,
    SteerTo, Sysctl, TxQueue, TxQueueKnob,
};
use testkit::wire::Wire;
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    let needs = &[Need::Root, Need::Wire];
    vec![
        test("queues_are_counted_set_and_put_back", needs, || {
            let wire = Wire::new(2)?;
            let device = wire.near0()?.id;
            let one = [
                Setting::Nic(device, NicKnob::Channels(ChannelKind::Rx, 1)),
                Setting::Nic(device, NicKnob::Channels(ChannelKind::Tx, 1)),
            ];
            there_and_back(&wire, &one)?;
            let mut kernel = Kernel::new();
            let many = [Setting::Nic(device, NicKnob::Channels(ChannelKind::Rx, 4711))];
            let before = kernel.read(&many)?;
            let error = kernel.write(&many).expect_err("more than the device can have");
            assert!(matches!(error.cause, Cause::Extack { errno: Errno::INVAL, .. }), "{error}");
            assert!(error.what.starts_with("near0: rx-channels 4711: ethtool channels-set"), "{error}");
            assert_eq!(kernel.read(&many)?, before);
            Ok(())
        }),
        test("offloads_are_switched_together_and_put_back", needs, || {
            let wire = Wire::new(1)?;
            let device = wire.near0()?.id;
            there_and_back(
                &wire,
                &[
                    Setting::Nic(device, NicKnob::Offload(Offload::Tso, false)),
                    Setting::Nic(device, NicKnob::Offload(Offload::Tso6, false)),
                    Setting::Nic(device, NicKnob::Offload(Offload::Gro, false)),
                ],
            )
        }),
        test("new_queues_begin_with_the_default_mask_of_their_namespace", needs, || {
            let wire = Wire::new(1)?;
            let mask: CpuSet = "0".parse()?;
            wire.near()?.run(|| std::fs::write("/proc/sys/net/core/rps_default_mask", mask.to_mask()))??;
            wire.in_near("ip link add later0 type veth peer name later1")?;
            let host = wire.observe()?;
            assert_eq!(host.rps_default_mask, mask);
            let later = host.device_named("later0").ok_or("later0")?;
            assert_eq!(later.rx_queues[0].rps_cpus, mask, "the premise");
            Ok(())
        }),
        test("the_ports_of_clients_are_those_of_their_namespace", needs, || {
            let wire = Wire::new(1)?;
            assert_eq!(wire.observe()?.local_ports, PortRange::default());
            wire.near()?.run(|| std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "1025 2048"))??;
            assert_eq!(wire.observe()?.local_ports, PortRange { first: 1025, last: 2048 });
            assert_eq!(wire.observe()?.reserved_ports, []);
            let set = || std::fs::write("/proc/sys/net/ipv4/ip_local_reserved_ports", "1030,1040-1050");
            wire.near()?.run(set)??;
            let reserved = [(1030, 1030), (1040, 1050)].map(|(first, last)| PortRange { first, last });
            assert_eq!(wire.observe()?.reserved_ports, reserved);
            Ok(())
        }),
        test("an_offload_that_is_fixed_is_refused_and_one_that_waits_is_requested", needs, || {
            let wire = Wire::new(1)?;
            let near0 = wire.near0()?;
            let of = |offload, on| Setting::Nic(near0.id, NicKnob::Offload(offload, on));
            let both = [of(Offload::Tso, false), of(Offload::RxHash, true)];
            assert!(
                !near0.offloads.contains_key(&Offload::RxHash),
                "the test requires that a veth has no hash"
            );
            let error = Kernel::new().write(&both).expect_err("fixed");
            assert!(matches!(error.cause, Cause::Absent { .. }), "{error}");
            assert!(error.to_string().contains("rx-hashing on; here it is off [fixed]"), "{error}");
            assert_eq!(wire.near0()?, near0);
            wire.in_near("ethtool -K near0 tx-checksumming off")?;
            let waits = wire.near0()?;
            assert_eq!(
                (waits.offloads.get(&Offload::Tso), waits.offloads_requested.get(&Offload::Tso)),
                (Some(&false), Some(&true))
            );
            there_and_back(&wire, &[of(Offload::Tso, false)])
        }),
        test("packets_above_64_kib_are_allowed_and_forbidden_again", needs, big_tcp),
        test("steering_files_are_written_in_the_devices_namespace_and_put_back", needs, || {
            let wire = Wire::new(2)?;
            let device = wire.near0()?.id;
            let (rx, tx) =
                (RxQueue { device, index: QueueIndex(1) }, TxQueue { device, index: QueueIndex(1) });
            let cpu: CpuSet = "0".parse()?;
            there_and_back(&wire, &[Setting::RxQueue(rx, RxQueueKnob::RpsCpus(cpu.clone()))])?;
            there_and_back(&wire, &[Setting::RxQueue(rx, RxQueueKnob::RpsFlowCount(4096))])?;
            there_and_back(&wire, &[Setting::TxQueue(tx, TxQueueKnob::XpsCpus(cpu))])?;
            there_and_back(
                &wire,
                &[Setting::TxQueue(tx, TxQueueKnob::XpsRxQueues(vec![QueueIndex(0), QueueIndex(1)]))],
            )
        }),
        test("a_count_of_flows_that_the_kernel_rounds_is_read_back_as_it_is", needs, || {
            let wire = Wire::new(1)?;
            let queue = RxQueue { device: wire.near0()?.id, index: QueueIndex(0) };
            let mut kernel = Kernel::new();
            kernel.write(&[Setting::RxQueue(queue, RxQueueKnob::RpsFlowCount(1000))])?;
            let read = kernel.read(&[Setting::RxQueue(queue, RxQueueKnob::RpsFlowCount(0))])?;
            assert_eq!(read, [Setting::RxQueue(queue, RxQueueKnob::RpsFlowCount(1024))]);
            Ok(())
        }),
        test("what_a_driver_lacks_is_said_in_the_kernels_words", needs, || {
            let wire = Wire::new(1)?;
            let device = wire.near0()?;
            assert_eq!((device.rings, device.coalesce, &device.rss), (None, None, &None));
            let queue = RxQueue { device: device.id, index: QueueIndex(0) };
            let rule: FlowRule = "tcp4 dst-port 80 queue 0".parse()?;
            for lacking in [
                Setting::Nic(device.id, NicKnob::Ring(RingKind::Rx, 512)),
                Setting::Nic(device.id, NicKnob::Coalescing(CoalesceParam::RxUsecs, 8)),
                Setting::Nic(device.id, NicKnob::RssKey(vec![1; 40])),
                Setting::RxQueue(queue, RxQueueKnob::Coalescing(QueueCoalesceParam::RxUsecs, 8)),
                Setting::Nic(device.id, NicKnob::RssContext(QueueSpan { first: 0, count: 1 }, true)),
                Setting::Nic(device.id, NicKnob::FlowRule(rule.flow, Some(SteerTo::Queue(QueueIndex(0))))),
            ] {
                let mut kernel = Kernel::new();
                let (read, written) = (
                    kernel.read(std::slice::from_ref(&lacking)),
                    kernel.write(std::slice::from_ref(&lacking)),
                );
                for error in [read.expect_err("lacking"), written.expect_err("lacking")] {
                    let (object, words) = (lacking.object().to_string(), error.to_string());
                    assert!(words.starts_with(&object) && words.contains(lacking.knob()), "{error}");
                    assert!(
                        error.number() == Some(Errno::OPNOTSUPP)
                            || matches!(error.cause, Cause::Absent { .. }),
                        "{error}"
                    );
                }
            }
            Ok(())
        }),
        test("queueing_disciplines_are_replaced_by_queue_and_put_back", needs, disciplines),
        test("a_discipline_that_cannot_be_recorded_is_recognised_and_not_written", needs, || {
            let wire = Wire::new(2)?;
            let device = wire.near0()?.id;
            wire.in_near("tc qdisc replace dev near0 root handle 1: bfifo limit 10000")?;
            let now =
                Kernel::new().read(&[Setting::Nic(device, NicKnob::Qdiscs(Qdiscs::Other(String::new())))])?;
            assert!(
                matches!(&now[..], [Setting::Nic(_, NicKnob::Qdiscs(Qdiscs::Other(kind)))] if kind == "bfifo"),
                "{now:?}"
            );
            assert!(!now[0].restorable());
            Kernel::new()
                .write(&[Setting::Nic(device, NicKnob::Qdiscs(Qdiscs::Other("htb".to_owned())))])
                .expect_err("refused");
            assert_eq!(wire.near0()?.qdiscs, Some(Qdiscs::Other("bfifo".to_owned())));
            Ok(())
        }),
        test("numbers_of_the_host_are_read_and_not_shown_in_other_namespaces", needs, || {
            let wire = Wire::new(1)?;
            assert!(wire.observe()?.sysctls.is_empty());
            let text = std::fs::read_to_string("/proc/sys/net/core/netdev_budget")?;
            let read = Kernel::new().read(&[Setting::Host(HostKnob::Sysctl(Sysctl::NetdevBudget, 0))])?;
            assert_eq!(read, [Setting::Host(HostKnob::Sysctl(Sysctl::NetdevBudget, text.trim().parse()?))]);
            Ok(())
        }),
    ]
}

/// Changes the kernel's default qdiscs to one qdisc per queue, then to one for all queues, then to a
/// different one per queue under a chosen handle, and back.
fn disciplines() -> Result<(), Failed> {
    let wire = Wire::new(3)?;
    let device = wire.near0()?.id;
    let mut short = Qdisc::of(QdiscKind::Pfifo);
    short.options.insert(QdiscOption::Limit, 77);
    let fast = Qdisc::of(QdiscKind::PfifoFast);
    let ways = [
        Qdiscs::PerQueue { handle: None, queues: vec![fast.clone(), short.clone(), fast.clone()] },
        Qdiscs::Whole(Qdisc { handle: Some(0x17), ..short.clone() }),
        Qdiscs::PerQueue {
            handle: Some(1),
            queues: vec![short.clone(), fast, Qdisc { handle: Some(0x20), ..short }],
        },
    ];
    let mut kernel = Kernel::new();
    let before = wire.near0()?.qdiscs.ok_or("it is up")?;
    assert_eq!(before, Qdiscs::Default(vec!["noqueue".to_owned()]), "the premise");
    let mut was = vec![before];
    for to in &ways {
        there_and_back(&wire, &[Setting::Nic(device, NicKnob::Qdiscs(to.clone()))])?;
        kernel.write(&[Setting::Nic(device, NicKnob::Qdiscs(to.clone()))])?;
        was.push(to.clone());
    }
    for back in was.iter().rev() {
        let back = Setting::Nic(device, NicKnob::Qdiscs(back.clone()));
        kernel.write(std::slice::from_ref(&back))?;
        assert_eq!(kernel.read(std::slice::from_ref(&back))?, [back]);
    }
    // The qdisc of a single queue is replaced while those of the other queues stay.
    let one = |limit| {
        let mut pfifo = Qdisc::of(QdiscKind::Pfifo);
        pfifo.options.insert(QdiscOption::Limit, limit);
        let queues = vec![Qdisc::of(QdiscKind::Pfifo), pfifo, Qdisc::of(QdiscKind::Pfifo)];
        Setting::Nic(device, NicKnob::Qdiscs(Qdiscs::PerQueue { handle: Some(1), queues }))
    };
    kernel.write(&[one(5)])?;
    let handles = || wire.in_near("tc qdisc show dev near0");
    let first = handles()?;
    kernel.write(&[one(6)])?;
    let second = handles()?;
    let changed: Vec<&str> = second.lines().filter(|line| !first.contains(*line)).collect();
    assert_eq!(changed.len(), 1, "{first}{second}");
    assert!(changed[0].contains("parent 1:2 limit 6p"), "{changed:?}");
    Ok(())
}

/// Tests BIG TCP, which a veth accepts.
fn big_tcp() -> Result<(), Failed> {
    let wire = Wire::new(1)?;
    let device = wire.near0()?.id;
    let of = |size, bytes| Setting::Nic(device, NicKnob::PacketSize(size, bytes));
    let sizes = wire.near0()?.packet_sizes;
    assert_eq!(sizes.tso_max_size, Some(PacketSize::MAX), "a veth accepts the largest size");
    there_and_back(&wire, &[of(PacketSize::Gso, 185_000), of(PacketSize::Gro, 185_000)])?;
    there_and_back(&wire, &[of(PacketSize::GsoIpv4, 150_000)])?;

    // The kernel would apply a small limit to IPv4 packets as well.
    let mut kernel = Kernel::new();
    kernel.write(&[of(PacketSize::GsoIpv4, 150_000), of(PacketSize::GroIpv4, 30_000)])?;
    kernel.write(&[of(PacketSize::Gso, 185_000), of(PacketSize::Gro, 185_000)])?;
    kernel.write(&[of(PacketSize::Gso, 65_536), of(PacketSize::Gro, 65_536)])?;
    let ipv4 = [of(PacketSize::GsoIpv4, 150_000), of(PacketSize::GroIpv4, 30_000)];
    assert_eq!(kernel.read(&ipv4)?, ipv4);

    let shown = wire.in_near("ip -d link show dev near0")?;
    assert!(shown.contains("gso_max_size 65536") && shown.contains("gro_max_size 65536"), "{shown}");
    let error =
        kernel.write(&[of(PacketSize::Gso, PacketSize::MAX + 1)]).expect_err("more than the device accepts");
    assert_eq!(error.number(), Some(Errno::INVAL), "{error}");
    assert!(error.to_string().starts_with("near0: gso_max_size 524281: rt-link setlink"), "{error}");
    assert_eq!(wire.near0()?.packet_sizes.gso_max_size, Some(65_536));
    Ok(())
}

/// Writes settings, reads them back, compares them with what is observed, and restores the device to its
/// former state.
pub(crate) fn there_and_back(wire: &Wire, wanted: &[Setting]) -> Result<(), Failed> {
    let before = wire.near0()?;
    let mut kernel = Kernel::new();
    let original = kernel.read(wanted)?;
    assert_ne!(original, wanted, "the test requires a change");
    kernel.write(wanted)?;
    assert_eq!(kernel.read(wanted)?, wanted);
    assert_ne!(without_moving(&wire.near0()?), without_moving(&before), "it is observed");
    kernel.write(&original)?;
    assert_eq!(kernel.read(wanted)?, original);
    assert_eq!(without_moving(&wire.near0()?), without_moving(&before));
    Ok(())
}

/// Returns the device without its NAPIs: a veth gets new NAPIs with every change of its queues or of GRO.
fn without_moving(device: &model::host::Device) -> model::host::Device {
    let mut device = device.clone();
    device.napis.clear();
    for queue in &mut device.rx_queues {
        queue.napi = None;
    }
    device
}
