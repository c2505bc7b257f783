//! Finds a timer that is too short for the application: if `gro-flush-timeout` expires too early, it ends
//! suspension.

use model::{DeliveryMode, Nanoseconds, Severity};

use super::case::{Case, NapiCase, WaitedForCpu};
use super::engagement::{ENGAGED_PERCENT_MIN, idles, percent, taken_up};
use super::remedy;
use super::rule::{Causes, DoctorRule, Found};

/// The rules of this family. They apply only if no earlier family has found a cause.
pub(super) const RULES: &[DoctorRule] = &[DoctorRule {
    id: "timer-before-application",
    doc: "gro-flush-timeout expires before the application gets a CPU.",
    find: timer_before_application,
}];

/// The values of `gro-flush-timeout` to propose. Measured with redis on a veth with other work: the
/// application delivers 33 % with 20 µs, and 72 to 83 % with 200 µs. The longer values are for slower CPUs:
/// an emulated CPU needs 5 ms.
const FLUSH_STEPS: [Nanoseconds; 3] =
    [Nanoseconds::from_micros(200), Nanoseconds::from_millis(1), Nanoseconds::from_millis(5)];

/// The factor by which the timer must exceed the average wait for a CPU, so that it outlasts most waits.
const WAITS_OUTLASTED: u64 = 2;

/// Reports a timer that expires before the application runs. After an empty poll of the application, the
/// timer polls and wakes the application. It then polls at each expiry until the application runs and
/// suspends the IRQ. Kernel: 7.3, `net/core/dev.c` `busy_poll_stop()` and `napi_complete_done()` arm the
/// timer with `gro-flush-timeout`, `napi_watchdog()` polls; `fs/eventpoll.c` `ep_suspend_napi_irqs()` arms it
/// with `irq-suspend-timeout` once there are events.
fn timer_before_application(case: &Case<'_>, causes: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    let suspended = case.napis.values().filter(|napi| napi.suspends() && napi.defers());
    for napi in suspended.filter(|napi| causes.of(napi.napi.id).is_none()) {
        let (Some(counts), Some(flush)) = (&napi.counts, napi.napi.gro_flush_timeout) else { continue };
        let all = counts.total().packets;
        let engaged =
            percent(counts.application.packets, all).is_none_or(|share| share >= ENGAGED_PERCENT_MIN);
        let others = counts.interrupt.packets + counts.kthread.packets;
        if engaged || !taken_up(counts) || idles(counts, false) || counts.timer.packets <= others {
            continue;
        }
        let wait = case.waited_for_cpu(napi);
        let until = match &wait {
            Some(WaitedForCpu { process, .. }) => format!("before {} gets a CPU", process.process.id),
            None => "before the application gets a CPU".to_owned(),
        };
        let share = percent(counts.timer.packets, all).unwrap_or_default();
        let mut one = Found::new(
            Severity::Warning,
            napi.name(),
            format!("its timer of {flush} expires {until}: the timer delivers {share} % of the packets"),
        )
        .evidence(format!(
            "packets by the timer {} in polls {}",
            case.rate(counts.timer.packets),
            case.rate(counts.timer.polls)
        ))
        .hinders([napi.napi.id]);
        if let Some(WaitedForCpu { process, percent, each: Some(each) }) = &wait {
            one = one.evidence(format!(
                "{} waits for its CPU {percent} % of the time, {each} each time on average",
                process.process.id
            ));
        }
        let each = wait.and_then(|wait| wait.each).unwrap_or_default();
        found.push(match longer(napi, flush, each) {
            Some(mode) => one.remedy(remedy::set_device(napi.device, mode)),
            None => one.remedy(super::engagement::CPU_OF_ITS_OWN),
        });
    }
    found
}

/// Returns suspension with the shortest timer of [`FLUSH_STEPS`] that is longer than the current one and
/// outlasts such waits; `None` if the suspension timeout is not longer than that timer.
fn longer(napi: &NapiCase<'_>, flush: Nanoseconds, wait: Nanoseconds) -> Option<DeliveryMode> {
    let outlasts = |step: &&Nanoseconds| **step > flush && step.0 >= wait.0.saturating_mul(WAITS_OUTLASTED);
    let step = *FLUSH_STEPS.iter().find(outlasts)?;
    let mode = DeliveryMode::Suspend { gro_flush: step };
    (napi.napi.irq_suspend_timeout > Some(step)).then_some(mode)
}
