//! Proposes policies for a host whose policy is missing or not fully in force.

use std::collections::{BTreeMap, BTreeSet};

use model::recipe::{Mechanism, PaysFrom, RecipeEntry, RecipeValue};
use model::{NapiId, PolicyName, Setting, Severity};

use crate::evidence::{JournalVerdict, evidence_on};
use crate::recipe::circumstances;

use super::batches::evidence;
use super::case::{Case, ProcessCase};
use super::context::{PendingChanges, THEN};
use super::rule::{Causes, DoctorRule, Found};

/// The rules of this family.
pub(super) const RULES: &[DoctorRule] = &[
    DoctorRule {
        id: "no-policy",
        doc: "No policy file requests anything on this host, and no transaction is in force.",
        find: no_policy,
    },
    DoctorRule {
        id: "policy-not-in-force",
        doc: "The policy files request settings that are not in force, as after a rollback or before they are applied.",
        find: not_in_force,
    },
    DoctorRule {
        id: "policy-untried",
        doc: "A process receives on queues without settings.",
        find: policy_untried,
    },
];

/// The maximum number of processes to propose a policy for: those with the most packets.
const PROCESSES_MAX: usize = 5;

/// The minimum packet rate for a proposal. At a lower rate, a wake-up for each packet costs less than 1 % of
/// a CPU.
const PACKETS_PER_SECOND_MIN: u64 = 200;

fn nothing_in_force(case: &Case<'_>) -> bool {
    let context = case.context;
    context.proposes && context.pending.refused.is_none() && case.asked.is_empty() && context.held.is_empty()
}

fn no_policy(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    if !nothing_in_force(case) || case.napis.is_empty() {
        return Vec::new();
    }
    let devices: BTreeSet<String> = case
        .napis
        .values()
        .filter(|napi| napi.device.up)
        .map(|napi| napi.device.id.name.to_string())
        .collect();
    let shown: Vec<String> = devices.iter().take(NAMED_MAX).cloned().collect();
    let more = devices.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let found = Found::new(Severity::Note, format!("{}{more}", shown.join(", ")), "no policy is in force")
        .evidence("`init` writes a first policy file from the running services, and changes nothing")
        .remedy("netpolicy init /etc/netpolicy/policy.d/10-host.toml");
    vec![found]
}

fn not_in_force(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let PendingChanges { plan, rolled_back, daemon, evidence, .. } = &case.context.pending;
    let changes: Vec<String> = plan.changes().map(ToString::to_string).collect();
    if changes.is_empty() {
        return Vec::new();
    }
    let what =
        if changes.len() == 1 { "1 setting".to_owned() } else { format!("{} settings", changes.len()) };
    let are = if changes.len() == 1 { "is" } else { "are" };
    let wanted: Vec<&Setting> = plan.changes().map(|change| change.to()).collect();
    let evidence = evidence_on(&wanted, evidence);
    let was_worse = evidence.is_some_and(JournalVerdict::is_against);
    let worse = if was_worse { ", and were measured to be worse" } else { "" };
    let mut found = Found::new(
        Severity::Warning,
        "policy files",
        format!("they request {what} that {are} not in force{worse}"),
    );
    if let Some(evidence) = evidence {
        found = found.evidence(evidence.sentence());
    }
    for change in changes.iter().take(NAMED_MAX) {
        found = found.evidence(change);
    }
    if changes.len() > NAMED_MAX {
        found = found.evidence(format!("and {} more", changes.len() - NAMED_MAX));
    }
    if let Some(name) = rolled_back {
        found = found.evidence(format!("the newest transaction, {name}, was rolled back"));
    }
    vec![found.remedy(match daemon {
        _ if was_worse => {
            "remove them from the policy files, or measure them again (netpolicy compare)".to_owned()
        }
        Some(pid) => format!("kill -HUP {pid}"),
        None => format!("netpolicy plan{THEN}netpolicy apply"),
    })]
}

fn policy_untried(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    if !nothing_in_force(case) {
        return Vec::new();
    }
    let mut candidates: Vec<(u64, usize, &ProcessCase<'_>)> = Vec::new();
    for process in case.processes.values() {
        let napis = waited_for(process, case);
        let is_set = |id: &NapiId| case.napis.get(id).is_none_or(|napi| napi.suspends() || napi.defers());
        if napis.is_empty() || napis.keys().any(is_set) || process.epolls.iter().any(|epoll| epoll.prefers())
        {
            continue;
        }
        candidates.push((packets(&napis, case), napis.values().sum(), process));
    }
    let interval = case.delivered.map_or(1_000_000_000, |delivered| delivered.interval.0);
    let is_busy = |packets: u64| {
        let per_second = u128::from(packets) * 1_000_000_000 / u128::from(interval.max(1));
        case.delivered.is_none() || per_second >= u128::from(PACKETS_PER_SECOND_MIN)
    };
    candidates.retain(|(packets, _, _)| is_busy(*packets));
    candidates.sort_by_key(|(packets, connections, process)| {
        (std::cmp::Reverse((*packets, *connections)), process.process.id.pid)
    });
    candidates
        .into_iter()
        .take(PROCESSES_MAX)
        .map(|(packets, _, process)| proposal(process, packets, case))
        .collect()
}

/// Returns the number of connections that a process's epolls watch, by NAPI in this namespace.
fn waited_for(process: &ProcessCase<'_>, case: &Case<'_>) -> BTreeMap<NapiId, usize> {
    let mut napis = BTreeMap::new();
    for (id, connections) in process.epolls.iter().flat_map(|epoll| &epoll.napis) {
        if case.napis.contains_key(id) {
            *napis.entry(*id).or_default() += connections;
        }
    }
    napis
}

/// Returns the number of packets that these NAPIs delivered in the interval, including packets for other
/// processes on the same queues.
fn packets(napis: &BTreeMap<NapiId, usize>, case: &Case<'_>) -> u64 {
    let counts = napis.keys().filter_map(|id| case.napis.get(id)?.counts.as_ref());
    counts.map(|counts| counts.total().packets).sum()
}

fn proposal(process: &ProcessCase<'_>, packets: u64, case: &Case<'_>) -> Found {
    let napis = waited_for(process, case);
    let by_interrupt = napis
        .keys()
        .filter_map(|id| case.napis.get(id))
        .all(|napi| napi.device.has_own_interrupts() != Some(false));
    let (policy, gain) = match by_interrupt {
        true => (PolicyName::Latency, "may shorten its response times"),
        false => (PolicyName::Cpu, "may save CPU, at longer response times"),
    };
    let places: Vec<_> = napis
        .keys()
        .filter_map(|id| case.napis.get(id))
        .map(|napi| circumstances::of_device(napi.device))
        .collect();
    let entry = case.context.recipes.agreed(policy, Mechanism::Delivery, &places).entry;
    if let Some(evidence) = against(policy, process, &napis, case) {
        let words = format!("`{policy}` was measured to be worse than no policy, and is not proposed again");
        return Found::new(Severity::Note, process.process.id, words).evidence(evidence.sentence());
    }
    if let Some(entry) = entry
        && let Some(words) = too_little(entry, &napis, case)
    {
        return Found::new(
            Severity::Note,
            process.process.id,
            format!("no policy is proposed for the process: `{policy}` {words}"),
        );
    }
    let names: Vec<String> = napis.keys().map(|id| case.name(*id)).collect();
    let shown = names.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let connections: usize = napis.values().sum();
    let mut found = Found::new(
        Severity::Note,
        process.process.id,
        format!("no policy is in force for the process: `{policy}` {gain}; a comparison on its own traffic shows whether it does"),
    )
    .evidence(format!("connections in its epolls: {connections}, by {shown}{more}"));
    if case.delivered.is_some() {
        found = found.evidence(format!("packet rate on these queues: {}", case.rate(packets)));
    }
    let busiest = napis.iter().max_by_key(|(_, connections)| **connections);
    for line in
        busiest.and_then(|(id, _)| case.napis.get(id)).map_or_else(Vec::new, |napi| evidence(case, napi))
    {
        found = found.evidence(line);
    }
    if let Some(entry) = entry.filter(|entry| !entry.measured_on.is_empty()) {
        let on = entry.measured_on.join(", ");
        found = found.evidence(format!("measured on {on}: {} ({})", entry.because.why, entry.because.source));
    }
    found.remedy(format!("netpolicy compare --pid {} --b {policy}", process.process.id.pid))
}

/// Returns why a process has too little traffic for a value to help; `None` if it has enough, or its traffic
/// is unknown.
fn too_little(entry: &RecipeEntry, napis: &BTreeMap<NapiId, usize>, case: &Case<'_>) -> Option<String> {
    let (PaysFrom { packets_per_flush, connections }, RecipeValue::Delivery(mode)) =
        (entry.pays_from?, &entry.value)
    else {
        return None;
    };
    let delivered = case.delivered?;
    let flush = mode.params().gro_flush_timeout;
    let has_connections: usize = napis.values().sum();
    let of_busiest = napis.keys().map(|id| packets(&BTreeMap::from([(*id, 1)]), case)).max()?;
    // Calculate in tenths, so that a rate of 1.9 packets is not rounded to 2.
    let tenths = u128::from(of_busiest) * u128::from(flush.0) * 10 / u128::from(delivered.interval.0.max(1));
    let is_enough = tenths >= u128::from(packets_per_flush) * 10
        && has_connections >= usize::try_from(connections).unwrap_or(usize::MAX);
    (!is_enough).then(|| {
        format!(
            "({mode}) was measured to help only with at least {packets_per_flush} packet(s) on a queue per {flush} and {connections} connection(s); here there are {}.{} and {has_connections}",
            tenths / 10,
            tenths % 10
        )
    })
}

/// Returns the newest verdict on a policy from a comparison on the process's queues, if that verdict is
/// negative.
fn against<'c>(
    policy: PolicyName,
    process: &ProcessCase<'_>,
    napis: &BTreeMap<NapiId, usize>,
    case: &Case<'c>,
) -> Option<&'c JournalVerdict> {
    let word = policy.to_string();
    let is_tried =
        |evidence: &&JournalVerdict| evidence.command.split_whitespace().any(|given| given == word);
    let is_own = |setting: &Setting| {
        let object = setting.object();
        let device = |id: &NapiId| case.napis.get(id).map(|napi| napi.device.id.ifindex);
        object.process().is_some_and(|owner| owner == process.process.id)
            || object.device().is_some_and(|found| napis.keys().any(|id| device(id) == Some(found.ifindex)))
    };
    let known = &case.context.pending.evidence;
    let newest = known.iter().filter(is_tried).find(|evidence| evidence.settings.iter().any(is_own));
    newest.filter(|evidence| evidence.is_against())
}

/// The maximum number of devices or queues to name.
const NAMED_MAX: usize = 3;
