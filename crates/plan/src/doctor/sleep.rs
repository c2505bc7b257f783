//! Findings about CPUs with idle states whose exit latency exceeds what a request allows.

use std::collections::BTreeMap;

use model::host::IdleState;
use model::{CpuSet, Nanoseconds, Severity};

use super::case::Case;
use super::case::RequestFacts;
use super::rule::{Causes, DoctorRule, Found};

/// The rules of this family.
pub(super) const RULES: &[DoctorRule] = &[DoctorRule {
    id: "idle-states-too-deep",
    doc: "CPUs that wait for packets may enter an idle state whose exit latency exceeds the goal.",
    find: too_deep,
}];

fn too_deep(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let Some(depth) = &case.context.idle else { return Vec::new() };
    let mut found = Vec::new();
    for asked in case.asked {
        let Some(limit) = limit(asked) else { continue };
        let mut deep: BTreeMap<(u32, &str), CpuSet> = BTreeMap::new();
        for cpu in cpus(case, asked).iter() {
            if let Some(IdleState { name, exit }) =
                depth.deepest(cpu).filter(|state| longer(state.exit, limit))
            {
                deep.entry((*exit, name.as_str())).or_default().insert(cpu);
            }
        }
        let Some(((exit, state), _)) = deep.last_key_value() else { continue };
        let all: CpuSet = deep.values().flat_map(CpuSet::iter).collect();
        // The latency exceeds the policy's limit, which is a problem only if it also exceeds the request's
        // goal.
        let beyond = asked.goal.is_some_and(|goal| longer(*exit, goal));
        let severity = if beyond { Severity::Problem } else { Severity::Warning };
        let exceeded = match asked.goal {
            Some(goal) if beyond => format!("the goal of {goal}"),
            _ => format!("the {limit} that its policy allows"),
        };
        let object = asked.processes.first().map(ToString::to_string);
        let object = object.or_else(|| asked.queues.first().map(|queue| queue.device.to_string()));
        let mut one = Found::new(
            severity,
            object.unwrap_or_else(|| asked.origin.clone()),
            format!(
                "CPUs {all} may enter idle state {state}, which takes {exit} us to leave: longer than {exceeded}"
            ),
        );
        for ((exit, state), cpus) in deep.iter().rev() {
            one = one.evidence(format!("CPUs {cpus}: {state}, {exit} us"));
        }
        // The file contains whole microseconds, and 0 would mean no limit, so a shorter limit is written as
        // n/a.
        let bound = match limit.0 / 1_000 {
            0 => "n/a".to_owned(),
            micros => micros.to_string(),
        };
        let list: Vec<String> = all.iter().map(|cpu| cpu.to_string()).collect();
        found.push(
            one.evidence(format!("requested at {}; /dev/cpu_dma_latency limits it to {} us", asked.origin, depth.bound))
                .remedy(format!(
                    "for cpu in {}; do echo {bound} > /sys/devices/system/cpu/cpu$cpu/power/pm_qos_resume_latency_us; \
                     done",
                    list.join(" ")
                )),
        );
    }
    found
}

/// Returns the maximum wake-up latency that the request allows.
fn limit(asked: &RequestFacts) -> Option<Nanoseconds> {
    asked.goal.into_iter().chain(asked.wake_within).min()
}

fn longer(exit: u32, limit: Nanoseconds) -> bool {
    u64::from(exit) * 1_000 > limit.0
}

/// Returns the CPUs that wait for the request's packets: those of its processes, or else those of its queues'
/// interrupts, or else all CPUs.
fn cpus(case: &Case<'_>, asked: &RequestFacts) -> CpuSet {
    let online = &case.host.topology.online;
    let processes = asked.processes.iter().filter_map(|process| case.processes.get(&process.pid));
    let own: CpuSet = processes.flat_map(|process| process.cpus().iter().collect::<Vec<_>>()).collect();
    if !own.is_empty() {
        return own.intersection(online);
    }
    let napis =
        case.napis.values().filter(|napi| napi.queues.iter().any(|queue| asked.queues.contains(queue)));
    let irqs = napis.filter_map(|napi| case.host.irq(napi.napi.irq?.irq));
    let of_irqs: CpuSet = irqs.flat_map(|irq| irq.effective_affinity.iter()).collect();
    if of_irqs.is_empty() { online.clone() } else { of_irqs.intersection(online) }
}
