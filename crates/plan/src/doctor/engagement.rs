//! Judges the engagement of each NAPI by the share of packets that each context delivered. The thresholds lie
//! between measured results. With unmodified memcached on a veth and Linux 6.18, `epoll_wait` delivered 88–98
//! % of the packets with correct settings, 56–76 % when epolls and NAPIs were mixed and suspension was
//! intermittent, and at most 8 % when a setting was missing. With correct settings and a low load, it
//! delivered 5 %: deferral correctly delivered the rest.

use model::{DeliveryMode, NapiDelivered, Severity, Threading};

use super::case::{Case, EpollCase, NapiCase};
use super::rule::{Causes, DoctorRule, Found};

/// Suspension is engaged if the application delivers at least this share of packets. Measured: 88–98 %.
pub const ENGAGED_PERCENT_MIN: u64 = 80;

/// Suspension is not engaged if the application delivers at most this share of packets. Measured: 0–8 %;
/// 56–76 % if it was intermittent.
pub const NOT_ENGAGED_PERCENT_MAX: u64 = 10;

/// If the application delivers less than this share of packets and deferral delivers the most, deferral may
/// be the expected state. Measured: 5 %; 56 % and more if suspension was intermittent.
const IDLE_PERCENT_MAX: u64 = 50;

/// If at least this share of the timer's polls is empty, the application is idle, and deferral is the
/// expected state. Measured: 4 400 empty timer polls per second at 1 000 requests per second.
pub const EMPTY_PERCENT_MIN: u64 = 50;

/// If the application was runnable without a CPU for at least this share of the interval, the timer delivers
/// because the CPU is busy, not because there is little traffic. An application with its own CPU hardly
/// waits.
pub(super) const WAITED_PERCENT_MIN: u64 = 10;

/// If at least this share of the application's non-empty polls is followed by a suspended IRQ, the
/// application uses suspension: `epoll_wait` suspends whenever it has found events. A poll may also find
/// packets of another epoll, or pure ACKs. Measured with memcached: 96 %, and 6 % with four epolls on one
/// NAPI. Plain busy polling never suspends. Kernel: 7.3, `fs/eventpoll.c` `ep_suspend_napi_irqs()`.
const SUSPENDED_PERCENT_MIN: u64 = 1;

/// The maximum number of timer polls per packet. With more, the polls cost more than the interrupts that they
/// replace.
const TIMER_POLLS_PER_PACKET_MAX: u64 = 2;

/// The rules of this family. Exactly one of them applies to each NAPI with a setting or a request.
pub(super) const RULES: &[DoctorRule] = &[
    DoctorRule {
        id: "engaged",
        doc: "Suspension is set and engaged: the application delivers its packets.",
        find: |case, causes| all(case, causes, NapiState::Engaged),
    },
    DoctorRule {
        id: "partly-engaged",
        doc: "Suspension is set, and softirq still delivers many of the packets.",
        find: |case, causes| all(case, causes, NapiState::Partly),
    },
    DoctorRule {
        id: "idle",
        doc: "Suspension is set, and the application finishes before the next packets arrive; or a mode is set and no packet arrived.",
        find: |case, causes| all(case, causes, NapiState::Idle),
    },
    DoctorRule {
        id: "waits-for-cpu",
        doc: "Suspension is set, and the timer delivers while the application waits for a CPU.",
        find: |case, causes| all(case, causes, NapiState::Waits),
    },
    DoctorRule {
        id: "polled-not-suspended",
        doc: "Suspension is set, and the application busy-polls without it: no IRQ is suspended.",
        find: |case, causes| all(case, causes, NapiState::NotSuspended),
    },
    DoctorRule {
        id: "not-engaged",
        doc: "Suspension is set or requested, but softirq delivers the packets.",
        find: not_engaged,
    },
    DoctorRule {
        id: "not-counted",
        doc: "A mode is set, but whether it is engaged was not counted.",
        find: |case, causes| all(case, causes, NapiState::NotCounted),
    },
    DoctorRule {
        id: "busy-polled",
        doc: "Epolls busy-poll without suspension; shows the application's share of the packets.",
        find: |case, causes| all(case, causes, NapiState::BusyPolled),
    },
    DoctorRule {
        id: "kthread-polls",
        doc: "A kernel thread polls the NAPI, as set; shows its share of the packets.",
        find: |case, causes| all(case, causes, NapiState::Threaded),
    },
    DoctorRule {
        id: "kthread-does-not-poll",
        doc: "A kernel thread should poll the NAPI, but softirq does.",
        find: |case, causes| all(case, causes, NapiState::NotThreaded),
    },
    DoctorRule {
        id: "deferred",
        doc: "IRQs are deferred: the timer delivers the packets instead.",
        find: |case, causes| all(case, causes, NapiState::Deferred),
    },
    DoctorRule {
        id: "not-deferred",
        doc: "Deferral is set, but the timer does not deliver most of the packets.",
        find: |case, causes| all(case, causes, NapiState::NotDeferred),
    },
];

/// How the packets of one NAPI are delivered, compared with its settings and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NapiState {
    Engaged,
    Partly,
    Idle,
    Waits,
    NotSuspended,
    NotEngaged,
    NotCounted,
    BusyPolled,
    Deferred,
    NotDeferred,
    Threaded,
    NotThreaded,
}

/// Returns the findings on the NAPIs with this verdict.
fn all(case: &Case<'_>, causes: &Causes, verdict: NapiState) -> Vec<Found> {
    let of = |napi: &&NapiCase<'_>| verdict_of(case, causes, napi) == Some(verdict);
    case.napis.values().filter(of).map(|napi| finding(case, causes, napi, verdict)).collect()
}

/// Returns the findings on NAPIs whose suspension is not engaged, and on processes that have no NAPI to
/// suspend.
fn not_engaged(case: &Case<'_>, causes: &Causes) -> Vec<Found> {
    let mut found = all(case, causes, NapiState::NotEngaged);
    if case.suspended().next().is_some() {
        return found; // The connections without a NAPI are then reported as a cause of this verdict.
    }
    for process in case.processes.values().filter(|process| case.concerns(process)) {
        if process.napis.is_empty() && process.on_no_napi > 0 {
            found.push(
                Found::new(
                    Severity::Problem,
                    process.process.id,
                    "suspension is not engaged: none of its connections receives on a NAPI",
                )
                .evidence(format!("{} connections on no NAPI", process.on_no_napi)),
            );
        }
    }
    found
}

/// Returns the verdict on a NAPI; `None` for a NAPI without settings or requests.
fn verdict_of(case: &Case<'_>, causes: &Causes, napi: &NapiCase<'_>) -> Option<NapiState> {
    let asked = napi.asked.map(|asked| asked.mode);
    let suspends = napi.suspends() || napi.asked_to_suspend();
    let polls = napi.preferred || matches!(asked, Some(DeliveryMode::NapiBusy | DeliveryMode::FullBusy));
    let defers = napi.defers() || matches!(asked, Some(DeliveryMode::Defer { .. }));
    let threaded = napi.napi.threaded.is_some_and(|threading| threading != Threading::Off);
    let asked_to_thread = asked.is_some_and(|mode| mode.threading() != Threading::Off);
    if !suspends && !polls && (threaded || asked_to_thread) {
        let Some(counts) = &napi.counts else { return Some(NapiState::NotCounted) };
        return Some(match percent(counts.kthread.packets, counts.total().packets) {
            Some(share) if share >= ENGAGED_PERCENT_MIN => NapiState::Threaded,
            None if threaded => NapiState::Idle,
            Some(_) | None => NapiState::NotThreaded,
        });
    }
    if !suspends && !polls && !defers {
        return None;
    }
    let Some(counts) = &napi.counts else { return Some(NapiState::NotCounted) };
    let timers_hidden = case.delivered.is_some_and(|delivered| delivered.timers_hidden);
    if suspends {
        let hindered = causes.of(napi.napi.id).is_some_and(|causes| causes.has_problem);
        let suspending = if timers_hidden { may_suspend(case, napi) } else { taken_up(counts) };
        return Some(match suspension(counts, hindered, timers_hidden) {
            NapiState::Idle if waited(case, napi).is_some() => NapiState::Waits,
            NapiState::Engaged | NapiState::Partly if !suspending => NapiState::NotSuspended,
            verdict => verdict,
        });
    }
    if counts.total().packets == 0 && (napi.preferred || napi.defers()) {
        return Some(NapiState::Idle);
    }
    if polls {
        return Some(NapiState::BusyPolled);
    }
    if timers_hidden {
        return Some(NapiState::NotCounted);
    }
    // Compare packets, not polls, because many polls of the timer find no packet.
    let (timer, interrupt) = (counts.timer.packets, counts.interrupt.packets);
    Some(if timer > 0 && timer >= interrupt { NapiState::Deferred } else { NapiState::NotDeferred })
}

/// Returns the verdict on suspension, from the share of packets that the application delivered. A quiet NAPI
/// is idle, unless an earlier finding explains why suspension is not engaged.
fn suspension(counts: &NapiDelivered, hindered: bool, timers_hidden: bool) -> NapiState {
    let share = percent(counts.application.packets, counts.total().packets);
    match share {
        None if hindered => NapiState::NotEngaged,
        None => NapiState::Idle,
        Some(share) if share >= ENGAGED_PERCENT_MIN => NapiState::Engaged,
        Some(share) if share < IDLE_PERCENT_MAX && !hindered && idles(counts, timers_hidden) => {
            NapiState::Idle
        }
        Some(share) if share <= NOT_ENGAGED_PERCENT_MAX => NapiState::NotEngaged,
        Some(_) => NapiState::Partly,
    }
}

/// Returns whether the application uses suspension, that is, whether the IRQ is suspended after the
/// application has found packets.
pub(super) fn taken_up(counts: &NapiDelivered) -> bool {
    let found = counts.application.polls.saturating_sub(counts.application.empty);
    counts.suspended > 0
        && percent(counts.suspended, found).is_none_or(|share| share >= SUSPENDED_PERCENT_MIN)
}

/// Returns whether a process that polls the NAPI could suspend its IRQ although no suspension was observed.
/// Only epolls that prefer busy polling can do so, and a process that was not inspected may have one.
fn may_suspend(case: &Case<'_>, napi: &NapiCase<'_>) -> bool {
    let mut pollers = case.pollers(napi).peekable();
    pollers.peek().is_none() || pollers.any(|process| process.epolls.iter().any(EpollCase::prefers))
}

/// Returns whether suspension is used when there is traffic, while most polls of deferral find no packets.
pub(super) fn idles(counts: &NapiDelivered, timers_hidden: bool) -> bool {
    // If the counters cannot tell timers from interrupts, polls of timers count as polls after an interrupt,
    // and it is unknown whether suspension armed a timer.
    let (taken_up, polled) = if timers_hidden {
        (counts.application.polls > 0, counts.softirq())
    } else {
        (counts.suspended > 0, counts.timer)
    };
    taken_up && percent(polled.empty, polled.polls).is_some_and(|share| share >= EMPTY_PERCENT_MIN)
}

/// Returns the share of the interval for which the application had no CPU, if that explains why it did not
/// poll.
fn waited(case: &Case<'_>, napi: &NapiCase<'_>) -> Option<(u64, String)> {
    let wait = case.waited_for_cpu(napi)?;
    (wait.percent >= WAITED_PERCENT_MIN).then(|| (wait.percent, wait.process.process.id.to_string()))
}

pub(super) fn percent(part: u64, whole: u64) -> Option<u64> {
    let share = (u128::from(part) * 100).checked_div(u128::from(whole))?;
    u64::try_from(share).ok()
}

/// Creates the finding on a NAPI: the verdict, its evidence, and the remedy.
fn finding(case: &Case<'_>, causes: &Causes, napi: &NapiCase<'_>, verdict: NapiState) -> Found {
    let causes = causes.of(napi.napi.id);
    let why = match causes.and_then(|causes| causes.named.first()) {
        Some((rule, object)) if *object == napi.name() => format!("; cause: {rule}"),
        Some((rule, object)) => format!("; cause: {rule} of {object}"),
        None if verdict == NapiState::Partly => rest(case, napi),
        None => String::new(),
    };
    let (severity, summary) = summary(case, napi, verdict, &why);
    let mut found = Found::new(severity, napi.name(), summary).evidence(napi.values());
    if let Some(counts) = &napi.counts {
        for line in counted(case, counts) {
            found = found.evidence(line);
        }
    }
    for line in super::batches::evidence(case, napi) {
        found = found.evidence(line);
    }
    if verdict == NapiState::Idle
        && let Some(line) = napi.counts.as_ref().and_then(|counts| often(case, counts))
    {
        found = found.evidence(line);
    }
    if matches!(verdict, NapiState::Engaged | NapiState::Idle | NapiState::Deferred | NapiState::Threaded) {
        return found;
    }
    if verdict == NapiState::Waits {
        return found.remedy(CPU_OF_ITS_OWN);
    }
    let Some(causes) = causes else { return found };
    for (rule, object) in &causes.named {
        found = found.evidence(format!("cause: {rule} of {object}"));
    }
    if causes.more > 0 {
        found = found.evidence(format!("and {} more cause(s)", causes.more));
    }
    match &causes.remedy {
        Some(remedy) => found.remedy(remedy.as_str()),
        None => found,
    }
}

/// Returns the severity and the sentence of a verdict. If a mechanism is not engaged, `why` is appended.
fn summary(case: &Case<'_>, napi: &NapiCase<'_>, verdict: NapiState, why: &str) -> (Severity, String) {
    let share = napi.counts.as_ref().and_then(|c| percent(c.application.packets, c.total().packets));
    let share = share.map_or_else(|| "no packets".to_owned(), |share| format!("{share} % of its packets"));
    match verdict {
        NapiState::Engaged => {
            (Severity::Ok, format!("suspension is set and engaged: the application delivers {share}"))
        }
        NapiState::Partly => (
            Severity::Warning,
            format!("suspension is set and partly engaged: the application delivers {share}{why}"),
        ),
        NapiState::Idle => (
            Severity::Note,
            match napi.packets() {
                Some(packets) if packets > 0 => format!(
                    "suspension is set but not needed: at {} packets the application finishes before the next one arrives, so deferral delivers them; the application delivers {share}",
                    case.rate(packets)
                ),
                _ => format!("{} is set and idle: no packet arrived", what_is_set(napi)),
            },
        ),
        NapiState::Waits => {
            let (percent, process) = waited(case, napi).unwrap_or_default();
            (
                Severity::Warning,
                format!(
                    "suspension is set, but {process} waits for its CPU {percent} % of the time: meanwhile the timer delivers its packets; the application delivers {share}"
                ),
            )
        }
        NapiState::NotSuspended => (
            Severity::Warning,
            format!(
                "suspension is set but not used: the application busy-polls {share} without suspending IRQs{why}"
            ),
        ),
        NapiState::NotEngaged => {
            let set = if napi.suspends() { "set but not engaged" } else { "not set" };
            (Severity::Problem, format!("suspension is {set}: the application delivers {share}{why}"))
        }
        NapiState::NotCounted => {
            (Severity::Note, format!("{} is set; whether it is engaged was not counted", what_is_set(napi)))
        }
        NapiState::BusyPolled => {
            (Severity::Note, format!("busy polling without suspension: the application delivers {share}"))
        }
        NapiState::Threaded => {
            (Severity::Ok, format!("the kernel thread polls: it delivers {}", by_kthread(napi)))
        }
        NapiState::NotThreaded => {
            let set = if napi.napi.threaded.is_some_and(|threading| threading != Threading::Off) {
                "set but not engaged"
            } else {
                "not set"
            };
            (Severity::Problem, format!("the kernel thread is {set}: it delivers {}{why}", by_kthread(napi)))
        }
        NapiState::Deferred => {
            (Severity::Ok, format!("deferral is set and engaged: the timer delivers {}", by_timer(napi)))
        }
        NapiState::NotDeferred => {
            let set = if napi.defers() { "set but not engaged" } else { "not set" };
            (Severity::Warning, format!("deferral is {set}: the timer delivers {}{why}", by_timer(napi)))
        }
    }
}

/// If no cause was found, names the context that delivers most of the remaining packets.
fn rest(case: &Case<'_>, napi: &NapiCase<'_>) -> String {
    let Some(counts) = &napi.counts else { return String::new() };
    let parts =
        [("the timer", counts.timer), ("interrupts", counts.interrupt), ("a kernel thread", counts.kthread)];
    let most = parts.into_iter().max_by_key(|(_, polled)| polled.packets);
    most.map_or_else(String::new, |(who, polled)| {
        format!("; most of the rest is delivered by {who}, {}", case.rate(polled.packets))
    })
}

/// Returns a note if the timer polls so often that the polls cost more than they save.
fn often(case: &Case<'_>, counts: &NapiDelivered) -> Option<String> {
    let packets = counts.total().packets;
    let each = counts.timer.polls.checked_div(packets)?;
    (each > TIMER_POLLS_PER_PACKET_MAX).then(|| {
        format!(
            "the timer polls {} and {each} times per packet: a longer gro-flush-timeout polls less, but may add up to its length to the response time",
            case.rate(counts.timer.polls)
        )
    })
}

/// Returns the name of the mechanism that is set on a NAPI.
fn what_is_set(napi: &NapiCase<'_>) -> &'static str {
    if napi.suspends() {
        "suspension"
    } else if napi.napi.threaded.is_some_and(|threading| threading != Threading::Off) {
        "a kernel thread"
    } else if napi.preferred {
        "preferred busy polling"
    } else if napi.defers() {
        "deferral"
    } else {
        "nothing that was requested"
    }
}

fn by_timer(napi: &NapiCase<'_>) -> String {
    let share = napi.counts.as_ref().and_then(|c| percent(c.timer.packets, c.total().packets));
    share.map_or_else(|| "no packets".to_owned(), |share| format!("{share} % of the packets"))
}

fn by_kthread(napi: &NapiCase<'_>) -> String {
    let share = napi.counts.as_ref().and_then(|c| percent(c.kthread.packets, c.total().packets));
    share.map_or_else(|| "no packets".to_owned(), |share| format!("{share} % of the packets"))
}

/// Formats the counts of a NAPI as evidence.
fn counted(case: &Case<'_>, counts: &NapiDelivered) -> Vec<String> {
    let mut lines = vec![
        format!(
            "packets: application {}, timer {}, interrupt {}, kthread {}",
            case.rate(counts.application.packets),
            case.rate(counts.timer.packets),
            case.rate(counts.interrupt.packets),
            case.rate(counts.kthread.packets)
        ),
        format!(
            "polls: application {}, timer {} ({} empty), interrupt {}, kthread {}",
            case.rate(counts.application.polls),
            case.rate(counts.timer.polls),
            case.rate(counts.timer.empty),
            case.rate(counts.interrupt.polls),
            case.rate(counts.kthread.polls)
        ),
    ];
    if !case.delivered.is_some_and(|delivered| delivered.timers_hidden) {
        lines.push(format!(
            "timer armed {}, with irq-suspend-timeout {}, expired {}",
            case.rate(counts.timer_armed),
            case.rate(counts.suspended),
            case.rate(counts.timer_expired)
        ));
    }
    for (pid, counts) in counts.by_process.iter().take(PROCESSES_SHOWN_MAX) {
        let process = case.processes.get(pid);
        let name = process.map_or_else(|| format!("task {pid}"), |p| p.process.id.to_string());
        lines.push(format!("packets delivered by {name}: {}", case.rate(counts.packets)));
    }
    lines
}

/// The remedy for an application that has to wait for its CPU.
pub(super) const CPU_OF_ITS_OWN: &str =
    "give the application a CPU that no other task uses (`cpus` in the policy file, taskset)";

/// The maximum number of processes to name for a NAPI, busiest first.
const PROCESSES_SHOWN_MAX: usize = 4;
