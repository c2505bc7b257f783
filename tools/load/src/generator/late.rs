//! Decides when a run does not count because the generator, not the server, determined the response times.
//!
//! A response time starts at the due time, so it includes any delay of the generator between the due time and
//! the write. That delay is known exactly: `generator_lateness`, counted from the moment when the request was
//! due *and* its connection had room. (Waiting for room on the connection is the server's doing and not
//! included.) Lateness and response time are compared at two points:
//!
//! - the median, where lateness adds equally to every response time: its share of the response time must be
//!   small against the differences between delivery modes;
//! - the 99th percentile, where one pause of the client's CPU (a softirq, another guest) causes late requests
//!   and long response times together: the tail may contain such pauses but must not consist mostly of them.
//!
//! A client that sleeps until a request is due ([`Waiting::Block`]) is late by its wake-up latency. An
//! ordinary client has the same latency, and its users wait for it: lateness up to [`WAKING`] never makes a
//! run void. Above that, lateness may be up to half of the response time at the same percentile. If lateness
//! is more, the percentile shows when the client ran rather than when the server answered, and the run is
//! void.
//!
//! In closed loop, a request is due when the generator has read the last answer, so it cannot be late.
//! `generator_busy` shows whether the generator was the limit.

use model::{Evidence, Nanoseconds, OfferedLoad, Waiting};

/// Maximum lateness at the median, as a share of the median response time.
pub const GENERATOR_LATE_P50_SHARE: f64 = 0.2;

/// Maximum lateness at the 99th percentile, as a share of the 99th percentile of response time.
pub const GENERATOR_LATE_P99_SHARE: f64 = 0.5;

/// Lateness that never makes a run void: two iterations of the generator's own loop.
pub const GENERATOR_LATE_FLOOR: Nanoseconds = Nanoseconds::from_micros(2);

/// Lateness that never makes a run of a sleeping client void: the wake-up latency of an idle CPU
/// with the kernel's default timer slack of 50 us.
pub const WAKING: Nanoseconds = Nanoseconds::from_micros(60);

/// Maximum lateness of a sleeping client, as a share of the response time at the same percentile.
pub const SLEEPER_LATE_SHARE: f64 = 0.5;

/// A run with at least this share of refused requests is void: it measures how fast the server refuses.
pub const REFUSED_SHARE: f64 = 0.01;

/// Returns why this run does not count; `None` if it does.
#[expect(clippy::cast_precision_loss, reason = "shares of spans and counts below 2^53")]
pub fn void_reason(run: &Evidence) -> Option<String> {
    let requests = run.requests;
    if requests.due > 0 && requests.answered == 0 {
        return Some(format!("the server answered none of {} requests", requests.due));
    }
    if run.load == OfferedLoad::IDLE {
        return None;
    }
    if run.throughput <= 0.0 {
        return Some(format!(
            "no answer came within the window of {}: of {} requests {} were answered later",
            run.window, requests.due, requests.answered
        ));
    }
    if requests.errors as f64 > requests.answered as f64 * REFUSED_SHARE {
        return Some(format!("the server refused {} of {} requests", requests.errors, requests.answered));
    }
    if run.load == OfferedLoad::Max {
        return None;
    }
    let (floor, p50_share, p99_share) = match run.workload.pace().waiting {
        Waiting::Block => (WAKING, SLEEPER_LATE_SHARE, SLEEPER_LATE_SHARE),
        Waiting::Spin | Waiting::Sleep => {
            (GENERATOR_LATE_FLOOR, GENERATOR_LATE_P50_SHARE, GENERATOR_LATE_P99_SHARE)
        }
    };
    let late = |name: &str, lateness: Nanoseconds, latency: Nanoseconds, share: f64| {
        (lateness > floor && lateness.0 as f64 > latency.0 as f64 * share).then(|| {
            format!(
                "the generator was late: its {name} lateness is {lateness}, {:.0} % of the {name} response time \
                 {latency}; the limit is {:.0} %",
                lateness.0 as f64 / latency.0 as f64 * 100.0,
                share * 100.0
            )
        })
    };
    late("p50", run.generator_lateness.p50, run.latency.p50, p50_share)
        .or_else(|| late("p99", run.generator_lateness.p99, run.latency.p99, p99_share))
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::test_evidence;
    use model::Distribution;

    fn run(late_us: (u64, u64), latency_us: (u64, u64), load: OfferedLoad) -> Evidence {
        let spans = |(p50, p99)| Distribution {
            p50: Nanoseconds::from_micros(p50),
            p99: Nanoseconds::from_micros(p99),
            ..Distribution::default()
        };
        Evidence { generator_lateness: spans(late_us), latency: spans(latency_us), load, ..test_evidence() }
    }

    #[test]
    fn a_run_whose_generator_was_late_is_void_and_says_so() {
        let load = OfferedLoad::PerSecond(50_000.0);
        assert_eq!(void_reason(&run((1, 20), (30, 200), load)), None);
        assert_eq!(
            void_reason(&run((2, 2), (3, 3), load)),
            None,
            "an iteration of the loop is never too late"
        );
        let median = void_reason(&run((10, 20), (40, 200), load)).expect("late at the median");
        assert!(median.contains("p50 lateness is 10us, 25 % of the p50 response time 40us"), "{median}");
        let tail = void_reason(&run((1, 150), (40, 200), load)).expect("late in the tail");
        assert!(tail.contains("p99 lateness is 150us, 75 % of the p99 response time 200us"), "{tail}");
        assert_eq!(
            void_reason(&run((30, 150), (40, 200), OfferedLoad::Max)),
            None,
            "closed loop cannot be late"
        );
    }

    #[test]
    fn a_client_that_sleeps_may_be_late_by_its_waking_and_no_more_than_half_of_a_response_time() {
        let load = OfferedLoad::PerSecond(20_000.0);
        let sleeping = |late_us, latency_us| {
            let mut run = run(late_us, latency_us, load);
            run.workload.set_waiting(Waiting::Block);
            void_reason(&run)
        };
        assert_eq!(sleeping((60, 60), (70, 100)), None, "waking is part of an ordinary client");
        assert_eq!(sleeping((100, 900), (220, 2_000)), None, "less than half");
        let bursts = sleeping((500, 990), (542, 1_100)).expect("requests left in bursts of a millisecond");
        assert!(bursts.contains("p50 lateness is 500us, 92 % of the p50 response time 542us"), "{bursts}");
        let tail = sleeping((20, 3_000), (80, 4_000)).expect("the client causes the tail");
        assert!(tail.contains("p99 lateness is 3ms, 75 %"), "{tail}");
        assert!(void_reason(&run((60, 60), (70, 100), load)).is_some(), "a polling client may not sleep");
    }

    #[test]
    fn a_run_without_an_answer_is_void() {
        let mut silent = run((0, 0), (30, 200), OfferedLoad::PerSecond(1_000.0));
        silent.requests.due = 1_000;
        assert_eq!(void_reason(&silent).as_deref(), Some("the server answered none of 1000 requests"));
        silent.requests.answered = 1;
        assert_eq!(void_reason(&silent), None);
    }

    #[test]
    fn an_idle_run_needs_no_answer() {
        let mut idle = run((0, 0), (0, 0), OfferedLoad::IDLE);
        idle.throughput = 0.0;
        assert_eq!(void_reason(&idle), None);
    }

    #[test]
    fn a_run_whose_answers_all_came_after_its_window_is_void() {
        let mut slow = run((0, 0), (30, 200), OfferedLoad::Max);
        (slow.requests.due, slow.requests.answered, slow.throughput) = (4, 4, 0.0);
        let reason = void_reason(&slow).expect("no request was answered in time");
        assert!(reason.starts_with("no answer came within the window of"), "{reason}");
        assert!(reason.ends_with("of 4 requests 4 were answered later"), "{reason}");
        (slow.requests.due, slow.requests.answered) = (0, 0);
        assert!(void_reason(&slow).is_some(), "no request was due, either");
    }

    #[test]
    fn a_run_that_the_server_refused_is_void() {
        let mut refused = run((0, 0), (30, 200), OfferedLoad::Max);
        refused.requests.answered = 1000;
        refused.requests.errors = 10;
        assert_eq!(void_reason(&refused), None);
        refused.requests.errors = 11;
        assert_eq!(void_reason(&refused).as_deref(), Some("the server refused 11 of 1000 requests"));
    }
}
