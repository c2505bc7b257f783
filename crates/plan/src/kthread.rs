//! Plans the kernel threads that poll NAPIs: which NAPIs may have one, where it runs, and its priority. A
//! real-time thread preempts all others on its CPU as long as it has packets, and the remote peer controls
//! how many arrive. So the thread's priority is bounded, and the thread is refused if neither RT throttling
//! nor sleep would ever stop it.

use model::{
    Budget, CpuSet, Intent, IrqNumber, KthreadCpus, KthreadKnob, KthreadState, Reason, RxQueue, Scheduling,
    Setting, Slice, Threading, since,
};

use crate::in_force;
use crate::index::Index;
use crate::placed::PlacedQueue;
use crate::placement::PlacedRequest;
use crate::refusal::{Refusal, RefusalKind};
use crate::wanted::Collected;

/// Checks that a request's kernel threads are available on this host and cannot starve other tasks.
///
/// # Errors
/// [`RefusalKind::Unsupported`] if the kernel lacks such threads, [`RefusalKind::Safety`] for a real-time
/// class without a bound, [`RefusalKind::Usage`] for thread settings in a mode without threads.
pub(crate) fn check(part: &PlacedRequest, index: &Index<'_>) -> Result<(), Refusal> {
    let (mode, request) = (part.delivery.mode, &part.intent.kthread);
    let refuse = |kind, message: String| {
        Refusal::new(kind, &part.intent.target, message)
            .because(format!("requested at {}", part.intent.origin))
    };
    if mode.threading() == Threading::Off {
        if request.is_empty() {
            return Ok(());
        }
        let message = format!("kthread values are given, but no kernel thread polls under {mode}");
        return Err(
            refuse(RefusalKind::Usage, message).nearest("delivery = \"threaded\", or without these values")
        );
    }
    supported(part, index, &refuse)?;
    match request.scheduling {
        Some(class) => real_time(part, index, class, &refuse),
        None => Ok(()),
    }
}

fn supported(
    part: &PlacedRequest,
    index: &Index<'_>,
    refuse: &impl Fn(RefusalKind, String) -> Refusal,
) -> Result<(), Refusal> {
    let (mode, host) = (part.delivery.mode, index.host);
    if mode.threading() == Threading::BusyPoll && !host.capabilities.napi_threaded_busy {
        let answer = if host.capabilities.napi_threaded {
            "its `napi-set` accepts threaded up to 1 (enabled); 2 (busy-poll) fails with ERANGE"
        } else {
            "its `napi-set` does not accept threaded"
        };
        let message = format!(
            "{mode} needs kernel threads that poll continuously (Linux {}); this is Linux {}",
            since::BUSY_THREADS,
            host.release
        );
        return Err(refuse(RefusalKind::Unsupported, message).because(answer).nearest("threaded"));
    }
    if host.capabilities.napi_threaded {
        return Ok(());
    }
    for placed in &part.queues {
        let id = placed.queue.device;
        if index.devices.get(&id).is_none_or(|device| device.threaded.is_none()) {
            let message = format!(
                "{mode} needs kernel threads for NAPIs (Linux {}); this is Linux {}",
                since::NAPI_THREADS,
                host.release
            );
            return Err(refuse(RefusalKind::Unsupported, message)
                .because(format!("/sys/class/net/{id}/threaded is not there"))
                .nearest("interrupt"));
        }
    }
    Ok(())
}

/// Checks that the budget allows a request's thread class. The check needs no object of the request, so it
/// can run before a command is started.
///
/// # Errors
/// [`RefusalKind::Safety`] for a real-time priority above the bound.
pub fn allowed_class(intent: &Intent) -> Result<(), Refusal> {
    match intent.kthread.scheduling.and_then(|class| Some((class, class.real_time()?))) {
        Some((class, priority)) => within_bound(intent, class, priority),
        None => Ok(()),
    }
}

fn within_bound(intent: &Intent, class: Scheduling, priority: u8) -> Result<(), Refusal> {
    let asked = intent.budget.rt_priority;
    let allowed = asked.unwrap_or(Budget::RT_PRIORITY_UNASKED);
    if u32::from(priority) <= allowed {
        return Ok(());
    }
    let who =
        if asked.is_some() { "the budget allows" } else { "no budget is given, and the default allows" };
    let message =
        format!("kernel threads with {class} exceed the allowed real-time priority: {who} {allowed}");
    Err(Refusal::new(RefusalKind::Safety, &intent.target, message)
        .because(format!("requested at {}", intent.origin))
        .nearest(format!(
            "`budget = {{ rt_priority = {priority} }}` in the policy file or `--rt-priority {priority}`; \
             or a priority of {allowed} or less"
        )))
}

/// Checks that a real-time thread stays within the bound and cannot monopolise its CPU.
fn real_time(
    part: &PlacedRequest,
    index: &Index<'_>,
    class: Scheduling,
    refuse: &impl Fn(RefusalKind, String) -> Refusal,
) -> Result<(), Refusal> {
    let Some(priority) = class.real_time() else { return Ok(()) };
    within_bound(&part.intent, class, priority)?;
    if part.delivery.mode.threading() == Threading::BusyPoll {
        return Err(refuse(
            RefusalKind::Safety,
            format!("a kernel thread that polls continuously with {class} leaves its CPU to no other task"),
        )
        .nearest("threaded-busy with `other:-20` on separate CPUs, or threaded with this class"));
    }
    let Some(throttling) = index.host.rt_throttling else {
        return Err(refuse(
            RefusalKind::Missing,
            format!(
                "kernel threads with {class} need RT throttling, and sched_rt_runtime_us could not be read"
            ),
        ));
    };
    let why = match throttling.runtime_us {
        i64::MIN..=-1 => "nothing would stop the thread while packets arrive",
        0 => "no real-time thread runs at all",
        1.. => return Ok(()),
    };
    Err(refuse(
        RefusalKind::Safety,
        format!("kernel threads with {class} are not safe here: with this RT throttling, {why}"),
    )
    .because(format!(
        "/proc/sys/kernel/sched_rt_runtime_us is {}, of a period of {} us",
        throttling.runtime_us, throttling.period_us
    ))
    .nearest("sysctl -w kernel.sched_rt_runtime_us=950000, the kernel's default; or `other:-20`"))
}

/// Collects the desired settings of the queues' kernel threads. Call this after the interrupts' CPUs are
/// collected.
pub(crate) fn want(
    part: &PlacedRequest,
    index: &Index<'_>,
    collected: &mut Collected,
) -> Result<(), Refusal> {
    let request = &part.intent.kthread;
    if part.delivery.mode.threading() == Threading::Off {
        return Ok(());
    }
    for placed in &part.queues {
        let queue = placed.queue;
        let reason = |why: String| Reason::new(why, part.intent.origin.clone());
        if let Some((cpus, why)) = cpus(part, placed, index, collected)? {
            collected.want(Setting::Kthread(queue, KthreadKnob::Affinity(cpus)), reason(why))?;
        }
        if let Some(class) = request.scheduling {
            let why = match class.real_time() {
                Some(_) => "the kernel thread preempts every thread that is not real-time",
                None => "the kernel thread shares its CPU according to this class and nice value",
            };
            collected
                .want(Setting::Kthread(queue, KthreadKnob::Scheduling(class)), reason(why.to_owned()))?;
        }
        if let Some(clamp) = request.util_clamp {
            if index.host.kthread_begins.as_ref().is_some_and(|begins| begins.util_clamp.is_none()) {
                let message =
                    "a utilisation clamp for its kernel thread needs a kernel with CONFIG_UCLAMP_TASK";
                return Err(Refusal::new(RefusalKind::Unsupported, queue, message.to_owned())
                    .because(format!("requested at {}", part.intent.origin)));
            }
            let why = "the scheduler assumes this utilisation when it chooses CPU and frequency";
            collected.want(Setting::Kthread(queue, KthreadKnob::UtilClamp(clamp)), reason(why.to_owned()))?;
        }
        if let Some(slice) = request.slice {
            has_slices(part, queue, slice, index)?;
            let why = "the kernel thread runs this long before another waiting thread";
            collected.want(Setting::Kthread(queue, KthreadKnob::Slice(slice)), reason(why.to_owned()))?;
        }
    }
    Ok(())
}

/// Checks that a slice can be set for a queue's kernel thread.
fn has_slices(part: &PlacedRequest, queue: RxQueue, slice: Slice, index: &Index<'_>) -> Result<(), Refusal> {
    let asked = format!("requested at {}", part.intent.origin);
    if index.host.kthread_begins.as_ref().is_some_and(|begins| begins.slice.is_none()) {
        let message = format!(
            "a slice for its kernel thread needs Linux {}; this is {}",
            KthreadKnob::Slice(slice).facts().since,
            index.host.release
        );
        return Err(Refusal::new(RefusalKind::Unsupported, queue, message).because(asked));
    }
    let is_real_time = |class: &Scheduling| class.real_time().is_some();
    if let Some(class) = part.intent.kthread.scheduling {
        if !is_real_time(&class) {
            return Ok(());
        }
        let message = format!("a kernel thread with {class} has no slice: it runs until it sleeps");
        let refusal = Refusal::new(RefusalKind::Usage, queue, message).because(asked);
        return Err(refusal.nearest(format!("class {class} without a slice, or `other` with a slice")));
    }
    let now = in_force::kthread(&queue, index);
    let class = now.and_then(|thread| thread.scheduling).filter(is_real_time);
    match (now, class) {
        (Some(thread), Some(class)) if slice != Slice::Default => {
            let thread = thread.pid.map(|pid| format!(" {pid}")).unwrap_or_default();
            let message = format!(
                "kthread slice {slice} cannot be set: the kernel thread{thread} has class {class} now, and a real-time \
                 thread has no slice: it runs until it sleeps"
            );
            let refusal = Refusal::new(RefusalKind::Conflict, queue, message).because(asked);
            Err(refusal.nearest(format!(
                "class = \"other\" with a slice (--kthread-class other), or class {class} without a slice"
            )))
        }
        _ => Ok(()),
    }
}

/// Returns the CPUs for a queue's kernel thread, with the reason; `None` to leave the CPUs unchanged.
fn cpus(
    part: &PlacedRequest,
    placed: &PlacedQueue,
    index: &Index<'_>,
    collected: &Collected,
) -> Result<Option<(CpuSet, String)>, Refusal> {
    let refuse = |kind, message: String| {
        Refusal::new(kind, placed.queue, message).because(format!("requested at {}", part.intent.origin))
    };
    let (near, sibling) = match &part.intent.kthread.cpus {
        None => return Ok(None),
        Some(KthreadCpus::Any) => {
            let begins = index.host.kthread_begins.as_ref();
            return Ok(begins
                .map(|begins| (begins.cpus.clone(), "the scheduler places the kernel thread".to_owned())));
        }
        Some(KthreadCpus::Set(asked)) => {
            let running = asked.intersection(&index.host.topology.online);
            if running.is_empty() {
                let message = format!("none of the CPUs for its kernel thread ({asked}) are online");
                let online = format!("CPUs of {}", index.host.topology.online);
                return Err(refuse(RefusalKind::Usage, message).nearest(online));
            }
            let mut why = format!("kernel threads of {} run on CPUs {running}", placed.queue.device);
            let away = asked.difference(&index.host.topology.online);
            if !away.is_empty() {
                why.push_str(&format!(" (the requested CPUs {away} are offline)"));
            }
            return Ok(Some((running, why)));
        }
        Some(KthreadCpus::Irq) => (irq_cpus(placed, index, collected), false),
        Some(KthreadCpus::Sibling) => (irq_cpus(placed, index, collected), true),
    };
    let Some((irq, near)) = near else {
        let message = "its interrupt is unknown, so its kernel thread cannot be placed near it".to_owned();
        return Err(refuse(RefusalKind::Unsupported, message)
            .nearest("a list of CPUs, as in kthread = { cpus = \"0\" }"));
    };
    if !sibling {
        return Ok(Some((near, format!("the kernel thread runs where interrupt {irq} is delivered"))));
    }
    let cores = index.host.topology.cpus.iter().filter(|cpu| near.contains(cpu.cpu));
    let threads: CpuSet = cores.flat_map(|cpu| cpu.siblings.iter()).collect();
    let siblings = threads.difference(&near).intersection(&index.host.topology.online);
    if siblings.is_empty() {
        let message = format!("the core of interrupt {irq} (CPU {near}) has no other online hardware thread");
        return Err(refuse(RefusalKind::Unsupported, message).nearest("kthread = { cpus = \"irq\" }"));
    }
    Ok(Some((
        siblings,
        format!("the kernel thread runs next to interrupt {irq}, on the other hardware threads of its core"),
    )))
}

/// Returns a queue's interrupt, and the CPUs on which it will run.
fn irq_cpus(placed: &PlacedQueue, index: &Index<'_>, collected: &Collected) -> Option<(IrqNumber, CpuSet)> {
    let number = placed.irq?;
    if let Some(wanted) = collected.wanted_of_irq(number) {
        return Some((number, wanted.clone()));
    }
    let irq = index.irqs.get(&number)?;
    let cpus = if irq.effective_affinity.is_empty() { &irq.affinity } else { &irq.effective_affinity };
    (!cpus.is_empty()).then(|| (number, cpus.clone()))
}

/// Prepares to end a kernel thread, which then loses its scheduling attributes. First restores its initial
/// scheduling, so that the change can be undone.
pub(crate) fn want_to_end(
    placed: &PlacedQueue,
    index: &Index<'_>,
    because: &Reason,
    collected: &mut Collected,
) -> Result<(), Refusal> {
    let queue = placed.queue;
    let (Some(now), Some(begins)) = (in_force::kthread(&queue, index), &index.host.kthread_begins) else {
        return Ok(());
    };
    let KthreadState { pid: _, cpus, scheduling, util_clamp, slice } = begins;
    if now.cpus != *cpus {
        collected.want(Setting::Kthread(queue, KthreadKnob::Affinity(cpus.clone())), because.clone())?;
    }
    if let (Some(_), Some(class)) = (now.scheduling.filter(|now| Some(*now) != *scheduling), scheduling) {
        collected.want(Setting::Kthread(queue, KthreadKnob::Scheduling(*class)), because.clone())?;
    }
    if let (Some(_), Some(clamp)) = (now.util_clamp.filter(|now| Some(*now) != *util_clamp), util_clamp) {
        collected.want(Setting::Kthread(queue, KthreadKnob::UtilClamp(*clamp)), because.clone())?;
    }
    if let (Some(_), Some(slice)) = (now.slice.filter(|now| Some(*now) != *slice), slice) {
        collected.want(Setting::Kthread(queue, KthreadKnob::Slice(*slice)), because.clone())?;
    }
    Ok(())
}
