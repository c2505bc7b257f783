//! Findings about the kernel threads of NAPIs: where they run, and what prevents them from running.

use model::{CpuSet, KthreadState, Object, Severity, Threading};

use super::case::{Case, NapiCase};
use super::remedy;
use super::rule::{Causes, DoctorRule, Found};

/// The rules of this family.
pub(super) const RULES: &[DoctorRule] = &[
    DoctorRule {
        id: "kthread-far-from-irq",
        doc: "A NAPI's kernel thread runs on CPUs that share no cache with those that its interrupt goes to.",
        find: far_from_irq,
    },
    DoctorRule {
        id: "kthread-rt-throttled",
        doc: "A NAPI's kernel thread is real-time, and RT throttling stops it.",
        find: rt_throttled,
    },
    DoctorRule {
        id: "kthread-rt-unbounded",
        doc: "A NAPI's kernel thread is real-time, and no RT throttling bounds it.",
        find: rt_unbounded,
    },
    DoctorRule {
        id: "sched-ext",
        doc: "A BPF scheduler (sched_ext) ignores slices, and may ignore clamps.",
        find: bpf_scheduler,
    },
];

/// Returns the NAPIs with a kernel thread whose state could be read.
fn threads<'c>(case: &'c Case<'_>) -> impl Iterator<Item = (&'c NapiCase<'c>, &'c KthreadState)> {
    case.napis.values().filter_map(|napi| {
        let queue = napi.queues.first()?;
        let state = napi.device.rx_queues.iter().find(|state| state.id == *queue)?;
        Some((napi, state.kthread.as_ref()?))
    })
}

/// Reports a BPF scheduler. The kernel enforces a thread's CPUs and runs real-time classes under such a
/// scheduler, too. Kernel: 6.12, `Documentation/scheduler/sched-ext.rst`.
fn bpf_scheduler(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let Some(name) = &case.host.topology.sched_ext else { return Vec::new() };
    let placed: Vec<String> = threads(case)
        .filter(|(_, thread)| thread.scheduling.is_none_or(|class| class.real_time().is_none()))
        .map(|(napi, thread)| format!("{} of {}", named(thread), napi.name()))
        .collect();
    let severity = if placed.is_empty() { Severity::Note } else { Severity::Warning };
    let summary = format!("the BPF scheduler {name} schedules threads that are not real-time");
    let found = Found::new(severity, Object::Host, summary)
        .evidence("/sys/kernel/sched_ext/state is enabled")
        .evidence(
            "it respects the CPUs of threads but not slices, and decides how long a NAPI's thread waits",
        );
    vec![placed.into_iter().take(EVIDENCE_MAX).fold(found, Found::evidence)]
}

/// The maximum number of threads to name as evidence.
const EVIDENCE_MAX: usize = 8;

fn named(thread: &KthreadState) -> String {
    thread.pid.map_or_else(|| "its kernel thread".to_owned(), |pid| format!("its kernel thread {pid}"))
}

fn far_from_irq(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let topology = &case.host.topology;
    let mut found = Vec::new();
    for (napi, thread) in threads(case) {
        let Some(irq) = napi.napi.irq.and_then(|edge| case.host.irq(edge.irq)) else { continue };
        let to = if irq.effective_affinity.is_empty() { &irq.affinity } else { &irq.effective_affinity };
        let cached = topology.cpus.iter().filter(|cpu| to.contains(cpu.cpu)).flat_map(|cpu| cpu.llc.iter());
        let near: CpuSet = cached.collect();
        let runs = thread.cpus.intersection(&topology.online);
        if near.is_empty() || runs.is_empty() || !runs.intersection(&near).is_empty() {
            continue;
        }
        found.push(
            Found::new(
                Severity::Warning,
                napi.name(),
                format!("{} runs on CPUs {runs}, which share no cache with its interrupt's", named(thread)),
            )
            .evidence(format!(
                "interrupt {} goes to CPU {to}, whose last-level cache is shared by CPUs {near}",
                irq.number
            ))
            .evidence("every packet's descriptor and header is fetched from the other cache")
            .remedy(format!(
                "netpolicy set device {} threaded --kthread-cpus irq",
                remedy::named(napi.device)
            )),
        );
    }
    found
}

fn rt_throttled(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let Some(throttling) = case.host.rt_throttling else { return Vec::new() };
    let stopped = throttling.period_us - throttling.runtime_us;
    if throttling.runtime_us < 0 || stopped <= 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (napi, thread) in threads(case) {
        let Some(class) = thread.scheduling.filter(|class| class.real_time().is_some()) else { continue };
        let busy = napi.napi.threaded == Some(Threading::BusyPoll);
        if throttling.runtime_us > 0 && !busy {
            continue; // The thread sleeps between packets, so throttling stops it only under constant load.
        }
        let summary = if throttling.runtime_us == 0 {
            format!("{} has class {class}, and RT throttling lets no real-time thread run", named(thread))
        } else {
            format!(
                "{} has class {class} and never sleeps: it is stopped for {stopped} us of every {} us",
                named(thread),
                throttling.period_us
            )
        };
        found.push(
            Found::new(Severity::Problem, napi.name(), summary)
                .evidence(format!(
                    "sched_rt_runtime_us is {}, sched_rt_period_us is {}",
                    throttling.runtime_us, throttling.period_us
                ))
                .evidence(format!("threaded is {}", napi.napi.threaded.unwrap_or_default()))
                .remedy(thread.pid.map_or_else(
                    || format!("netpolicy set device {} threaded", remedy::named(napi.device)),
                    |pid| format!("chrt --other -p 0 {pid}"),
                ))
                .hinders([napi.napi.id]),
        );
    }
    found
}

fn rt_unbounded(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    if case.host.rt_throttling.is_none_or(|throttling| throttling.runtime_us >= 0) {
        return Vec::new();
    }
    let real_time = threads(case).filter_map(|(napi, thread)| {
        let class = thread.scheduling.filter(|class| class.real_time().is_some())?;
        Some((napi, thread, class))
    });
    real_time
        .map(|(napi, thread, class)| {
            Found::new(
                Severity::Warning,
                napi.name(),
                format!("{} has class {class}, and nothing stops it while packets arrive", named(thread)),
            )
            .evidence(format!("sched_rt_runtime_us is -1; it may run on CPUs {}", thread.cpus))
            .remedy("sysctl -w kernel.sched_rt_runtime_us=950000")
        })
        .collect()
}
