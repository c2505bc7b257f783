//! Tests NICs that have their own queues, interrupts and rings, in an emulated guest whose NICs are connected
//! in pairs.

use std::net::UdpSocket;
use std::time::Duration;

use apply::Knobs;
use libtest_mimic::{Failed, Trial};
use linux::{Kernel, Netns};
use model::host::{Confidence, Irq};
use model::nic::{CoalesceParam, RingKind};
use model::{
    Cpu, CpuSet, Host, IrqKnob, IrqNumber, NapiKnob, NicKnob, QueueIndex, RxQueue, Setting, Threading,
};
use testkit::wire::{Wire, run};
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const VIRTIO: &[Need] = &[Need::Root, Need::Wire, Need::VirtioNics];
    const IGB: &[Need] = &[Need::Root, Need::Wire, Need::IgbNics];
    const THREADS: &[Need] = &[Need::Root, Need::Wire, Need::ThreadedBusy];
    vec![
        test("nics/a_virtio_nics_queues_have_napis_and_interrupts_by_name", VIRTIO, virtio_edges),
        test(
            "nics/an_interrupts_affinity_is_written_read_back_and_put_back",
            VIRTIO,
            affinity_there_and_back,
        ),
        test("nics/an_interrupt_is_not_given_to_a_cpu_that_is_gone", VIRTIO, cpu_goes_and_comes),
        test("nics/an_igb_states_the_interrupt_of_each_napi", IGB, igb_edges),
        test("nics/rings_channels_and_moderation_are_those_that_ethtool_lists", IGB, as_ethtool_lists),
        test("nics/rings_moderation_and_rss_are_written_and_put_back", IGB, there_and_back),
        test("nics/no_nic_here_stamps_every_packet_that_it_receives", IGB, no_stamps),
        test("nics/a_napis_thread_polls_without_a_pause_and_is_put_back", THREADS, busy_polling_thread),
    ]
}

fn input_irqs(host: &Host) -> Vec<&Irq> {
    host.irqs.iter().filter(|irq| irq.name.contains("-input.")).collect()
}

fn virtio_edges() -> Result<(), Failed> {
    let wire = Wire::between("virtio")?;
    let host = wire.observe()?;
    let near = wire.near0()?;
    assert_eq!((near.kind.as_str(), near.rx_queues.len(), near.napis.len()), ("virtio_net", 2, 2));
    let napis: Vec<_> = near.rx_queues.iter().filter_map(|queue| queue.napi).collect();
    assert!(napis.iter().all(|edge| edge.confidence == Confidence::Stated), "{napis:?}");
    let named: Vec<_> = near.napis.iter().filter_map(|napi| napi.irq).collect();
    assert_eq!(named.len(), 2, "{:?}", near.napis);
    for (edge, irq) in named.iter().zip(input_irqs(&host)) {
        assert_eq!((edge.confidence, edge.irq), (Confidence::ByName, irq.number));
    }
    Ok(())
}

fn affinity(irq: IrqNumber) -> Result<CpuSet, Failed> {
    Ok(run(&format!("cat /proc/irq/{}/smp_affinity_list", irq.0))?.parse()?)
}

fn only(cpu: u32) -> CpuSet {
    [Cpu(cpu)].into_iter().collect()
}

fn affinity_there_and_back() -> Result<(), Failed> {
    let wire = Wire::between("virtio")?;
    let host = wire.observe()?;
    let irq = input_irqs(&host).first().ok_or("no interrupt")?.number;
    let mut kernel = Kernel::new();
    let original = kernel.read(&[Setting::Irq(irq, IrqKnob::Affinity(CpuSet::new()))])?;
    assert_eq!(original, [Setting::Irq(irq, IrqKnob::Affinity(affinity(irq)?))]);
    for cpu in [1, 0] {
        kernel.write(&[Setting::Irq(irq, IrqKnob::Affinity(only(cpu)))])?;
        assert_eq!(affinity(irq)?, only(cpu));
    }
    kernel.write(&original)?;
    assert_eq!(kernel.read(&original)?, original);
    Ok(())
}

/// Keeps CPU 1 offline until this value is dropped.
struct WithoutCpu1;

impl WithoutCpu1 {
    fn new() -> Result<Self, Failed> {
        let gone = Self;
        std::fs::write("/sys/devices/system/cpu/cpu1/online", "0")?;
        Ok(gone)
    }
}

impl Drop for WithoutCpu1 {
    fn drop(&mut self) {
        // If the CPU does not come back online, the next test that needs it fails with the reason.
        let _ = std::fs::write("/sys/devices/system/cpu/cpu1/online", "1");
    }
}

fn cpu_goes_and_comes() -> Result<(), Failed> {
    let wire = Wire::between("virtio")?;
    let host = wire.observe()?;
    let irq = input_irqs(&host).first().ok_or("no interrupt")?.number;
    let pinned = [Setting::Irq(irq, IrqKnob::Affinity(only(1)))];
    let mut kernel = Kernel::new();
    let original = kernel.read(&pinned)?;
    kernel.write(&pinned)?;
    {
        let _gone = WithoutCpu1::new()?;
        let cpus: Vec<_> = wire.observe()?.topology.cpus.iter().map(|cpu| cpu.cpu).collect();
        assert_eq!(cpus, [Cpu(0)]);
        let error = kernel.write(&pinned).expect_err("the CPU is offline");
        assert!(error.to_string().contains(&format!("irq {}", irq.0)), "{error}");
    }
    assert_eq!(wire.observe()?.topology.cpus.len(), 2);
    // The kernel does not move the interrupt back by itself, so its affinity must be written again.
    kernel.write(&pinned)?;
    assert_eq!(affinity(irq)?, only(1));
    kernel.write(&original)?;
    Ok(())
}

fn igb_edges() -> Result<(), Failed> {
    let wire = Wire::between("igb")?;
    let host = wire.observe()?;
    let near = wire.near0()?;
    for queue in &near.rx_queues {
        let edge = queue.napi.ok_or("a queue without a NAPI")?;
        assert_eq!(edge.confidence, Confidence::Stated);
        let napi = near.napis.iter().find(|napi| napi.id == edge.napi).ok_or("the NAPI is missing")?;
        let irq = napi.irq.ok_or("a NAPI without an interrupt")?;
        assert_eq!(irq.confidence, Confidence::Stated);
        let name = &host.irq(irq.irq).ok_or("the interrupt is missing")?.name;
        assert!(name.ends_with(&format!("-rx-{}", queue.id.index.0)), "{name}");
    }
    assert_eq!(near.rx_queues.len(), 2);
    Ok(())
}

fn as_ethtool_lists() -> Result<(), Failed> {
    let wire = Wire::between("igb")?;
    for change in ["-G near0 rx 512", "-L near0 combined 1", "-C near0 rx-usecs 50"] {
        wire.in_near(&format!("ethtool {change}"))?;
    }
    let near = wire.near0()?;
    let listed = |show: &str, heading: &str| -> Result<Vec<u32>, Failed> {
        let listed = wire.in_near(&format!("ethtool {show} near0"))?;
        Ok(listed.lines().filter_map(|line| line.strip_prefix(heading)?.trim().parse().ok()).collect())
    };
    let rings = near.rings.ok_or("an igb has rings")?;
    assert_eq!([rings.rx.max, rings.rx.current], listed("-g", "RX:")?[..]);
    assert_eq!(rings.rx.current, 512);
    let combined = near.channels.ok_or("an igb has channels")?.combined;
    assert_eq!([combined.max, combined.current], listed("-l", "Combined:")?[..]);
    assert_eq!((combined.current, near.rx_queues.len()), (1, 1));
    let moderation = near.coalesce.ok_or("an igb moderates")?;
    assert_eq!(moderation.rx_usecs.into_iter().collect::<Vec<_>>(), listed("-c", "rx-usecs:")?);
    assert_eq!(moderation.rx_usecs, Some(50));
    Ok(())
}

fn there_and_back() -> Result<(), Failed> {
    let wire = Wire::between("igb")?;
    let device = wire.near0()?.id;
    let mut kernel = Kernel::new();
    for wanted in [
        Setting::Nic(device, NicKnob::Ring(RingKind::Rx, 1024)),
        Setting::Nic(device, NicKnob::Coalescing(CoalesceParam::RxUsecs, 100)),
        Setting::Nic(device, NicKnob::RssTable(vec![1; 128])),
    ] {
        let wanted = [wanted];
        let original = kernel.read(&wanted)?;
        assert_ne!(original, wanted, "the test requires a different value");
        kernel.write(&wanted)?;
        assert_eq!(kernel.read(&wanted)?, wanted);
        kernel.write(&original)?;
        assert_eq!(kernel.read(&wanted)?, original);
    }
    Ok(())
}

/// Checks that no emulated NIC timestamps ordinary packets: the igb is an 82576, which timestamps only PTP
/// packets. If this test fails, such timestamps can be used to check estimates of response times.
///
/// Kernel: 6.18, `drivers/net/ethernet/intel/igb/igb_ptp.c` `igb_ptp_set_timestamp_mode()`.
fn no_stamps() -> Result<(), Failed> {
    for nics in ["igb", "virtio"] {
        let wire = Wire::between(nics)?;
        let said = wire.in_near("ethtool -T near0")?;
        let filters = said.split("Hardware Receive Filter Modes:").nth(1).unwrap_or_default();
        let stamps_all = filters.lines().any(|line| line.split_whitespace().next() == Some("all"));
        assert!(!stamps_all, "{nics}: {said}");
        assert!(
            nics != "igb" || filters.contains("ptpv2-event"),
            "the packets that the NIC timestamps: {said}"
        );
    }
    Ok(())
}

fn busy_polling_thread() -> Result<(), Failed> {
    let wire = Wire::new(1)?;
    let queue = RxQueue { device: wire.near0()?.id, index: QueueIndex(0) };
    let wanted = [Setting::Napi(queue, NapiKnob::Threaded(Threading::BusyPoll))];
    let mut kernel = Kernel::new();
    let original = kernel.read(&wanted)?;
    kernel.write(&wanted)?;
    assert_eq!(kernel.read(&wanted)?, wanted);
    let thread = wire.near0()?.napis[0].kthread.ok_or("a threaded NAPI has a thread")?;
    // The thread starts with the first packet. Kernel: 7.3, `net/core/dev.c` `napi_thread_wait()`.
    let far = Netns::named(&wire.far)?.run(|| UdpSocket::bind("192.0.2.2:0"))??;
    for _ in 0..10 {
        // No socket listens on that port, so sending occasionally fails.
        let _ = far.send_to(b"x", "192.0.2.1:9");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Without traffic, a thread that waits for packets sleeps (state S) all the time; a thread that polls for
    // them runs (state R), except for moments between two rounds.
    let state = || -> Result<char, Failed> {
        let stat = std::fs::read_to_string(format!("/proc/{thread}/stat"))?;
        let behind_the_name = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        behind_the_name.ok_or_else(|| format!("no state in {stat}").into())
    };
    let mut states = String::new();
    for _ in 0..20 {
        states.push(state()?);
        std::thread::sleep(Duration::from_millis(10));
    }
    kernel.write(&original)?;
    assert_eq!(kernel.read(&wanted)?, original);
    let running = states.matches('R').count();
    assert!(running >= 5, "the thread polls although no packet arrives: {states}");
    Ok(())
}
