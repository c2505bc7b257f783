//! Findings about known faults of the running kernel and its drivers, from the list that netpolicy ships.

use model::Severity;
use model::known_bad::{When, housekeeping_cpus};

use super::case::Case;
use super::rule::{Causes, DoctorRule, Found};
use crate::known_bad::{Harm, Uses, harms};

/// The rules of this family.
pub(super) const RULES: &[DoctorRule] = &[
    DoctorRule {
        id: "known-bad-kernel",
        doc: "The running kernel has a fault that affects packet delivery, according to its release.",
        find: known_bad_kernel,
    },
    DoctorRule {
        id: "known-bad-driver",
        doc: "The device's driver has a fault that this host provokes.",
        find: known_bad_driver,
    },
];

fn known_bad_kernel(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    all(case).into_iter().filter(|harm| harm.device.is_none()).map(|harm| found(&harm, case)).collect()
}

fn known_bad_driver(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    all(case).into_iter().filter(|harm| harm.device.is_some()).map(|harm| found(&harm, case)).collect()
}

fn all<'c>(case: &'c Case<'_>) -> Vec<Harm<'c>> {
    let asked = case.asked.iter().any(|asked| asked.mode.params().epoll.prefer_busy_poll);
    let set = case.processes.values().flat_map(|process| &process.epolls).any(|epoll| epoll.prefers());
    let uses = Uses { busy_poll: asked || set, bpf_programs: case.context.bpf_programs };
    harms(&case.context.recipes.known_faults, case.host, uses)
}

fn found(harm: &Harm<'_>, case: &Case<'_>) -> Found {
    let fault = harm.fault;
    let (severity, summary) = if harm.certain {
        (Severity::Warning, fault.what.clone())
    } else {
        (Severity::Note, format!("perhaps: {}", fault.what))
    };
    let object = harm.device.map_or_else(|| format!("Linux {}", case.host.release), |d| d.id.to_string());
    let mut one = Found::new(severity, object, summary).evidence(format!("known fault: {}", harm.name));
    if let Some(affected) = fault.affected() {
        one = one.evidence(affected);
    }
    if !harm.certain {
        one = one.evidence("the distribution's version number does not show which fixes this kernel has");
    }
    if let (When::ManyBpfPrograms, Some(programs)) = (fault.when, case.context.bpf_programs) {
        one = one.evidence(format!("BPF programs that are loaded: {programs}"));
    }
    let housekeeping = housekeeping_cpus(case.host);
    if let (When::InterruptOnIsolatedCpu, Some(device)) = (fault.when, harm.device) {
        one = one.evidence(format!(
            "{} receive queues, {housekeeping} CPUs that are not isolated",
            device.rx_queues.len()
        ));
    }
    let one = fault.sources.iter().fold(one, |one, source| one.evidence(format!("source: {source}")));
    let device = harm.device.map(|device| device.id.to_string()).unwrap_or_default();
    one.remedy(fault.remedy_on(&device, housekeeping))
}
