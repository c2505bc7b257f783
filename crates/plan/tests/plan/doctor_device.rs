//! Tests the rules on whole devices: that each reports where it applies, and not where it must not.

use model::host::{Coalesce, CpuPressure, DevicePressure, Pair, Pressure, Rings, TxQueueState};
use model::{Cpu, CpuSet, Finding, Host, Nanoseconds, QueueIndex};
use plan::doctor;

use crate::made::{Counted, delivered, device, host, set_napis, with_irqs};
use crate::read_aloud;

fn nic() -> Host {
    let mut host = host();
    host.devices.push(device(2, "eth0", &[300, 301]));
    host
}

/// A NIC with two interrupts, which go to these CPUs.
fn to_cpus(cpus: [&str; 2]) -> Host {
    let mut host = with_irqs(nic(), 30);
    for (irq, cpus) in host.irqs.iter_mut().zip(cpus) {
        irq.effective_affinity = cpus.parse().expect("CPUs");
    }
    host
}

fn found<'f>(findings: &'f [Finding], rule: &str) -> Option<&'f Finding> {
    findings.iter().find(|finding| finding.rule == rule)
}

fn says(host: &Host, rule: &str) -> Option<String> {
    found(&doctor(host, None, &[]), rule).map(|finding| finding.summary.clone())
}

#[test]
fn interrupts_on_one_cpu_are_piled_up_and_spread_ones_are_not() {
    let mut host = to_cpus(["1", "1"]);
    assert_eq!(says(&host, "irqs-piled-up").as_deref(), Some("all 2 interrupts of its queues go to CPU 1"));
    host.irqs[1].effective_affinity = "2".parse().expect("a CPU");
    assert_eq!(says(&host, "irqs-piled-up"), None);
}

#[test]
fn an_interrupt_on_an_isolated_cpu_is_reported_with_where_else_it_could_go() {
    let mut host = to_cpus(["1", "2"]);
    host.topology.isolated = "2-3".parse().expect("CPUs");
    let findings = doctor(&host, None, &[]);
    let finding = found(&findings, "irq-on-isolated-cpu").expect("found");
    assert_eq!(finding.remedy.as_deref(), Some("echo 0-1 > /proc/irq/31/smp_affinity_list"));
}

#[test]
fn a_ring_must_hold_what_comes_while_interrupts_are_suspended() {
    let mut host = nic();
    set_napis(&mut host.devices[0], 100, 20, 20);
    host.devices[0].rings =
        Some(Rings { rx: Pair { current: 512, max: 8192 }, tx: Pair { current: 512, max: 8192 } });
    let busy = Counted {
        packets: 60_000,
        share: 90,
        interrupt_polls: 100,
        timer_polls: 100,
        timer_empty: 0,
        application_polls: 2_000,
        armed: 100,
        suspended: 90,
    };
    let counts = delivered([busy.on(300)]);
    let findings = doctor(&host, Some(&counts), &[]);
    let finding = found(&findings, "ring-shorter-than-suspension").expect("1200 packets in 20 ms");
    assert!(finding.remedy.as_ref().expect("a remedy").contains("rx-ring=2048"), "{finding:?}");
    host.devices[0].rings = Some(Rings { rx: Pair { current: 2048, max: 8192 }, ..Rings::default() });
    assert_eq!(found(&doctor(&host, Some(&counts), &[]), "ring-shorter-than-suspension"), None);
}

#[test]
fn pressure_is_reported_where_it_was_and_nowhere_else() {
    let mut host = nic();
    host.devices[0].rings = Some(Rings { rx: Pair { current: 512, max: 8192 }, ..Rings::default() });
    let cpu = |cpu, dropped, time_squeeze, waited_ms| CpuPressure {
        cpu: Cpu(cpu),
        processed: 1_000,
        dropped,
        time_squeeze,
        ksoftirqd_ran: Nanoseconds::from_millis(20),
        ksoftirqd_waited: Nanoseconds::from_millis(waited_ms),
    };
    let mut pressure = Pressure {
        interval: Nanoseconds::from_millis(2_000),
        cpus: vec![cpu(0, 7, 0, 0), cpu(1, 0, 40, 0), cpu(2, 0, 0, 900), cpu(3, 0, 5, 100)],
        devices: vec![DevicePressure {
            device: host.devices[0].id,
            rx_packets: 9_000,
            rx_dropped: 1,
            rx_missed: 9,
        }],
    };
    host.pressure = Some(pressure.clone());
    let findings = doctor(&host, None, &[]);
    let found: Vec<(&str, &str)> = findings.iter().map(|f| (f.rule.as_str(), f.object.as_str())).collect();
    assert_eq!(
        found,
        [
            ("rx-drops", "eth0"),
            ("backlog-full", "CPU 0"),
            ("time-squeeze", "CPU 1"),
            ("ksoftirqd-starved", "CPU 2")
        ]
    );
    insta::assert_snapshot!(read_aloud::findings(&findings));
    pressure.cpus = vec![cpu(0, 0, 0, 0)];
    pressure.devices.clear();
    host.pressure = Some(pressure);
    assert!(doctor(&host, None, &[]).is_empty());
}

#[test]
fn a_driver_that_adapts_to_deferred_interrupts_is_reported() {
    let mut host = nic();
    host.devices[0].coalesce = Some(Coalesce { adaptive_rx: Some(true), ..Coalesce::default() });
    assert_eq!(says(&host, "adaptive-coalescing"), None, "nothing is deferred");
    set_napis(&mut host.devices[0], 100, 200, 0);
    assert!(says(&host, "adaptive-coalescing").is_some());
    host.devices[0].coalesce = Some(Coalesce { adaptive_rx: Some(false), ..Coalesce::default() });
    assert_eq!(says(&host, "adaptive-coalescing"), None);
}

#[test]
fn steering_in_software_is_needless_with_a_queue_for_every_cpu() {
    let mut host = nic();
    host.devices[0].rx_queues[0].rps_cpus = "0-3".parse().expect("CPUs");
    assert_eq!(says(&host, "rps-needless"), None, "two queues for four CPUs");
    host.topology.online = "0-1".parse().expect("CPUs");
    assert!(says(&host, "rps-needless").is_some());
    host.devices[0].kind = "veth".to_owned();
    assert_eq!(says(&host, "rps-needless"), None);
}

#[test]
fn transmit_queues_without_cpus_are_reported_once_there_are_several() {
    let mut host = nic();
    let queue = |index| TxQueueState {
        index: QueueIndex(index),
        napi: None,
        xps_cpus: CpuSet::new(),
        xps_rxqs: Vec::new(),
    };
    host.devices[0].tx_queues = vec![queue(0)];
    assert_eq!(says(&host, "xps-missing"), None);
    host.devices[0].tx_queues.push(queue(1));
    assert!(says(&host, "xps-missing").is_some());
    host.devices[0].tx_queues[1].xps_cpus = "1".parse().expect("a CPU");
    assert_eq!(says(&host, "xps-missing"), None);
}

#[test]
fn a_napi_of_two_queues_is_reported() {
    let mut host = nic();
    assert_eq!(says(&host, "napi-shared"), None);
    let first = host.devices[0].rx_queues[0].napi;
    host.devices[0].rx_queues[1].napi = first;
    assert!(says(&host, "napi-shared").is_some());
}
