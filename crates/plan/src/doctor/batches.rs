//! Determines the suspension timeout that an application needs, from its measured batches.
//!
//! `epoll_wait` arms `irq-suspend-timeout` when it returns events, and the next `epoll_wait` polls the NAPI
//! or arms the timeout again. So the timeout must outlast the longest batch: the number of events of one
//! return (at most `maxevents`) times the time for each event. Otherwise, the timer polls in the middle of a
//! batch, and deferral ends in interrupts. A timeout far beyond that has no benefit, and makes packets wait
//! that long if the application stalls. Kernel: 6.13, `fs/eventpoll.c` `ep_suspend_napi_irqs()`,
//! `net/core/dev.c` `napi_watchdog()`.

use model::{BatchesOf, DeliveryMode, EventBatches, Nanoseconds, Severity, keys};

use super::case::{Case, NapiCase, ProcessCase};
use super::rule::{Causes, DoctorRule, Found};

/// The rules of this family.
pub(super) const RULES: &[DoctorRule] = &[
    DoctorRule {
        id: "suspension-shorter-than-batch",
        doc: "irq-suspend-timeout ends while the application still handles the events of one epoll_wait.",
        find: shorter_than_batch,
    },
    DoctorRule {
        id: "suspension-longer-than-needed",
        doc: "irq-suspend-timeout is many times longer than the application's longest batch.",
        find: longer_than_needed,
    },
];

/// The factor by which the timeout should exceed the longest measured batch, because the longest batch of all
/// may fall outside a short observation.
const MARGIN: u64 = 2;

/// The largest timeout that is proposed. An application that takes longer has stalled, and its packets should
/// not wait for it.
const PROPOSED_MAX: Nanoseconds = Nanoseconds::from_millis(100);

/// A timeout is reported as too long if it is at least this many times the needed timeout, and also longer
/// than the timeout of the delivery modes.
const FAR_LONGER: u64 = 10;

/// The minimum number of measured batches: with fewer, the longest one is too uncertain.
const BATCHES_MIN: u64 = 100;

/// The process with the longest batches on a NAPI.
pub(super) struct Longest<'c, 'h> {
    process: &'c ProcessCase<'h>,
    batches: &'c EventBatches,
    /// The number of connections on the NAPI that the process's epoll watches.
    connections: u64,
}

impl Longest<'_, '_> {
    /// How long a full batch would take: an event of each connection, but at most `maxevents`, times the time
    /// per event.
    fn full(&self) -> Option<(u64, Nanoseconds)> {
        let events = self.batches.maxevents.min(self.connections);
        let each = self.batches.each()?;
        Some((events, Nanoseconds(each.0.saturating_mul(events))))
    }

    /// Returns the timeout that suffices; `None` if the application stalls for longer than any proposed
    /// timeout, or if too few batches were measured.
    fn needed(&self, flush: Nanoseconds) -> Option<Nanoseconds> {
        if self.batches.count < BATCHES_MIN {
            return None;
        }
        let longest = self.batches.longest_so_far().0.saturating_mul(MARGIN);
        let full = self.full().map_or(0, |(_, full)| full.0);
        round_up(longest.max(full), flush)
    }

    /// Returns whether a batch lasted longer than this timeout.
    fn outlasts(&self, set: Nanoseconds) -> bool {
        self.batches.outlasted > 0 || self.batches.longest_so_far() > set
    }

    /// Returns the timeout that suffices, if `set` is far longer than that and longer than the timeout of the
    /// delivery modes.
    fn needs_far_less(&self, set: Nanoseconds, flush: Nanoseconds) -> Option<Nanoseconds> {
        let needed = self.needed(flush)?;
        (set > usual() && set.0 >= needed.0.saturating_mul(FAR_LONGER)).then_some(needed)
    }

    /// Returns the evidence: the measurement, and the timeout that follows from it.
    fn lines(&self, flush: Nanoseconds) -> Vec<String> {
        let (process, batches) = (self.process.process.id, self.batches);
        let mut measured =
            format!("longest of {} batches of {process}: {}", batches.count, brief(batches.longest));
        if batches.maxevents > 0 {
            measured.push_str(&format!(
                " for {} of at most {} events",
                batches.longest_events, batches.maxevents
            ));
        }
        if let Some(each) = batches.each() {
            measured.push_str(&format!(", {} each on average", brief(each)));
        }
        let mut lines = vec![measured];
        if let Some((events, full)) = self.full() {
            lines.push(format!(
                "a batch of {events} events, one of each connection, would take {}",
                brief(full)
            ));
        }
        if batches.outlasted > 0 {
            lines.push(format!("batches in which irq-suspend-timeout ended: {}", batches.outlasted));
        }
        if let Some(span) = batches.unfinished.filter(|&span| span > batches.longest) {
            lines.push(format!("{process} has not called epoll_wait again for {}", brief(span)));
        }
        lines.extend(
            self.needed(flush).map(|needed| format!("the application needs irq-suspend-timeout {needed}")),
        );
        lines
    }
}

/// The process with the longest batch on this NAPI; `None` if none was measured.
pub(super) fn longest<'c, 'h>(case: &'c Case<'h>, napi: &NapiCase<'_>) -> Option<Longest<'c, 'h>> {
    let measured = napi.epolls.iter().filter_map(|(epoll, &connections)| {
        let pid = epoll.process.pid;
        let (process, of) = (case.processes.get(&pid)?, &case.context.batches);
        let by_napi = || of.get(&(pid, BatchesOf::Napi(napi.napi.id)));
        let batches = of.get(&(pid, BatchesOf::Epoll(epoll.fd))).or_else(by_napi)?;
        Some(Longest { process, batches, connections: u64::try_from(connections).unwrap_or(u64::MAX) })
    });
    measured.max_by_key(|one| one.batches.longest_so_far())
}

/// Returns, as evidence, the timeout that the application needs on this NAPI. Returns nothing if no batches
/// were measured, or if a finding of this family already shows the timeout.
pub(super) fn evidence(case: &Case<'_>, napi: &NapiCase<'_>) -> Vec<String> {
    let Some(longest) = longest(case, napi) else { return Vec::new() };
    let set = napi.napi.irq_suspend_timeout.filter(|_| napi.suspends() && napi.defers());
    if set.is_some_and(|set| longest.outlasts(set) || longest.needs_far_less(set, flush(napi)).is_some()) {
        return Vec::new();
    }
    longest.lines(flush(napi))
}

fn flush(napi: &NapiCase<'_>) -> Nanoseconds {
    napi.napi.gro_flush_timeout.unwrap_or_default()
}

fn shorter_than_batch(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for (napi, set, longest) in suspended(case) {
        if !longest.outlasts(set) {
            continue;
        }
        let mut one = Found::new(
            Severity::Warning,
            napi.name(),
            format!(
                "irq-suspend-timeout ({set}) ends in the middle of a batch of {}, which takes up to {}",
                longest.process.process.id,
                brief(longest.batches.longest_so_far())
            ),
        );
        for line in longest.lines(flush(napi)) {
            one = one.evidence(line);
        }
        if let Some(counts) = &napi.counts {
            one = one.evidence(format!(
                "packets delivered by the timer {}, timer expired {}",
                case.rate(counts.timer.packets),
                case.rate(counts.timer_expired)
            ));
        }
        one = one.hinders([napi.napi.id]);
        found.push(match longest.needed(flush(napi)) {
            Some(needed) if needed > set => one.remedy(in_policy(needed)),
            _ => one.remedy(format!(
                "make the application call epoll_wait more often: a timeout beyond {PROPOSED_MAX} leaves its packets waiting"
            )),
        });
    }
    found
}

fn longer_than_needed(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for (napi, set, longest) in suspended(case) {
        let Some(needed) = longest.needs_far_less(set, flush(napi)) else { continue };
        let mut one = Found::new(
            Severity::Note,
            napi.name(),
            format!(
                "irq-suspend-timeout ({set}) is {} times what {} needs: if it stalls, packets wait for {set}",
                set.0 / needed.0.max(1),
                longest.process.process.id
            ),
        );
        for line in longest.lines(flush(napi)) {
            one = one.evidence(line);
        }
        found.push(one.remedy(in_policy(needed.min(usual()))));
    }
    found
}

/// The NAPIs with suspension, each with its timeout and its longest batch.
fn suspended<'c, 'h>(
    case: &'c Case<'h>,
) -> impl Iterator<Item = (&'c NapiCase<'h>, Nanoseconds, Longest<'c, 'h>)> {
    case.napis
        .values()
        .filter(|napi| napi.suspends() && napi.defers())
        .filter_map(|napi| Some((napi, napi.napi.irq_suspend_timeout?, longest(case, napi)?)))
}

/// The suspension timeout of the delivery modes: 20 ms.
fn usual() -> Nanoseconds {
    DeliveryMode::Suspend { gro_flush: Nanoseconds::ZERO }.params().irq_suspend_timeout
}

fn in_policy(needed: Nanoseconds) -> String {
    format!("set {} = \"{needed}\" in the policy file", keys::IRQ_SUSPEND_TIMEOUT)
}

/// Returns the smallest value of 1, 2, 5, 10, 20, … µs that is at least `span` and longer than `flush`;
/// `None` if it exceeds [`PROPOSED_MAX`].
fn round_up(span: u64, flush: Nanoseconds) -> Option<Nanoseconds> {
    let decades = std::iter::successors(Some(1_000_u64), |decade| decade.checked_mul(10));
    let mut steps = decades.flat_map(|decade| [decade, decade.saturating_mul(2), decade.saturating_mul(5)]);
    let step = steps.by_ref().take_while(|&step| step <= PROPOSED_MAX.0);
    step.map(Nanoseconds).find(|step| step.0 >= span && *step > flush)
}

/// Truncates a measured span to three digits.
fn brief(span: Nanoseconds) -> Nanoseconds {
    let digits = span.0.checked_ilog10().unwrap_or(0);
    let unit = 10_u64.pow(digits.saturating_sub(2));
    Nanoseconds(span.0 / unit * unit)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_proposed_timeout_is_a_round_number_beyond_the_timer_and_has_a_limit() {
        let micros = Nanoseconds::from_micros;
        for (span, flush, step) in [
            (0, 0, Some(1)),
            (1_001, 0, Some(2)),
            (2_000, 0, Some(2)),
            (180_000, 0, Some(200)),
            (180_000, 200, Some(500)),
            (100_000_000, 20, Some(100_000)),
            (100_000_001, 20, None),
            (1, 100_000, None),
        ] {
            assert_eq!(round_up(span, micros(flush)), step.map(micros), "{span} ns, timer of {flush} us");
        }
    }

    #[test]
    fn a_measured_span_is_shown_with_three_digits() {
        for (span, shown) in [(0, "0"), (999, "999ns"), (412_345, "412us"), (1_234_567, "1.23ms")] {
            assert_eq!(brief(Nanoseconds(span)).to_string(), shown);
        }
    }
}
