//! Findings about packets that do not arrive on the configured path.

use model::Severity;
use model::host::Device;

use super::case::{Case, NapiCase, ProcessCase, Sending};
use super::context::THEN;
use super::remedy;
use super::rule::{Causes, DoctorRule, Found};

/// The rules of this family.
pub(super) const RULES: &[DoctorRule] = &[
    DoctorRule {
        id: "packets-on-no-napi",
        doc: "Packets arrive through the per-CPU backlog instead of a NAPI (incoming NAPI id 0), as on a veth whose sender has TSO on.",
        find: packets_on_no_napi,
    },
    DoctorRule {
        id: "veth-without-napi",
        doc: "A veth under load has no NAPI, or its sender has TSO on: no delivery policy affects its packets.",
        find: veth_without_napi,
    },
    DoctorRule {
        id: "rps-on",
        doc: "Receive packet steering forwards the queue's packets to other CPUs.",
        find: rps_on,
    },
    DoctorRule {
        id: "loopback-only",
        doc: "All connections of the process are over loopback, which has no NAPI.",
        find: loopback_only,
    },
    DoctorRule {
        id: "napi-not-here",
        doc: "Connections have the id of a NAPI that was replaced by a reset, or is in another namespace.",
        find: napi_not_here,
    },
    DoctorRule {
        id: "counts-lost",
        doc: "Some events were not counted because a table was full: every count is a lower bound.",
        find: counts_lost,
    },
    DoctorRule {
        id: "timers-hidden",
        doc: "The NAPI timers could not be watched, so polls after a timer count as polls after an interrupt.",
        find: timers_hidden,
    },
];

fn packets_on_no_napi(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let silent = || case.suspended().filter(|napi| napi.packets().unwrap_or(0) == 0).map(|napi| napi.napi.id);
    // netpolicy sets nothing for other processes. They matter only if a veth's NAPI waits for packets that
    // may belong to them.
    let waiting = case.suspended().any(|napi| napi.device.kind == "veth" && napi.packets().unwrap_or(0) == 0);
    let affected = |process: &&ProcessCase<'_>| process.on_no_napi > 0 && (waiting || case.concerns(process));
    let backlog = Backlog::of(case);
    let mut found = Vec::new();
    for process in case.processes.values().filter(affected) {
        let summary = format!(
            "{} of its {} connections receive on no NAPI, so no thread can poll for them",
            process.on_no_napi,
            process.connections()
        );
        if others_arrive(case, process) {
            // The process's other connections receive on NAPIs. A new packet would also set the NAPI id of
            // these connections, so they are idle.
            found.push(
                Found::new(Severity::Note, process.process.id, summary)
                    .evidence("their SO_INCOMING_NAPI_ID is 0")
                    .evidence(case.spread(&process.napis))
                    .evidence("the next packet that arrives on a NAPI sets the connection's NAPI id"),
            );
            continue;
        }
        let finding = Found::new(Severity::Problem, process.process.id, summary)
            .evidence("their SO_INCOMING_NAPI_ID is 0");
        found.push(backlog.explain(finding).hinders(silent()));
    }
    // No inspected process is affected, so the counts are only a hint: the backlog also carries packets of
    // other processes.
    let packets = case.delivered.map_or(0, |delivered| delivered.backlog.packets);
    if found.is_empty() && packets > 0 {
        for napi in case.suspended().filter(|napi| napi.packets() == Some(0) && napi.device.kind == "veth") {
            let finding = Found::new(
                Severity::Warning,
                napi.name(),
                "no packet arrived on this NAPI, but some arrived on the machine's per-CPU backlogs, which may have been destined for this NAPI",
            );
            found.push(backlog.explain(finding).hinders([napi.napi.id]));
        }
    }
    found
}

/// The minimum packet rate to report. At a lower rate, the path of packets does not matter.
const VETH_PACKETS_PER_SECOND_MIN: u128 = 200;

/// Reports veths that no process of a request uses and whose packets arrive through the backlog.
fn veth_without_napi(case: &Case<'_>, causes: &Causes) -> Vec<Found> {
    let Some(pressure) = case.host.pressure.as_ref().filter(|pressure| !pressure.interval.is_zero()) else {
        return Vec::new();
    };
    let is_known = |found: &Found| found.finding.severity > Severity::Note;
    if packets_on_no_napi(case, causes).iter().any(is_known) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for counted in &pressure.devices {
        let per_second = u128::from(counted.rx_packets) * 1_000_000_000 / u128::from(pressure.interval.0);
        let Some(device) = case.device(counted.device) else { continue };
        // A veth that is a bridge port, such as the host's end of a container's, only forwards packets.
        let receives = device.kind == "veth" && device.up && device.link.master.is_none();
        if !receives || per_second < VETH_PACKETS_PER_SECOND_MIN {
            continue;
        }
        let of_device = case.napis.values().filter(|napi| napi.device.id == device.id);
        let by_napi: Option<u64> = of_device.map(NapiCase::packets).sum();
        // The counts per NAPI and per device are taken at different moments, so a NAPI count of less than a
        // tenth counts as none.
        let mostly_by_backlog =
            device.napis.is_empty() || by_napi.is_some_and(|packets| packets < counted.rx_packets / 10);
        let sending = case.sending_to(device);
        let Some(remedy) = remedy::veth(device, &sending).filter(|_| mostly_by_backlog) else { continue };
        let cause = if device.napis.is_empty() { "it has no NAPI" } else { "its sender has TSO on" };
        let summary = format!(
            "{cause}: its packets arrive through the per-CPU backlog, so no delivery policy applies to them"
        );
        let one = Found::new(Severity::Warning, device.id, summary)
            .evidence(format!("it received {per_second} packets per second"))
            .evidence(veth_state(device, &sending));
        let one = if device.napis.is_empty() { one.evidence(crate::why_no_napi(device)) } else { one };
        found.push(one.remedy(remedy));
    }
    found
}

/// Returns whether most connections of a process receive on NAPIs and no count contradicts that. The other
/// connections are then old or idle, and nothing needs to be fixed.
fn others_arrive(case: &Case<'_>, process: &ProcessCase<'_>) -> bool {
    let on_napis: usize = process.napis.values().sum();
    let arrives = |id| case.napis.get(id).and_then(NapiCase::packets).is_none_or(|packets| packets > 0);
    on_napis > process.on_no_napi && process.napis.keys().any(arrives)
}

/// The maximum number of veths to name as a possible cause: a node has a veth for each container.
const VETHS_MAX: usize = 8;

/// Why packets may arrive through the backlog, as evidence, and the commands that make them arrive on a NAPI.
struct Backlog {
    evidence: Vec<String>,
    remedy: Option<String>,
}

impl Backlog {
    /// Collects the counts of the backlog and the veths that could be the cause: those with a wrong setting
    /// before the others.
    fn of(case: &Case<'_>) -> Self {
        let (mut wrong, mut right, mut veths) = (Vec::new(), Vec::new(), 0);
        for device in case.host.devices.iter().filter(|device| device.kind == "veth" && device.up) {
            let sending = case.sending_to(device);
            // If both ends of a veth are in this namespace, fix only the end on which a process receives.
            let receives = match &sending {
                Sending::Here(peer) => !device.napis.is_empty() || peer.napis.is_empty(),
                Sending::Elsewhere(_) | Sending::Unknown(_) => true,
            };
            veths += usize::from(receives);
            match remedy::veth(device, &sending).filter(|_| receives) {
                Some(command) => wrong.push((device, sending, command)),
                None => right.push((device, sending)),
            }
        }
        let named = wrong.iter().map(|(device, sending, _)| (*device, sending));
        let named = named.chain(right.iter().map(|(device, sending)| (*device, sending)));
        let mut evidence: Vec<String> = case.on_the_backlog().into_iter().collect();
        evidence.extend(named.take(VETHS_MAX).map(|(device, sending)| veth_state(device, sending)));
        let more = |all: usize| all.saturating_sub(VETHS_MAX);
        let unnamed = more(wrong.len() + right.len());
        if unnamed > 0 {
            evidence.push(format!("and {unnamed} more veth(s)"));
        }
        let unfixed = more(wrong.len());
        if unfixed > 0 {
            evidence.push(format!(
                "{unfixed} of the other veths have a wrong setting, too: run doctor again after these commands"
            ));
        }
        if veths > 0 && wrong.is_empty() {
            evidence.push(
                "both ends are fixed now: the next packet that arrives through one of them sets the connection's NAPI id"
                    .to_owned(),
            );
        }
        let mut commands: Vec<String> =
            wrong.iter().take(VETHS_MAX).map(|(_, _, command)| command.clone()).collect();
        if unfixed > 0 {
            commands.push("netpolicy doctor".to_owned());
        }
        Self { evidence, remedy: (!commands.is_empty()).then(|| commands.join(THEN)) }
    }

    fn explain(&self, found: Found) -> Found {
        let found = self.evidence.iter().fold(found, |found, line| found.evidence(line.as_str()));
        match &self.remedy {
            Some(remedy) => found.remedy(remedy.as_str()),
            None => found,
        }
    }
}

fn veth_state(device: &Device, sending: &Sending<'_>) -> String {
    let state = |on: Option<bool>| match on {
        Some(true) => "on",
        Some(false) => "off",
        None => "not readable",
    };
    let tso = state(sending.tso());
    let peer = match sending {
        Sending::Here(peer) => format!("{} with TSO {tso}", peer.id),
        Sending::Elsewhere(peer) => format!("{} with TSO {tso}, in {}", peer.name, peer.netns),
        Sending::Unknown(number) => format!("{number}, whose TSO setting cannot be read from this namespace"),
    };
    format!(
        "{} (veth): GRO {}, XDP {}, {} NAPI(s); its sender is {peer}",
        device.id,
        state(device.features.gro),
        state(Some(device.xdp)),
        device.napis.len()
    )
}

fn rps_on(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let concerned = |napi: &&NapiCase<'_>| napi.suspends() || napi.preferred || napi.asked.is_some();
    let mut found = Vec::new();
    for napi in case.napis.values().filter(concerned) {
        let steered = napi.device.rx_queues.iter().filter(|q| napi.queues.contains(&q.id));
        for queue in steered.filter(|q| !q.rps_cpus.is_empty()) {
            let mut finding = Found::new(
                Severity::Problem,
                queue.id,
                "RPS forwards its packets to softirqs of other CPUs, whichever thread polls the NAPI",
            )
            .evidence(format!("rps_cpus is {}", queue.rps_cpus));
            if let Some(carried) = case.on_the_backlog() {
                finding = finding.evidence(carried);
            }
            found.push(finding.remedy(remedy::rps_off(queue.id)).hinders([napi.napi.id]));
        }
    }
    found
}

fn loopback_only(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let only = |process: &&ProcessCase<'_>| {
        process.loopback > 0 && process.loopback == process.connections() && case.concerns(process)
    };
    let found = |process: &ProcessCase<'_>| {
        let severity = if process.asked.is_some() { Severity::Problem } else { Severity::Note };
        Found::new(
            severity,
            process.process.id,
            "all its connections are over loopback, which has no NAPI and no IRQ to suspend",
        )
        .evidence(format!("{} connections, all to a loopback address", process.loopback))
    };
    case.processes.values().filter(only).map(found).collect()
}

fn napi_not_here(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let here =
        |process: &&ProcessCase<'_>| process.process.netns.is_none_or(|netns| netns == case.host.netns);
    let mut found = Vec::new();
    for process in case.processes.values().filter(here).filter(|p| !p.astray.is_empty()) {
        let connections: usize = process.astray.values().sum();
        let ids: Vec<String> = process.astray.keys().map(ToString::to_string).collect();
        found.push(
            Found::new(
                Severity::Note,
                process.process.id,
                format!("{connections} of its connections have the id of a NAPI that no device here has"),
            )
            .evidence(format!("SO_INCOMING_NAPI_ID is {}", ids.join(", ")))
            .evidence("after a device reset, the next packet sets the new id"),
        );
    }
    found
}

fn counts_lost(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let lost = case.delivered.filter(|delivered| delivered.lost > 0);
    lost.map(|delivered| {
        Found::new(Severity::Warning, "counting", "a table was full, so every count is a lower bound")
            .evidence(format!("{} events were not counted", delivered.lost))
    })
    .into_iter()
    .collect()
}

fn timers_hidden(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let hidden = case.delivered.filter(|delivered| delivered.timers_hidden);
    hidden
        .map(|_| {
            Found::new(
                Severity::Note,
                "counting",
                "the NAPI timers could not be watched: polls after a timer count as polls after an interrupt",
            )
            .remedy("sysctl kernel.kptr_restrict=1")
        })
        .into_iter()
        .collect()
}
