//! Findings about other tools that write the same settings: irqbalance, tuned, Kubernetes agents, systemd's
//! .link files, sysctl.d, NetworkManager, ifupdown, cloud agents, cloud-init, perftune, scripts. A plan
//! changes the values of these tools like any others, and a rollback restores them; the rules report which
//! tool will overwrite netpolicy's values.

use model::host::{ConflictingTool, ConflictingToolKind};
use model::{CpuSet, IrqNumber, Severity};

use super::case::Case;
use super::rule::{Causes, DoctorRule, Found};
use crate::in_force;
use crate::index::Index;

/// The rules of this family.
pub(super) const RULES: &[DoctorRule] = &[
    DoctorRule {
        id: "irqbalance-moves-placed",
        doc: "irqbalance is running, and does not ban an interrupt that a request has placed on CPUs.",
        find: irqbalance_moves_placed,
    },
    DoctorRule {
        id: "irqbalance-runs",
        doc: "irqbalance is running: the interrupts of devices that it may move.",
        find: irqbalance_runs,
    },
    DoctorRule {
        id: "others-set-sysctl",
        doc: "A configuration file of another program writes a sysctl in /proc/sys/net/core.",
        find: others_set_sysctl,
    },
    DoctorRule {
        id: "others-set-device",
        doc: "systemd, NetworkManager, ifupdown, tuned, an agent of Kubernetes or of a cloud, cloud-init, perftune or a script also configures a device.",
        find: others_set_device,
    },
];

/// The maximum number of a file's lines to show.
const EVIDENCE_MAX: usize = 8;

fn irqbalance_moves_placed(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let Some((pid, banned)) = case.host.irqbalance.as_ref().and_then(|r| Some((r.pid, r.banned.as_ref()?)))
    else {
        return Vec::new();
    };
    let mut placed: Vec<(IrqNumber, String)> = Vec::new();
    for napi in case.napis.values().filter(|napi| napi.asked.is_some()) {
        let Some(irq) = napi.napi.irq.and_then(|edge| case.host.irq(edge.irq)) else { continue };
        // An interrupt that may run on every CPU is not pinned, so irqbalance may move it.
        let on_some = irq.affinity.intersection(&case.host.topology.online) != case.host.topology.online;
        if on_some && !banned.contains(&irq.number) {
            placed.push((
                irq.number,
                format!("irq {} of {} is on CPU {}", irq.number, napi.name(), irq.affinity),
            ));
        }
    }
    if placed.is_empty() {
        return Vec::new();
    }
    let irqs: Vec<String> = placed.iter().map(|(irq, _)| irq.to_string()).collect();
    let summary = format!("it may move the placed interrupts {} when the load changes", irqs.join(", "));
    let found = Found::new(Severity::Warning, format!("irqbalance[{pid}]"), summary);
    let found = placed.into_iter().take(EVIDENCE_MAX).fold(found, |found, (_, line)| found.evidence(line));
    vec![found.remedy("netpolicy apply")]
}

fn irqbalance_runs(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let Some(running) = &case.host.irqbalance else { return Vec::new() };
    let object = format!("irqbalance[{}]", running.pid);
    let Some(banned) = &running.banned else {
        let summary = "it is running, and did not report which interrupts it ignores";
        return vec![Found::new(Severity::Note, object, summary)];
    };
    let of_devices: Vec<IrqNumber> = case.host.irqs.iter().map(|irq| irq.number).collect();
    let left = of_devices.iter().filter(|irq| banned.contains(irq)).count();
    let summary =
        format!("it is running, and ignores {left} of the {} interrupts of devices", of_devices.len());
    let all: Vec<String> = banned.iter().map(ToString::to_string).collect();
    let evidence =
        if all.is_empty() { "banned: none".to_owned() } else { format!("banned: {}", all.join(", ")) };
    vec![Found::new(Severity::Note, object, summary).evidence(evidence)]
}

fn others_set_sysctl(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for other in &case.context.others {
        let Some((sysctl, value)) = &other.sysctl else { continue };
        let now = case.host.sysctls.get(sysctl);
        // The value that the tool would write is already in force.
        if now.is_some_and(|now| agrees(value, *now)) {
            continue;
        }
        let differs = now.is_some();
        let (severity, summary) = match now {
            Some(now) if differs => (
                Severity::Warning,
                format!(
                    "{} will set net.core.{sysctl} to {value} again; the current value is {now}",
                    other.kind
                ),
            ),
            _ => (Severity::Note, format!("{} sets net.core.{sysctl} to {value}", other.kind)),
        };
        let line = format!("{}: {}", other.place, other.line);
        let one = Found::new(severity, "host", summary).evidence(line);
        let file = other.place.rsplit_once(':').map_or(other.place.as_str(), |(file, _)| file);
        found.push(if differs {
            one.remedy(format!("set it in one place only: in {file}, or as settings.{sysctl} of a policy"))
        } else {
            one
        });
    }
    found
}

/// Returns whether a value in a tool's file would leave the current number unchanged. The kernel parses
/// `0x12c` and `0454` as C does. tuned writes `>600` only if the current number is smaller, and `<600` only
/// if it is larger.
fn agrees(value: &str, now: u64) -> bool {
    let value = value.trim().trim_matches(['"', '\'']);
    let number = |text: &str| {
        let text = text.trim();
        match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8).ok(),
            None => text.parse().ok(),
        }
    };
    match (value.strip_prefix('>'), value.strip_prefix('<')) {
        (Some(least), _) => number(least).is_some_and(|least| now >= least),
        (_, Some(most)) => number(most).is_some_and(|most| now <= most),
        (None, None) => number(value) == Some(now),
    }
}

/// Returns the mask for new receive queues that a line of sysctl.d sets.
fn default_mask(line: &str) -> Option<&str> {
    let (name, mask) = line.split_once('=')?;
    name.trim().ends_with("rps_default_mask").then(|| mask.trim())
}

fn agrees_with_default_mask(line: &str, case: &Case<'_>) -> bool {
    let mask = default_mask(line).and_then(|mask| CpuSet::parse_mask(mask).ok());
    mask.is_some_and(|mask| mask == case.host.rps_default_mask)
}

/// Says that the kernel rejects a mask in C notation, and which form it accepts. Kernel: 6.18,
/// `lib/bitmap-str.c` `bitmap_parse()`.
fn refused_mask(line: &str) -> Option<String> {
    let mask = default_mask(line).filter(|mask| mask.starts_with("0x") || mask.starts_with("0X"))?;
    let cpus: CpuSet = mask.parse().ok()?;
    Some(format!("; the kernel rejects {mask}, and accepts {}", cpus.to_mask()))
}

fn others_set_device(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    const KINDS: [ConflictingToolKind; 18] = [
        ConflictingToolKind::SysctlFile,
        ConflictingToolKind::LinkFile,
        ConflictingToolKind::NetworkManager,
        ConflictingToolKind::Ifupdown,
        ConflictingToolKind::Tuned,
        ConflictingToolKind::NodeTuningOperator,
        ConflictingToolKind::Katalyst,
        ConflictingToolKind::NriPlugin,
        ConflictingToolKind::Crio,
        ConflictingToolKind::GoogleGuestAgent,
        ConflictingToolKind::CloudInit,
        ConflictingToolKind::Perftune,
        ConflictingToolKind::IrqAffinityScript,
        ConflictingToolKind::Ena,
        ConflictingToolKind::Azure,
        ConflictingToolKind::Netplan,
        ConflictingToolKind::Ifcfg,
        ConflictingToolKind::UdevRule,
    ];
    let mut found = Vec::new();
    let index = Index::new(case.host);
    for kind in KINDS {
        let lines = case.context.others.iter().filter(|other| other.kind == kind && other.sysctl.is_none());
        let lines = lines.filter(|other| !agrees_with_default_mask(&other.line, case));
        let lines: Vec<_> = lines.filter_map(|other| Some((other, what_differs(other, &index)?))).collect();
        let Some((first, _)) = lines.first() else { continue };
        let when = match kind {
            ConflictingToolKind::LinkFile
            | ConflictingToolKind::Ena
            | ConflictingToolKind::Azure
            | ConflictingToolKind::UdevRule => "when udev adds the device",
            ConflictingToolKind::GoogleGuestAgent => "at boot, and when a device is added",
            ConflictingToolKind::CloudInit => "at boot",
            ConflictingToolKind::Perftune => "whenever the database starts",
            ConflictingToolKind::IrqAffinityScript => "whenever it is run",
            ConflictingToolKind::NetworkManager => "whenever the connection is activated",
            ConflictingToolKind::Ifupdown | ConflictingToolKind::Ifcfg => "whenever the interface goes up",
            ConflictingToolKind::Netplan => "whenever its backend configures the device",
            ConflictingToolKind::Tuned | ConflictingToolKind::NodeTuningOperator => {
                "while it runs, and when its profile changes"
            }
            ConflictingToolKind::Katalyst => "whenever the load of its CPUs changes",
            ConflictingToolKind::NriPlugin | ConflictingToolKind::Crio => "when a container starts or stops",
            // `rps_default_mask` applies to queues that are created later.
            ConflictingToolKind::SysctlFile => "for receive queues that are created later",
        };
        let object = first.device.clone().unwrap_or_else(|| "host".to_owned());
        let asked = case.asked.iter().any(|asked| !asked.queues.is_empty());
        let is_agent = matches!(
            kind,
            ConflictingToolKind::NodeTuningOperator
                | ConflictingToolKind::Katalyst
                | ConflictingToolKind::NriPlugin
                | ConflictingToolKind::Crio
        );
        let again = is_agent
            || matches!(
                kind,
                ConflictingToolKind::Tuned
                    | ConflictingToolKind::GoogleGuestAgent
                    | ConflictingToolKind::Perftune
            );
        let severity = if asked && again { Severity::Warning } else { Severity::Note };
        let summary = format!("{kind} sets device settings, {when}");
        let one = Found::new(severity, object, summary);
        let one = lines.iter().take(EVIDENCE_MAX).fold(one, |one, (other, now)| {
            let device = other.device.as_ref().map(|device| format!(" ({device})")).unwrap_or_default();
            let condition = other.condition.as_ref();
            let condition = condition.map(|condition| format!(", if {condition}")).unwrap_or_default();
            let refused = refused_mask(&other.line).unwrap_or_default();
            one.evidence(format!("{}{device}: {}{now}{condition}{refused}", other.place, other.line))
        });
        found.push(if is_agent {
            one.evidence("netpolicy leaves it running and unchanged; `netpolicy verify` lists the values that it has overwritten")
        } else {
            one
        });
    }
    found
}

/// Describes the value in force if it differs from a tool's line: `; now 8`. Returns an empty text if the two
/// cannot be compared, and `None` if the line's value is already in force.
fn what_differs(other: &ConflictingTool, index: &Index<'_>) -> Option<String> {
    if other.sets.is_empty() {
        return Some(String::new());
    }
    // If the device lacks the setting, the tool cannot set it.
    let values = other.sets.iter().filter_map(|set| Some((set, in_force::value(set, index).ok()?)));
    let differing: Vec<String> =
        values.filter(|(set, now)| *set != now).map(|(_, now)| now.value()).collect();
    let mut shown = differing.clone();
    shown.dedup();
    (!differing.is_empty()).then(|| format!("; now {}", shown.join(", ")))
}
