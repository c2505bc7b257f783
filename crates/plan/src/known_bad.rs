//! Known faults of the running kernel and of the drivers of a host, for `doctor` and `plan`.

use model::Host;
use model::host::Device;
use model::known_bad::{BPF_PROGRAMS_MANY, KnownFault, KnownFaults, Presence, When};

use crate::placement::Placement;
use crate::wanted::Collected;

/// Facts other than the host that decide whether a fault is harmful.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uses {
    /// Whether busy polling is requested or set.
    pub(crate) busy_poll: bool,
    /// The number of loaded BPF programs; `None` if they were not counted.
    pub(crate) bpf_programs: Option<u32>,
}

/// A fault that may harm this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Harm<'a> {
    pub(crate) name: &'a str,
    pub(crate) fault: &'a KnownFault,
    /// The device whose driver has the fault; `None` for a fault of the kernel.
    pub(crate) device: Option<&'a Device>,
    /// Whether the kernel certainly has the fault. If not, a distribution may have fixed it.
    pub(crate) certain: bool,
}

/// Returns the faults that may harm this host, ordered by name.
pub(crate) fn harms<'a>(faults: &'a KnownFaults, host: &'a Host, uses: Uses) -> Vec<Harm<'a>> {
    let mut harms = Vec::new();
    for (name, fault) in faults {
        let presence = fault.presence(&host.release);
        if presence == Presence::No {
            continue;
        }
        let certain = presence == Presence::Yes;
        if fault.drivers.is_empty() {
            if holds(fault.when, host, None, uses) {
                harms.push(Harm { name, fault, device: None, certain });
            }
            continue;
        }
        let devices = host.devices.iter().filter(|device| fault.drivers.contains(&device.kind));
        let harmed = devices.filter(|device| holds(fault.when, host, Some(device), uses));
        harms.extend(harmed.map(|device| Harm { name, fault, device: Some(device), certain }));
    }
    harms
}

fn holds(when: When, host: &Host, device: Option<&Device>, uses: Uses) -> bool {
    match when {
        When::Always => true,
        When::BusyPoll => uses.busy_poll,
        When::ManyBpfPrograms => uses.bpf_programs.is_some_and(|programs| programs >= BPF_PROGRAMS_MANY),
        When::InterruptOnIsolatedCpu => device.is_some_and(|device| is_on_isolated_cpu(device, host)),
    }
}

/// Returns whether the interrupt of one of the device's NAPIs goes to an isolated CPU.
fn is_on_isolated_cpu(device: &Device, host: &Host) -> bool {
    let isolated = &host.topology.isolated;
    let mut irqs = device.napis.iter().filter_map(|napi| host.irq(napi.irq?.irq));
    irqs.any(|irq| !irq.effective_affinity.intersection(isolated).is_empty())
}

/// Adds notes on the faults that are harmful once the plan is in force.
pub(crate) fn note(placement: &Placement, host: &Host, collected: &mut Collected) {
    let busy_poll = placement.parts.iter().any(|part| part.delivery.mode.params().epoll.prefer_busy_poll);
    let uses = Uses { busy_poll, bpf_programs: None };
    let concerned = |device: &Device| {
        placement.parts.iter().any(|part| part.queues.iter().any(|queue| queue.queue.device == device.id))
    };
    for harm in harms(&placement.recipes.known_faults, host, uses) {
        let object = match harm.device {
            Some(device) if concerned(device) => format!("{} ({})", device.id, device.kind),
            Some(_) => continue,
            None => format!("Linux {}", host.release),
        };
        let certainty = if harm.certain { "known fault" } else { "possible fault" };
        let source = harm.fault.sources.first().map_or("", String::as_str);
        collected.desired.notes.push(format!("{object}: {certainty}: {} ({source})", harm.fault.what));
    }
}
