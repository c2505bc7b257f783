//! Findings about settings of a whole device that hinder packet delivery: interrupts, rings, moderation and
//! steering.

use model::host::{Device, Pair, Pressure};
use model::{CoalesceParam, CpuSet, NicKnob, RingKind, RxQueueKnob, Setting, Severity, TxQueue, TxQueueKnob};

use super::case::{Case, NapiCase};
use super::remedy;
use super::rule::{Causes, DoctorRule, Found};

/// The rules of this family.
pub(super) const RULES: &[DoctorRule] = &[
    DoctorRule {
        id: "irqs-piled-up",
        doc: "All interrupts of a device go to one CPU although other CPUs are online.",
        find: irqs_piled_up,
    },
    DoctorRule {
        id: "irq-inferred",
        doc: "The driver does not report the interrupts of its queues: they were inferred, and are pinned only if allowed.",
        find: irq_inferred,
    },
    DoctorRule {
        id: "driver-forgets-napi",
        doc: "According to its source, the driver forgets NAPI settings when it recreates its queues.",
        find: driver_forgets_napi,
    },
    DoctorRule {
        id: "driver-forgets-affinity",
        doc: "According to its source, the driver forgets interrupt affinity when it requests its interrupts again.",
        find: driver_forgets_affinity,
    },
    DoctorRule {
        id: "irq-on-isolated-cpu",
        doc: "An interrupt goes to an isolated CPU (isolcpus).",
        find: irq_on_isolated_cpu,
    },
    DoctorRule {
        id: "ring-shorter-than-suspension",
        doc: "At the observed rate, the ring fills up before irq-suspend-timeout expires.",
        find: ring_shorter_than_suspension,
    },
    DoctorRule {
        id: "rx-drops",
        doc: "The device or its driver dropped packets during the observation.",
        find: rx_drops,
    },
    DoctorRule {
        id: "backlog-full",
        doc: "A CPU's backlog was full and dropped packets during the observation.",
        find: backlog_full,
    },
    DoctorRule {
        id: "time-squeeze",
        doc: "Receive softirqs repeatedly exhausted their budget during the observation.",
        find: time_squeeze,
    },
    DoctorRule {
        id: "ksoftirqd-starved",
        doc: "ksoftirqd had packets to deliver and waited for its CPU.",
        find: ksoftirqd_starved,
    },
    DoctorRule {
        id: "adaptive-coalescing",
        doc: "The driver adapts interrupt moderation while the kernel defers the same interrupts.",
        find: adaptive_coalescing,
    },
    DoctorRule {
        id: "rps-needless",
        doc: "RPS forwards packets although the device has a queue for every CPU.",
        find: rps_needless,
    },
    DoctorRule {
        id: "xps-missing",
        doc: "The device has several transmit queues, but no CPU has a dedicated one.",
        find: xps_missing,
    },
    DoctorRule {
        id: "offload-not-as-requested",
        doc: "An offload is not as requested, because the driver or another offload does not allow it.",
        find: offload_not_as_requested,
    },
    DoctorRule {
        id: "napi-shared",
        doc: "One NAPI serves several receive queues: they cannot be given to different applications.",
        find: napi_shared,
    },
];

/// The minimum number of exhausted softirqs per second to report.
const SQUEEZES_PER_SECOND_MIN: u64 = 10;

/// The maximum share of the time for which `ksoftirqd` may wait for its CPU, in percent.
const KSOFTIRQD_WAITED_PERCENT_MAX: u64 = 10;

fn irqs_piled_up(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    if case.host.topology.online.len() < 2 {
        return found;
    }
    for device in &case.host.devices {
        let irqs: Vec<_> = device.napis.iter().filter_map(|napi| case.host.irq(napi.irq?.irq)).collect();
        let targets: CpuSet = irqs.iter().flat_map(|irq| irq.effective_affinity.iter()).collect();
        if irqs.len() < 2 || targets.len() != 1 {
            continue;
        }
        let numbers: Vec<String> = irqs.iter().map(|irq| irq.number.to_string()).collect();
        found.push(
            Found::new(
                Severity::Warning,
                device.id,
                format!("all {} interrupts of its queues go to CPU {targets}", irqs.len()),
            )
            .evidence(format!("effective affinity of interrupts {} is {targets}", numbers.join(", ")))
            .evidence(format!("CPUs that run: {}", case.host.topology.online))
            .remedy(format!(
                "in a policy file, under [device.{}]: delivery = \"{}\" and cpus = \"{}\"; then netpolicy apply",
                device.id,
                remedy::mode_in_force(device, case),
                near(device, case)
            )),
        );
    }
    found
}

fn irq_inferred(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for device in &case.host.devices {
        let mut unsure = Vec::new();
        for queue in &device.rx_queues {
            let napi = queue.napi.and_then(|edge| device.napis.iter().find(|napi| napi.id == edge.napi));
            let Some(edge) = napi.and_then(|napi| napi.irq) else { continue };
            let irq = case.host.irq(edge.irq);
            let certainty = case.context.recipes.nics.irq_certainty(device, queue.id, edge, irq);
            if !certainty.is_of_driver() {
                let name = irq.map_or_else(String::new, |irq| format!(" `{}`", irq.name));
                unsure.push(format!("{} → irq {}{name}, {}", queue.id, edge.irq, certainty.words()));
            }
        }
        if unsure.is_empty() {
            continue;
        }
        let summary = format!("the driver does not report the queues of {} of its interrupts", unsure.len());
        let one = Found::new(Severity::Note, device.id, summary);
        let one = unsure.into_iter().take(UNSURE_MAX).fold(one, Found::evidence);
        found.push(one.remedy("netpolicy apply --allow-inferred, if these are correct"));
    }
    found
}

/// The maximum number of queues with inferred interrupts to name.
const UNSURE_MAX: usize = 4;

fn driver_forgets_napi(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for device in &case.host.devices {
        let asked = case.napis.values().any(|napi| napi.device.id == device.id && napi.asked.is_some());
        let fact = case.context.recipes.nics.of(device).and_then(|facts| facts.napi_config_persists.as_ref());
        let Some(fact) = fact.filter(|fact| asked && !fact.is) else { continue };
        found.push(
            Found::new(
                Severity::Note,
                device.id,
                "its NAPIs lose their settings whenever the driver recreates its queues, for example on down and up or when rings are resized",
            )
            .evidence(format!("{}, Linux {}: {}", device.kind, case.context.recipes.nics.kernel, fact.source()))
            .remedy("netpolicy daemon sets them again"),
        );
    }
    found
}

fn driver_forgets_affinity(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for device in &case.host.devices {
        let irqs = device.napis.iter().filter_map(|napi| case.host.irq(napi.irq?.irq));
        let online = &case.host.topology.online;
        let placed = irqs.filter(|irq| irq.affinity.intersection(online) != *online).count();
        let asked = case.napis.values().any(|napi| napi.device.id == device.id && napi.asked.is_some());
        let fact = case.context.recipes.nics.of(device).and_then(|facts| facts.irq_affinity_kept.as_ref());
        let Some(fact) = fact.filter(|fact| asked && placed > 0 && !fact.is) else { continue };
        found.push(
            Found::new(
                Severity::Note,
                device.id,
                format!("{placed} of its interrupts are placed, and may lose their CPUs whenever the driver requests them again"),
            )
            .evidence(format!("{}, Linux {}: {}", device.kind, case.context.recipes.nics.kernel, fact.source()))
            .remedy("netpolicy daemon places them again"),
        );
    }
    found
}

/// Returns the online, non-isolated CPUs of the device's node; if there are none, all online, non-isolated
/// CPUs.
fn near(device: &Device, case: &Case<'_>) -> CpuSet {
    let topology = &case.host.topology;
    let free = topology.online.difference(&topology.isolated);
    let own: CpuSet = topology.cpus.iter().filter(|cpu| cpu.node == device.node).map(|cpu| cpu.cpu).collect();
    let near = own.intersection(&free);
    if near.is_empty() { free } else { near }
}

fn irq_on_isolated_cpu(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let isolated = &case.host.topology.isolated;
    let mut found = Vec::new();
    for napi in case.napis.values() {
        let Some(irq) = napi.napi.irq.and_then(|edge| case.host.irq(edge.irq)) else { continue };
        let there = irq.effective_affinity.intersection(isolated);
        if there.is_empty() {
            continue;
        }
        found.push(
            Found::new(
                Severity::Warning,
                napi.name(),
                format!("its interrupt {} goes to CPU {there}, which is isolated", irq.number),
            )
            .evidence(format!("isolated CPUs: {isolated}"))
            .remedy(format!(
                "echo {} > /proc/irq/{}/smp_affinity_list",
                near(napi.device, case),
                irq.number
            )),
        );
    }
    found
}

fn ring_shorter_than_suspension(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let Some(delivered) = case.delivered else { return Vec::new() };
    let mut found = Vec::new();
    for napi in case.napis.values() {
        let (Some(span), Some(rings), Some(packets)) =
            (napi.napi.irq_suspend_timeout.filter(|span| !span.is_zero()), napi.device.rings, napi.packets())
        else {
            continue;
        };
        let needed = u128::from(packets) * u128::from(span.0) / u128::from(delivered.interval.0);
        let needed = u32::try_from(needed).unwrap_or(u32::MAX);
        if rings.rx.current == 0 || needed <= rings.rx.current {
            continue;
        }
        let mut finding = Found::new(
            Severity::Warning,
            napi.name(),
            format!(
                "an application that stalls for irq-suspend-timeout ({span}) overflows its ring of {}",
                rings.rx.current
            ),
        )
        .evidence(format!("{} packets arrive in {span} at {}", needed, case.rate(packets)));
        finding = match larger(rings.rx, needed) {
            Some(size) => finding.remedy(ring_of(napi.device, size, case)),
            None => finding.evidence("the ring already has its maximum size: use a shorter timeout"),
        };
        found.push(finding);
    }
    found
}

/// Returns the next power of two that is at least `needed`, within the device's limit; `None` if the ring
/// already has at least that size.
fn larger(ring: Pair, needed: u32) -> Option<u32> {
    let size = needed.checked_next_power_of_two().unwrap_or(u32::MAX).min(ring.max);
    (size > ring.current).then_some(size)
}

fn ring_of(device: &Device, size: u32, case: &Case<'_>) -> String {
    let like = Setting::Nic(device.id, NicKnob::Ring(RingKind::Rx, size));
    remedy::set_value(device, case, &like, &format!("rx-ring={size}"))
}

fn pressure<'h>(case: &Case<'h>) -> Option<&'h Pressure> {
    case.host.pressure.as_ref().filter(|pressure| !pressure.interval.is_zero())
}

fn rate(count: u64, pressure: &Pressure) -> u64 {
    let rate = u128::from(count) * 1_000_000_000 / u128::from(pressure.interval.0);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

fn rx_drops(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let Some(pressure) = pressure(case) else { return Vec::new() };
    let mut found = Vec::new();
    for counted in pressure.devices.iter().filter(|d| d.rx_dropped + d.rx_missed > 0) {
        let Some(device) = case.host.device(counted.device) else { continue };
        // The kernel's count of dropped packets includes packets without a receiver, for example frames of
        // unknown protocols.
        let severity = if counted.rx_missed > 0 { Severity::Problem } else { Severity::Warning };
        let mut finding = Found::new(
            severity,
            device.id,
            format!(
                "{} packets were dropped in {}",
                counted.rx_dropped + counted.rx_missed,
                pressure.interval
            ),
        )
        .evidence(format!(
            "rx_missed_errors {}, rx_dropped {}, of {} packets",
            counted.rx_missed, counted.rx_dropped, counted.rx_packets
        ));
        let rings =
            device.rings.map(|rings| rings.rx).filter(|ring| counted.rx_missed > 0 && ring.current > 0);
        if let Some(size) = rings.and_then(|ring| larger(ring, ring.current.saturating_mul(2))) {
            finding = finding.remedy(ring_of(device, size, case));
        }
        found.push(finding);
    }
    found
}

fn backlog_full(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let Some(pressure) = pressure(case) else { return Vec::new() };
    let full = pressure.cpus.iter().filter(|cpu| cpu.dropped > 0);
    full.map(|cpu| {
        Found::new(
            Severity::Problem,
            format!("CPU {}", cpu.cpu),
            format!("its backlog was full: {} packets were dropped", cpu.dropped),
        )
        .evidence(format!("in {}, next to {} that were processed", pressure.interval, cpu.processed))
        .remedy("sysctl -w net.core.netdev_max_backlog=4096")
    })
    .collect()
}

fn time_squeeze(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let Some(pressure) = pressure(case) else { return Vec::new() };
    let often = |squeezes| rate(squeezes, pressure) >= SQUEEZES_PER_SECOND_MIN;
    let squeezed = pressure.cpus.iter().filter(|cpu| often(cpu.time_squeeze));
    squeezed
        .map(|cpu| {
            Found::new(
                Severity::Warning,
                format!("CPU {}", cpu.cpu),
                "its receive softirqs exhaust their budget: packets wait for the next one",
            )
            .evidence(format!("time_squeeze {}/s", rate(cpu.time_squeeze, pressure)))
            .remedy("sysctl -w net.core.netdev_budget_usecs=8000 net.core.netdev_budget=600")
        })
        .collect()
}

fn ksoftirqd_starved(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let Some(pressure) = pressure(case) else { return Vec::new() };
    let starved = pressure.cpus.iter().filter(|cpu| {
        cpu.ksoftirqd_waited.0.saturating_mul(100) / pressure.interval.0 > KSOFTIRQD_WAITED_PERCENT_MAX
    });
    starved
        .map(|cpu| {
            let percent = cpu.ksoftirqd_waited.0.saturating_mul(100) / pressure.interval.0;
            Found::new(
                Severity::Warning,
                format!("CPU {}", cpu.cpu),
                format!(
                    "ksoftirqd/{} had packets to deliver and waited for its CPU {percent} % of the time",
                    cpu.cpu
                ),
            )
            .evidence(format!(
                "it ran {} and waited {} of {}",
                cpu.ksoftirqd_ran, cpu.ksoftirqd_waited, pressure.interval
            ))
            .evidence("the applications and softirqs of this CPU need more time than it has")
        })
        .collect()
}

fn adaptive_coalescing(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for device in &case.host.devices {
        let adapts = device.coalesce.and_then(|coalesce| coalesce.adaptive_rx) == Some(true);
        let deferring = case.napis.values().find(|napi| napi.device.id == device.id && napi.defers());
        let (true, Some(napi)) = (adapts, deferring) else { continue };
        found.push(
            Found::new(
                Severity::Warning,
                device.id,
                "its driver adapts interrupt moderation to interrupts that the kernel defers",
            )
            .evidence(format!("adaptive-rx is on; {}: {}", napi.name(), napi.values()))
            .evidence("net_dim counts interrupts, and deferral makes them rare")
            .remedy(remedy::set_value(
                device,
                case,
                &Setting::Nic(device.id, NicKnob::Coalescing(CoalesceParam::AdaptiveRx, 0)),
                "adaptive-rx=false",
            )),
        );
    }
    found
}

fn rps_needless(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let cpus = case.host.topology.online.len();
    let mut found = Vec::new();
    for device in case.host.devices.iter().filter(|device| is_hardware(device)) {
        let steered = device.rx_queues.iter().filter(|queue| !queue.rps_cpus.is_empty()).count();
        if steered == 0 || device.rx_queues.len() < cpus {
            continue;
        }
        found.push(
            Found::new(
                Severity::Warning,
                device.id,
                format!(
                    "RPS forwards the packets of {steered} queues, although there is a queue for every CPU"
                ),
            )
            .evidence(format!("{} receive queues, {cpus} CPUs that run", device.rx_queues.len()))
            .remedy(remedy::set_value(
                device,
                case,
                &Setting::RxQueue(device.rx_queues[0].id, RxQueueKnob::RpsCpus(CpuSet::new())),
                "rps_cpus=none",
            )),
        );
    }
    found
}

fn offload_not_as_requested(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let word = |on: bool| if on { "on" } else { "off" };
    let mut found = Vec::new();
    for device in case.host.devices.iter().filter(|device| !device.offloads_requested.is_empty()) {
        let names: Vec<&str> = device.offloads_requested.keys().map(|offload| offload.as_str()).collect();
        let summary = format!(
            "{}: not as requested, because the driver or another offload does not allow it",
            names.join(", ")
        );
        let one = Found::new(Severity::Note, device.id, summary);
        found.push(device.offloads_requested.iter().fold(one, |one, (offload, requested)| {
            one.evidence(format!("{offload} is {} [requested {}]", word(!requested), word(*requested)))
        }));
    }
    found
}

fn xps_missing(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let without = |device: &&Device| {
        is_hardware(device)
            && device.up
            && device.tx_queues.len() > 1
            && device.tx_queues.iter().all(|queue| queue.xps_cpus.is_empty() && queue.xps_rxqs.is_empty())
    };
    let found = |device: &Device| {
        Found::new(
            Severity::Note,
            device.id,
            "no CPU has a dedicated transmit queue: the hash chooses a queue for each flow",
        )
        .evidence(format!(
            "{} transmit queues, xps_cpus and xps_rxqs of all are empty",
            device.tx_queues.len()
        ))
        .remedy(remedy::set_value(
            device,
            case,
            &Setting::TxQueue(
                TxQueue { device: device.id, index: device.tx_queues[0].index },
                TxQueueKnob::XpsCpus(CpuSet::new()),
            ),
            "xps=true",
        ))
    };
    case.host.devices.iter().filter(without).map(found).collect()
}

/// Returns whether the device is a hardware device. A virtual device has no bus driver, and its queues depend
/// on its peer.
fn is_hardware(device: &Device) -> bool {
    const VIRTUAL: [&str; 14] = [
        "", "veth", "bridge", "bond", "team", "vlan", "vxlan", "dummy", "tun", "netkit", "macvlan", "ipvlan",
        "geneve", "ifb",
    ];
    !VIRTUAL.contains(&device.kind.as_str())
}

fn napi_shared(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let shared = |napi: &&NapiCase<'_>| napi.queues.len() > 1;
    let found = |napi: &NapiCase<'_>| {
        let queues: Vec<String> = napi.queues.iter().map(|queue| format!("rx-{}", queue.index)).collect();
        Found::new(
            Severity::Note,
            format!("{} napi {}", napi.device.id, napi.napi.id),
            format!(
                "it serves {} receive queues, which share one set of values and one poller",
                napi.queues.len()
            ),
        )
        .evidence(queues.join(", "))
    };
    case.napis.values().filter(shared).map(found).collect()
}
