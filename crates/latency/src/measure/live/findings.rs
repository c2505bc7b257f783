//! Findings about the windows of a live service: whether the service meets its goal, which stage takes most
//! of the time, and which queue or thread is slower than the others.

use model::live::{LiveCounts, LivePart, SpanCounts};
use model::{Finding, Goal, Nanoseconds, OnMissed, Severity};

use super::series::Estimate;
use super::series::{Series, Stretch, requests_for};
use super::summary::Percentiles;
use super::survival::{Quantile, Survival, count};
use crate::measure::switchback::LOSS_MATTERS;

/// The minimum share of the time for a stage to be reported as the dominant one.
const MOST: f64 = 0.6;

/// The minimum mean response time, in nanoseconds, for a dominant stage to be reported.
const MATTERS_NS: f64 = 20_000.0;

/// The factor by which the median of a queue or thread must exceed that of the others for it to be reported
/// as slower.
const SLOWER: f64 = 2.0;

/// The minimum number of segments, reads or connections for a finding about the network.
const FEW: u64 = 10;

/// The minimum shares for a finding: of reads that found the receive window closed, and of connections whose
/// client's window was full.
const CLOSED_MIN: f64 = 0.01;
const FULL_MIN: f64 = 0.05;

/// The minimum number of new connections per request for a finding.
const OPENED_MIN: f64 = 0.1;

/// For queues and for workers: the rule, the noun and the remedy of the finding.
const OF_QUEUES: (&str, &str, &str) = (
    "live-queue-slow",
    "queue",
    "netpolicy show names its interrupt and its CPU, netpolicy doctor what is wrong with them",
);
const OF_WORKERS: (&str, &str, &str) = (
    "live-worker-slow",
    "worker",
    "assign fewer connections to it, or give it a dedicated CPU: netpolicy doctor names threads that wait for a CPU",
);

/// The remedy if the daemon is searching for a mode that meets the goal.
const SEARCHED: &str = "the daemon tries the other modes of its policy: netpolicy status";

/// Returns findings about a service's windows. `object` is the service's name. `names` contains functions
/// that return the name of a NAPI and of a thread by its position in the series.
pub fn findings(
    object: &str,
    series: &Series,
    goal: &Goal,
    names: (&dyn Fn(usize) -> String, &dyn Fn(usize) -> String),
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let found = Percentiles::of(series, Stretch::Response(series.estimator()));
    let time = of_time(object, series);
    let searched = (goal.on_missed == OnMissed::Search).then_some(SEARCHED);
    // A request that waits for a lost segment also counts as waiting to be read, so prefer the remedy for
    // lost segments.
    let remedy = has_gaps(series.counts()).then_some(GAPS_REMEDY);
    let remedy = remedy.or(time.as_ref().and_then(|time| time.remedy.as_deref())).or(searched);
    for (name, goal, found) in [("p50", goal.p50, found.p50), ("p99", goal.p99, found.p99)] {
        findings.extend(goal.and_then(|goal| of_goal(object, name, goal, found, remedy)));
    }
    findings.extend(time);
    findings.extend(of_network(object, series.counts()));
    let napis: Vec<&LivePart> = series.napis().iter().map(|(_, part)| part).collect();
    let workers: Vec<&LivePart> = series.workers().iter().map(|(_, part)| part).collect();
    findings.extend(slower(object, OF_QUEUES, &napis, names.0));
    findings.extend(slower(object, OF_WORKERS, &workers, names.1));
    findings
}

/// Returns the finding about a goal. The goal is missed if the whole interval is above it, met if no part of
/// the interval is above it, and otherwise undecided. The remedy is that for the stage that takes most of the
/// time.
fn of_goal(
    object: &str,
    name: &str,
    goal: Nanoseconds,
    found: Option<Estimate>,
    remedy: Option<&str>,
) -> Option<Finding> {
    let found = found?;
    let (low, high) = (found.interval.low, found.interval.high);
    let micros = |ns: f64| format!("{:.0} us", ns / 1e3);
    let evidence = vec![format!(
        "{name} is {} ({} to {}), the goal is {goal}",
        micros(found.interval.estimate),
        micros(low),
        if found.open_end { "more".to_owned() } else { micros(high) }
    )];
    let (rule, severity, summary, remedy) = if low > count(goal.0) {
        let remedy =
            remedy.unwrap_or("netpolicy watch SERVICE shows where the time goes, by queue and by worker");
        ("live-goal-missed", Severity::Problem, format!("the goal of {name} is missed"), Some(remedy))
    } else if high <= count(goal.0) && !found.open_end {
        ("live-goal-met", Severity::Ok, format!("the goal of {name} is met"), None)
    } else {
        return None;
    };
    Some(Finding {
        rule: rule.to_owned(),
        severity,
        object: object.to_owned(),
        summary,
        evidence,
        remedy: remedy.map(str::to_owned),
    })
}

/// Returns the finding about the stage that takes most of the time.
fn of_time(object: &str, series: &Series) -> Option<Finding> {
    let parts = series.workers().iter().map(|(_, part)| part);
    let (mut ring, mut wakeup, mut service, mut requests) = (0, 0, 0, 0);
    for part in parts {
        ring += part.ring.0;
        wakeup += part.wakeup.0;
        service += part.service.0;
        requests += part.requests;
    }
    let all = count(ring + wakeup + service);
    if requests < requests_for(0.9) || all < MATTERS_NS * count(requests) {
        return None;
    }
    let spent = [
        (
            ring,
            "live-mostly-ring",
            "most of a request's time is the wait in the ring: packet delivery determines it",
            Some("a shorter gro-flush-timeout, busy polling or IRQ suspension: netpolicy explain SERVICE"),
        ),
        (
            wakeup,
            "live-mostly-wakeup",
            "most of a request's time is the wait to be read: the service is busy, or has no CPU",
            Some("use more workers, or give them dedicated CPUs: netpolicy watch shows which of them wait"),
        ),
        (
            service,
            "live-mostly-service",
            "most of a request's time is spent in the application: no delivery policy helps",
            Some("make the application faster: perf record -g -p PID shows where it spends its time"),
        ),
    ];
    let mean = |sum: u64| format!("{:.1} us", count(sum) / count(requests) / 1e3);
    let (_, rule, summary, remedy) = spent.into_iter().find(|(sum, ..)| count(*sum) > MOST * all)?;
    Some(Finding {
        rule: rule.to_owned(),
        severity: Severity::Note,
        object: object.to_owned(),
        summary: summary.to_owned(),
        evidence: vec![format!(
            "means of {requests} requests: ring {}, wake-up {}, service {}",
            mean(ring),
            mean(wakeup),
            mean(service)
        )],
        remedy: remedy.map(str::to_owned),
    })
}

/// The remedy for segments that arrive out of order.
const GAPS_REMEDY: &str = "check for loss and reordering on the path from the clients, and for rx drops of this host's NIC: netpolicy doctor, ethtool -S";

/// Whether enough segments arrive out of order to be reported.
fn has_gaps(counts: &LiveCounts) -> bool {
    matters(counts.out_of_order, counts.segments_in, LOSS_MATTERS)
}

fn matters(part: u64, of: u64, least: f64) -> bool {
    part >= FEW && count(part) >= least * count(of.max(1))
}

/// Returns findings about causes of slow requests other than packet delivery, according to TCP's counts.
fn of_network(object: &str, counts: &LiveCounts) -> Vec<Finding> {
    let share =
        |part: u64, of: u64| format!("{part} of {of} ({:.1} %)", 100.0 * count(part) / count(of.max(1)));
    let lost = counts.lost();
    let mut found = Vec::new();
    let mut add = |rule: &str, severity: Severity, summary: &str, evidence: Vec<String>, remedy: &str| {
        found.push(Finding {
            rule: rule.to_owned(),
            severity,
            object: object.to_owned(),
            summary: summary.to_owned(),
            evidence,
            remedy: Some(remedy.to_owned()),
        });
    };
    if matters(lost, counts.segments_out, LOSS_MATTERS) {
        let mut evidence = vec![format!("{} segments were retransmitted", share(lost, counts.segments_out))];
        if counts.needless > 0 {
            evidence.push(format!(
                "{} more segments were retransmitted although they had arrived (DSACK)",
                counts.needless
            ));
        }
        add(
            "live-loss",
            Severity::Warning,
            "answers are lost on the way to clients, so clients receive them later than the response times here show",
            evidence,
            "ss -ti shows which connections lose segments (retrans); no delivery policy helps",
        );
    }
    if has_gaps(counts) {
        add(
            "live-out-of-order",
            Severity::Warning,
            "segments are lost or overtaken on the way from clients: requests wait for the missing segments",
            vec![format!("{} segments arrived out of order", share(counts.out_of_order, counts.segments_in))],
            GAPS_REMEDY,
        );
    }
    if matters(counts.zero_windows, counts.requests, CLOSED_MIN) {
        add(
            "live-window-closed",
            Severity::Warning,
            "the service reads more slowly than its clients send: its receive windows close, and clients wait",
            vec![format!(
                "{} reads found the window closed, {} requests were answered",
                counts.zero_windows, counts.requests
            )],
            "use more workers, or a larger net.ipv4.tcp_rmem",
        );
    }
    if matters(counts.clients_full, counts.connections, FULL_MIN) {
        add(
            "live-clients-full",
            Severity::Warning,
            "clients read more slowly than the service answers: answers wait for their receive windows",
            vec![format!(
                "{} connections, counted once in each window",
                share(counts.clients_full, counts.connections)
            )],
            "ss -ti shows which (rwnd_limited); no delivery policy helps",
        );
    }
    if matters(counts.opened, counts.requests, OPENED_MIN) {
        add(
            "live-new-connections",
            Severity::Note,
            "many requests come on new connections: handshakes and accepts cost CPU time that is not part of any response time",
            vec![format!("{} new connections, {} requests", counts.opened, counts.requests)],
            "let clients keep their connections open",
        );
    }
    found
}

/// Returns the finding about a queue or thread whose median is much higher than that of the others. Ignores
/// those with too few requests for a median.
fn slower(
    object: &str,
    (rule, word, remedy): (&str, &str, &str),
    parts: &[&LivePart],
    name: &dyn Fn(usize) -> String,
) -> Option<Finding> {
    let median = |spans: &SpanCounts| {
        let enough = spans.total() >= requests_for(0.9);
        enough
            .then(|| Survival::of(spans, &SpanCounts::new()).quantile(0.5))
            .flatten()
            .map(Quantile::nanoseconds)
    };
    let mut worst: Option<(f64, String)> = None;
    for (at, part) in parts.iter().enumerate() {
        let mut others = SpanCounts::new();
        for (_, other) in parts.iter().enumerate().filter(|(other, _)| *other != at) {
            others.merge(&other.total);
        }
        let (Some(own), Some(rest)) = (median(&part.total), median(&others)) else { continue };
        let ratio = own / rest;
        if ratio > SLOWER && own - rest > MATTERS_NS && worst.as_ref().is_none_or(|(most, _)| ratio > *most) {
            let evidence =
                format!("{}: median {:.0} us, the others {:.0} us", name(at), own / 1e3, rest / 1e3);
            worst = Some((ratio, evidence));
        }
    }
    let (_, evidence) = worst?;
    Some(Finding {
        rule: rule.to_owned(),
        severity: Severity::Warning,
        object: object.to_owned(),
        summary: format!("one {word} is much slower than the others"),
        evidence: vec![evidence],
        remedy: Some(remedy.to_owned()),
    })
}

#[cfg(test)]
mod test {
    use super::*;
    use model::Pid;
    use model::live::LiveWindow;

    /// Returns the rules of the findings about two workers with these medians, and with these times in ring,
    /// wake-up and service, in microseconds.
    fn rules(medians: [u64; 2], spent: [u64; 3], goal: &Goal) -> Vec<String> {
        found(medians, spent, goal).into_iter().map(|found| found.rule).collect()
    }

    fn found(medians: [u64; 2], spent: [u64; 3], goal: &Goal) -> Vec<Finding> {
        const REQUESTS: u64 = 1_500;
        let mut window = LiveWindow { span: Nanoseconds::from_millis(1_000), ..LiveWindow::default() };
        for (worker, median) in (0..).zip(medians) {
            let bucket = SpanCounts::bucket_of(Nanoseconds::from_micros(median));
            let mut part = LivePart { requests: REQUESTS, ..LivePart::default() };
            part.total.add_to(bucket, REQUESTS);
            let [ring, wakeup, service] = spent.map(|us| Nanoseconds(us * 1_000 * REQUESTS));
            (part.ring, part.wakeup, part.service) = (ring, wakeup, service);
            window.workers.push((Some(Pid(worker)), part));
            window.counts.answered += REQUESTS;
            window.spans.uniform.add_to(bucket, REQUESTS);
        }
        let mut series = Series::new();
        series.add(&window);
        let names = |at: usize| format!("worker {at}");
        findings("memcached", &series, goal, (&names, &names))
    }

    fn p99(us: u64) -> Goal {
        Goal { p99: Some(Nanoseconds::from_micros(us)), ..Goal::default() }
    }

    #[test]
    fn a_goal_is_judged_on_the_service_itself() {
        assert_eq!(rules([100, 100], [10, 10, 10], &p99(50)), ["live-goal-missed"]);
        assert_eq!(rules([100, 100], [10, 10, 10], &p99(500)), ["live-goal-met"]);
        assert_eq!(rules([100, 100], [10, 10, 10], &Goal::default()), Vec::<String>::new());
        let searched = Goal { on_missed: OnMissed::Search, ..p99(50) };
        let found = found([100, 100], [10, 10, 10], &searched);
        assert_eq!(found[0].remedy.as_deref(), Some(SEARCHED));
    }

    #[test]
    fn where_most_of_the_time_goes_is_named_unless_there_is_little() {
        let none = Goal::default();
        assert_eq!(rules([100, 100], [80, 10, 10], &none), ["live-mostly-ring"]);
        assert_eq!(rules([100, 100], [10, 80, 10], &none), ["live-mostly-wakeup"]);
        assert_eq!(rules([100, 100], [10, 10, 80], &none), ["live-mostly-service"]);
        assert_eq!(rules([100, 100], [8, 1, 1], &none), Vec::<String>::new());
    }

    #[test]
    fn causes_outside_of_delivery_are_named_from_ten_and_a_share_that_matters() {
        let rules = |change: &dyn Fn(&mut LiveCounts)| -> Vec<String> {
            let mut counts = LiveCounts {
                requests: 5_000,
                connections: 40,
                segments_in: 10_000,
                segments_out: 10_000,
                ..LiveCounts::default()
            };
            change(&mut counts);
            of_network("memcached", &counts).into_iter().map(|found| found.rule).collect()
        };
        assert_eq!(rules(&|_| {}), Vec::<String>::new());
        assert_eq!(rules(&|c| c.retransmitted = 9), Vec::<String>::new());
        assert_eq!(rules(&|c| c.retransmitted = 10), ["live-loss"]);
        assert_eq!(rules(&|c| (c.retransmitted, c.needless) = (30, 25)), Vec::<String>::new(), "5 were lost");
        assert_eq!(rules(&|c| (c.retransmitted, c.segments_out) = (99, 100_000)), Vec::<String>::new());
        assert_eq!(rules(&|c| c.out_of_order = 10), ["live-out-of-order"]);
        assert_eq!(rules(&|c| c.zero_windows = 50), ["live-window-closed"]);
        assert_eq!(rules(&|c| c.clients_full = 10), ["live-clients-full"]);
        assert_eq!(rules(&|c| c.opened = 500), ["live-new-connections"]);
        assert_eq!(rules(&|c| c.opened = 40), Vec::<String>::new(), "connections that are opened only once");
    }

    #[test]
    fn one_worker_that_is_much_slower_than_the_others_is_named() {
        assert_eq!(rules([100, 290], [10, 10, 10], &Goal::default()), ["live-worker-slow"]);
        assert_eq!(rules([100, 150], [10, 10, 10], &Goal::default()), Vec::<String>::new());
    }
}
