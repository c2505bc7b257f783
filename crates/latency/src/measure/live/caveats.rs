//! Limits of a live measurement: conditions that the figures of the windows do not show, each with evidence
//! and a remedy.

use model::live::LiveCounts;
use model::{Finding, Nanoseconds, Severity};

use super::series::{Estimator, REQUESTS_MIN, Series, Stretch, requests_for};
use super::summary::Percentiles;
use super::survival::count;

/// The shares of affected requests above which a quantity is reported as unreliable.
const STEERED_MAX: f64 = 0.01;
const LOST_MAX: f64 = 0.01;
const UNSOLICITED_MAX: f64 = 0.05;
const WITHOUT_NAPI_MAX: f64 = 0.01;
const THREADED_MAX: f64 = 0.01;
const KSOFTIRQD_MAX: f64 = 0.05;
const DROPPED_MAX: f64 = 0.001;
const UNANSWERED_MAX: f64 = 0.01;
const UNPAIRED_MAX: f64 = 0.01;
/// The minimum number of datagrams for a finding.
const DATAGRAMS_MIN: u64 = 10;
/// The minimum share of arrivals with a masked interrupt from which it is reported that only estimate U is
/// available.
const MASKED_MIN: f64 = 0.05;

/// The largest difference between two estimates that counts as agreement: relative, and in nanoseconds.
const APART_MAX: f64 = 0.3;
const APART_MAX_NS: f64 = 30_000.0;

/// The age from which an unanswered request is reported as hanging.
pub const HANGS_AFTER: Nanoseconds = Nanoseconds::from_millis(1_000);

/// The minimum measured time after which it is reported that there were no requests. A window of the daemon
/// takes 20 ms.
const NOTHING_AFTER: Nanoseconds = Nanoseconds::from_millis(90);

/// Why the response times of a service that receives datagrams are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpaired {
    /// The service's datagrams are QUIC.
    Quic,
    /// The service does not answer each datagram with one datagram.
    Unanswered,
}

impl Unpaired {
    /// Returns why the response times in these counts are unknown. `None` if there are requests, or too few
    /// datagrams to tell.
    pub fn of(counts: &LiveCounts) -> Option<Self> {
        let is_unpaired = counts.unpaired >= DATAGRAMS_MIN && counts.unpaired > counts.requests;
        (is_unpaired && counts.requests < REQUESTS_MIN).then(|| Self::why(counts))
    }

    const fn why(counts: &LiveCounts) -> Self {
        if counts.quic * 2 > counts.unpaired { Self::Quic } else { Self::Unanswered }
    }

    /// Returns the reason as a clause about "the service".
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quic => {
                "the service speaks QUIC, which encrypts the type of datagrams: its response times are unknown"
            }
            Self::Unanswered => "the service does not answer every datagram: its response times are unknown",
        }
    }
}

/// Returns findings about the reliability of a service's windows. `object` is the service's name.
/// `answers_late` tells whether this kernel, like older ones, records answers only after they were sent.
pub fn caveats(object: &str, series: &Series, answers_late: bool) -> Vec<Finding> {
    let mut found = Caveats { object, findings: Vec::new() };
    let counts = series.counts();
    found.of_what_waits(series);
    let is_empty = counts.arrivals == 0 && counts.answered == 0;
    found.of_datagrams(counts);
    if is_empty && counts.datagrams > 0 {
        return found.findings;
    }
    if is_empty && counts.mptcp > 0 {
        found.of_mptcp(counts);
        return found.findings;
    }
    if is_empty && series.span() < NOTHING_AFTER {
        return found.findings;
    }
    if is_empty {
        found.add(
            "live-nothing-arrived",
            Severity::Warning,
            "no request arrived during the measurement",
            vec![format!("{} windows of {:.1} s together", series.windows(), series.span().as_secs_f64())],
            Some("measure longer, and check the port: netpolicy show lists listeners"),
        );
        return found.findings;
    }
    found.of_programs(counts);
    // With clients' timestamps, the wait of a request is known however the request was delivered.
    if series.estimator() != Estimator::Stamped {
        found.of_rings(counts);
    }
    found.of_answers(counts, answers_late);
    found.of_percentiles(series);
    found.findings
}

struct Caveats<'a> {
    object: &'a str,
    findings: Vec<Finding>,
}

impl Caveats<'_> {
    fn add(
        &mut self,
        rule: &str,
        severity: Severity,
        summary: &str,
        evidence: Vec<String>,
        remedy: Option<&str>,
    ) {
        self.findings.push(Finding {
            rule: rule.to_owned(),
            severity,
            object: self.object.to_owned(),
            summary: summary.to_owned(),
            evidence,
            remedy: remedy.map(str::to_owned),
        });
    }

    fn of_what_waits(&mut self, series: &Series) {
        let waiting = series.waiting();
        let Some(oldest) = waiting.oldest.filter(|oldest| *oldest >= HANGS_AFTER) else { return };
        // Include the waiting connections in the total, because they may have had no event.
        let stalled = waiting.stalled.max(1);
        let connections = series.connections().max(stalled);
        let severity = if stalled * 2 > connections { Severity::Problem } else { Severity::Warning };
        self.add(
            "live-hangs",
            severity,
            "connections have waited for an answer for more than a second",
            vec![
                format!("{stalled} of {connections} connections; the longest wait is {oldest}"),
                "a client that has sent only part of a request looks the same, unless the protocol is known"
                    .to_owned(),
            ],
            Some("grep . /proc/PID/task/*/wchan shows in which kernel function its threads wait"),
        );
    }

    /// Reports connections that cannot be measured because they use MPTCP.
    fn of_mptcp(&mut self, counts: &LiveCounts) {
        self.add(
            "live-mptcp",
            Severity::Warning,
            "connections use MPTCP, whose answers pass no TCP tracepoint: they are not measured",
            vec![format!("{} of {} segments", counts.mptcp, counts.mptcp + counts.segments)],
            None,
        );
    }

    /// Reports datagrams whose answers are unknown.
    fn of_datagrams(&mut self, counts: &LiveCounts) {
        let matters = |part: u64, of: u64, most: f64| part >= DATAGRAMS_MIN && count(part) > most * count(of);
        let percent = |part: u64, of: u64| format!("{:.1} %", 100.0 * count(part) / count(of.max(1)));
        let (all, unpaired) = (counts.datagrams, counts.unpaired);
        if matters(unpaired, all, UNPAIRED_MAX) {
            let summary = match counts.requests > unpaired {
                false => Unpaired::why(counts).as_str(),
                true => "some datagrams could not be paired with answers: they are in no figure",
            };
            let known =
                "the wait in the socket's queue (wake-up), context switches and polls are still known";
            let evidence = vec![format!("{unpaired} of {all} datagrams"), known.to_owned()];
            self.add("live-datagrams-unpaired", Severity::Warning, summary, evidence, None);
        }
        if matters(counts.dropped, all + counts.dropped, DROPPED_MAX) {
            self.add(
                "live-datagrams-dropped",
                Severity::Warning,
                "datagrams are dropped because a socket's buffer is full: these requests are never answered",
                [format!(
                    "{} of {} datagrams ({})",
                    counts.dropped,
                    all + counts.dropped,
                    percent(counts.dropped, all + counts.dropped)
                )]
                .into_iter()
                .chain((counts.discarded > 0).then(|| {
                    format!("{} without an id are left out of the pairs with answers", counts.discarded)
                }))
                .collect(),
                Some("ss -uamn shows the buffer (rb) and the drops (d) of each socket"),
            );
        }
        let requests = counts.arrivals.min(all.max(counts.identified));
        if matters(counts.unanswered, requests, UNANSWERED_MAX) {
            self.add(
                "live-unanswered",
                Severity::Note,
                "datagrams had no answer yet when their window ended",
                vec![format!(
                    "{} of {requests} ({}) had waited for at least 10 ms",
                    counts.unanswered,
                    percent(counts.unanswered, requests)
                )],
                None,
            );
        }
    }

    /// Reports conditions that make it unknown when packets entered the ring.
    fn of_rings(&mut self, counts: &LiveCounts) {
        let share = |part: u64, of: u64| count(part) / count(of.max(1));
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let steered = share(counts.steered, counts.segments + counts.datagrams).min(1.0);
        if steered > STEERED_MAX {
            self.add(
                "live-steered",
                Severity::Warning,
                "packets move to another CPU between the NAPI and TCP: the delay of this step is unknown",
                vec![format!(
                    "{} of segments were processed on a CPU other than the one that polled",
                    percent(steered)
                )],
                Some("turn receive packet steering off: echo 0 > /sys/class/net/DEVICE/queues/rx-N/rps_cpus"),
            );
        }
        let without = share(counts.without_napi, counts.answered);
        if without > WITHOUT_NAPI_MAX {
            self.add(
                "live-no-napi",
                Severity::Warning,
                "packets do not carry the ID of their NAPI: the time they spent in a ring is unknown",
                vec![format!("{} of answered requests have no NAPI id", percent(without))],
                Some("on a veth, turn GRO on: ethtool -K DEVICE gro on; requests over loopback pass no ring"),
            );
        }
        let unseen = share(counts.unseen, counts.answered);
        if unseen > LOST_MAX {
            self.add(
                "live-arrivals-unseen",
                Severity::Warning,
                "no BPF program saw some requests arrive: their arrival time is from TCP's clock, which excludes the wait in the ring",
                vec![format!("{} of answered requests were first seen when they were read", percent(unseen))],
                Some("TCP_DEFER_ACCEPT and TCP Fast Open cause this for the first request of each connection"),
            );
        }
        let lost = share(counts.without_poll, counts.answered);
        if lost > LOST_MAX {
            self.add(
                "live-polls-lost",
                Severity::Warning,
                "requests are answered so late that their poll records were overwritten: the wait in the ring is excluded",
                vec![format!("{} of answered requests", percent(lost))],
                None,
            );
        }
        let threaded = share(counts.threaded, counts.answered);
        if threaded > THREADED_MAX {
            self.add(
                "live-threaded",
                Severity::Note,
                "a kernel thread polls: p99 is a lower bound, because the thread may wait for a CPU unobserved",
                vec![format!("{} of answered requests arrived on a NAPI with a thread", percent(threaded))],
                Some("give the thread a CPU of its own: kthread = { cpus = ... } in a policy file"),
            );
        }
        let late = share(counts.by_ksoftirqd, counts.answered);
        if late > KSOFTIRQD_MAX {
            self.add(
                "live-ksoftirqd",
                Severity::Warning,
                "ksoftirqd polls and competes with other tasks: how long packets waited until it ran is unknown",
                vec![format!("{} of answered requests were polled by ksoftirqd", percent(late))],
                Some("give the interrupt another CPU, or use clients with microsecond timestamps (tcp_usec_ts): netpolicy doctor names the tasks that use the CPU"),
            );
        }
        let masked = share(counts.masked, counts.masked + counts.unmasked);
        if masked > MASKED_MIN && counts.conditioned == 0 {
            self.add(
                "live-uniform-alone",
                Severity::Note,
                "the wait in the ring is estimated by U alone: arrivals are assumed uniform between two polls",
                vec![
                    format!("{} of requests arrived while the interrupt was masked", percent(masked)),
                    "no window had interrupts enabled, so turnarounds could not be learned".to_owned(),
                ],
                Some("watch during a change of modes, or consider that clients that wait for answers distort U"),
            );
        }
    }

    /// Reports events that no program observed.
    fn of_programs(&mut self, counts: &LiveCounts) {
        let seen = counts.segments + counts.datagrams + counts.sends;
        let missed = count(counts.missed) / count((seen + counts.missed).max(1));
        if missed > LOST_MAX {
            self.add(
                "live-events-lost",
                Severity::Warning,
                "events were lost: they interrupted the BPF program that counts them on the same CPU",
                vec![format!("{} lost, {seen} counted", counts.missed)],
                None,
            );
        }
    }

    /// Reports conditions that make it unknown which answer belongs to which request.
    fn of_answers(&mut self, counts: &LiveCounts, answers_late: bool) {
        let share = |part: u64, of: u64| count(part) / count(of.max(1));
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let unsolicited = share(counts.unsolicited, counts.sends);
        if unsolicited > UNSOLICITED_MAX {
            self.add(
                "live-unsolicited",
                Severity::Warning,
                "the service sends unsolicited data, so matching answers to requests is uncertain",
                vec![format!("{} of {} sends were not answers", percent(unsolicited), counts.sends)],
                None,
            );
        }
        let unseen = share(counts.answers_unseen, counts.arrivals);
        if unseen > LOST_MAX {
            self.add(
                "live-answers-unseen",
                Severity::Warning,
                "connections send through a path that no BPF program sees: percentiles cover only the other requests",
                vec![format!("{} of {} exchanges", counts.answers_unseen, counts.arrivals)],
                None,
            );
        }
        if counts.mptcp > 0 {
            self.of_mptcp(counts);
        }
        let overflown = share(counts.overflown, counts.arrivals + counts.overflown);
        if overflown > LOST_MAX {
            self.add(
                "live-pipelined",
                Severity::Warning,
                "connections have more outstanding requests than are timed individually: further requests are timed together with an earlier one",
                vec![format!("{} of requests were merged into another", percent(overflown))],
                None,
            );
        }
        if counts.unmeasured > 0 {
            self.add(
                "live-connections",
                Severity::Warning,
                "there are more connections than can be measured",
                vec![format!(
                    "{} segments or datagrams arrived on connections beyond the limit",
                    counts.unmeasured
                )],
                None,
            );
        }
        if answers_late {
            self.add(
                "live-answers-late",
                Severity::Note,
                "this kernel reports an answer after it has been sent on: response times are 10 to 25 us too long",
                vec!["recorded at sock_send_length".to_owned()],
                Some("Linux 6.16 has tcp_sendmsg_locked"),
            );
        }
    }

    fn of_percentiles(&mut self, series: &Series) {
        let answered = series.counts().answered;
        let missing: Vec<String> = Percentiles::SHARES
            .iter()
            .filter(|share| answered < requests_for(**share))
            .map(|share| format!("p{:.0} takes {}", share * 100.0, requests_for(*share)))
            .collect();
        if !missing.is_empty() {
            let mut evidence = vec![format!("{answered} requests were answered")];
            evidence.extend(missing);
            self.add(
                "live-few-requests",
                Severity::Note,
                "there are too few requests for a percentile",
                evidence,
                Some("measure longer, or a larger share of the time: --seconds, --sample"),
            );
        }
        let by_polls = if series.counts().conditioned == 0 { Estimator::Uniform } else { Estimator::Larger };
        if series.estimator() == Estimator::Stamped {
            let apart = far_apart(series, Estimator::Stamped, by_polls);
            if apart.len() > 1 {
                self.add(
                    "live-stamps-disagree",
                    Severity::Warning,
                    "the clients' timestamps and the polls disagree about response times: requests wait before the ring, or a clock is being slewed",
                    apart,
                    Some("check both hosts' clocks (chronyc tracking), and measure again when they have settled"),
                );
            }
        }
        if series.counts().conditioned == 0 {
            return;
        }
        let apart = far_apart(series, Estimator::Uniform, Estimator::Conditional);
        if !apart.is_empty() {
            self.add(
                "live-estimators-disagree",
                Severity::Warning,
                "the two estimates of the wait in the ring differ widely",
                apart,
                Some("trust C if clients wait for each answer, U if many clients do not"),
            );
        }
    }
}

/// Returns the percentiles at which two estimates differ by more than is acceptable.
fn far_apart(series: &Series, one: Estimator, other: Estimator) -> Vec<String> {
    let by = |estimator| Percentiles::of(series, Stretch::Response(estimator)).all();
    ["p50", "p90", "p99"]
        .iter()
        .zip(by(one).into_iter().zip(by(other)))
        .filter_map(|(name, (a, b))| {
            let (a, b) = (a?.interval.estimate, b?.interval.estimate);
            let far = (a - b).abs() > APART_MAX_NS && (a / b - 1.0).abs() > APART_MAX;
            let (one, other) = (one.letter(), other.letter());
            far.then(|| format!("{name}: {one} {:.0} us, {other} {:.0} us", a / 1e3, b / 1e3))
        })
        .collect()
}

#[cfg(test)]
mod test {
    use super::*;
    use model::live::{LiveWaiting, LiveWindow};

    fn rules(change: impl FnOnce(&mut LiveWindow)) -> Vec<String> {
        let mut window = LiveWindow { span: Nanoseconds::from_millis(1_000), ..LiveWindow::default() };
        window.counts = LiveCounts {
            segments: 2_000,
            arrivals: 2_000,
            answered: 2_000,
            requests: 2_000,
            sends: 2_000,
            unmasked: 2_000,
            ..LiveCounts::default()
        };
        for spans in [&mut window.spans.residence, &mut window.spans.uniform, &mut window.spans.conditional] {
            spans.add_to(300, 2_000);
        }
        change(&mut window);
        let mut series = Series::new();
        series.add(&window);
        caveats("memcached", &series, false).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn a_service_that_is_measured_well_has_no_doubts() {
        assert_eq!(rules(|_| {}), Vec::<String>::new());
    }

    #[test]
    fn each_thing_that_hides_the_truth_is_found_by_its_counts() {
        assert_eq!(rules(|w| w.counts.steered = 21), ["live-steered"]);
        assert_eq!(rules(|w| w.counts.without_napi = 21), ["live-no-napi"]);
        assert_eq!(rules(|w| w.counts.without_poll = 21), ["live-polls-lost"]);
        assert_eq!(rules(|w| w.counts.unseen = 21), ["live-arrivals-unseen"]);
        assert_eq!(rules(|w| w.counts.missed = 200), ["live-events-lost"]);
        assert_eq!(rules(|w| w.counts.threaded = 2_000), ["live-threaded"]);
        assert_eq!(rules(|w| w.counts.by_ksoftirqd = 101), ["live-ksoftirqd"]);
        assert_eq!(rules(|w| w.counts.masked = 200), ["live-uniform-alone"]);
        assert_eq!(rules(|w| w.counts.unsolicited = 101), ["live-unsolicited"]);
        assert_eq!(rules(|w| w.counts.overflown = 21), ["live-pipelined"]);
        assert_eq!(rules(|w| w.counts.unmeasured = 1), ["live-connections"]);
        assert_eq!(rules(|w| w.counts.answers_unseen = 21), ["live-answers-unseen"]);
        assert_eq!(rules(|w| w.counts.mptcp = 1), ["live-mptcp"]);
        let unpaired = |of| rules(|w| (w.counts.datagrams, w.counts.unpaired) = (2_000, of));
        assert_eq!((unpaired(20), unpaired(21)), (vec![], vec!["live-datagrams-unpaired".to_owned()]));
        assert_eq!(rules(|w| w.counts = LiveCounts { mptcp: 1, ..LiveCounts::default() }), ["live-mptcp"]);
        assert_eq!(rules(|w| (w.counts.arrivals, w.counts.answered) = (999, 999)), ["live-few-requests"]);
        assert_eq!(
            rules(|w| {
                w.counts.conditioned = 2_000;
                w.spans.conditional = model::SpanCounts::new();
                w.spans.conditional.add_to(330, 2_000);
            }),
            ["live-estimators-disagree"]
        );
        assert_eq!(
            rules(|w| {
                let oldest = Some(Nanoseconds::from_millis(1_500));
                w.waiting = LiveWaiting { requests: 1, oldest, ..LiveWaiting::default() };
            }),
            ["live-hangs"]
        );
        assert_eq!(rules(|w| w.counts = LiveCounts::default()), ["live-nothing-arrived"]);
    }

    #[test]
    fn no_setting_is_judged_by_datagrams_that_are_not_paired_with_answers() {
        let of = |datagrams, quic, requests| {
            Unpaired::of(&LiveCounts {
                datagrams,
                unpaired: datagrams,
                quic,
                requests,
                ..LiveCounts::default()
            })
        };
        assert_eq!(of(500, 500, 0), Some(Unpaired::Quic));
        assert_eq!(of(500, 3, 0), Some(Unpaired::Unanswered));
        assert_eq!(of(500, 500, 100), None, "the same server's requests over TCP");
        assert_eq!(of(3, 3, 0), None, "too few to know");
    }

    #[test]
    fn a_clock_that_is_slewed_does_not_pass_for_a_slow_service_nor_for_a_quick_one() {
        let stamped = |bucket: usize| {
            rules(|w| {
                (w.counts.stamped, w.counts.masked, w.counts.unmasked) = (2_000, 0, 2_000);
                w.spans.stamped.add_to(bucket, 2_000);
            })
        };
        assert_eq!(stamped(300), Vec::<String>::new(), "both estimates are equal");
        // If all timestamps seem later than the fastest one of their connection, the clients' clock is slower
        // than ours; if all seem earlier, it is faster.
        assert_eq!(stamped(340), ["live-stamps-disagree"]);
        assert_eq!(stamped(250), ["live-stamps-disagree"]);
    }

    /// Parses the percentages in a text.
    fn shares(text: &str) -> Vec<f64> {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.windows(2).filter(|two| two[1].starts_with('%')).filter_map(|two| two[0].parse().ok()).collect()
    }

    #[test]
    fn no_share_exceeds_the_whole_whatever_was_counted() {
        let mut chance = model::Chance::stream(7, &[]);
        for _ in 0..2_000 {
            let mut window = LiveWindow { span: Nanoseconds::from_millis(1_000), ..LiveWindow::default() };
            let mut any = |most: u64| u64::from(chance.below(u32::try_from(most + 1).unwrap_or(u32::MAX)));
            let answered = any(5_000);
            let segments = answered + any(20_000);
            window.counts = LiveCounts {
                segments,
                connections: any(50),
                arrivals: any(segments),
                joined: any(segments),
                answered,
                sends: any(10_000),
                overflown: any(100_000),
                answers_unseen: any(10),
                mptcp: any(1_000),
                unmeasured: any(1_000),
                without_napi: any(answered),
                without_poll: any(answered),
                // This field counts all packets, including those outside windows.
                steered: any(2 * segments + 10),
                masked: any(answered),
                unmasked: any(answered),
                threaded: any(answered),
                by_ksoftirqd: any(answered),
                unseen: any(answered),
                missed: any(1_000),
                ..LiveCounts::default()
            };
            window.counts.unsolicited = any(window.counts.sends);
            window.counts.requests = answered;
            window.waiting.stalled = any(60);
            window.waiting.oldest = Some(Nanoseconds::from_millis(any(3_000)));
            let mut series = Series::new();
            series.add(&window);
            for finding in caveats("any", &series, false) {
                for share in finding.evidence.iter().flat_map(|text| shares(text)) {
                    assert!((0.0..=100.0).contains(&share), "{finding:?} of {:?}", window.counts);
                }
            }
        }
    }

    #[test]
    fn just_below_a_threshold_nothing_is_said() {
        let near = |window: &mut LiveWindow| {
            (window.counts.steered, window.counts.unsolicited, window.counts.answered) = (18, 100, 1_800);
        };
        assert_eq!(rules(near), Vec::<String>::new());
    }
}
