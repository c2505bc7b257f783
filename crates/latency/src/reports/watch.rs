//! The output of `watch`: one line per window, and a final report.

use std::fmt::Write;
use std::time::Duration;

use crate::live::text::{short, span};
use crate::live::{Cost, MeasuredService, MeasuredWindow, ThreadNames, WatchHeader};
use crate::measure::live::summary::PartSummary;
use crate::measure::live::{Estimate, Percentiles, Summary, Unit};
use crate::measure::switchback::LOSS_MATTERS;
use model::{Finding, NapiId, Pid, Severity};
use schemars::JsonSchema;
use serde::Serialize;
use session::page::{Cell, Page, Report, Style, Table};

/// One queue or thread of a report.
#[derive(Debug, JsonSchema, Serialize)]
struct Part {
    /// The queue or thread, by name.
    name: String,
    #[serde(flatten)]
    part: PartSummary,
}

/// The output of `watch`: the summary of all windows.
#[derive(Debug, JsonSchema, Serialize)]
pub struct WatchReport<'a> {
    service: &'a str,
    ports: Vec<u16>,
    /// The duration, in seconds.
    seconds: f64,
    #[serde(flatten)]
    summary: &'a Summary,
    cost: Cost,
    /// Bounds derived from `weight`; `None` if the weight or the cost is unknown.
    without_measuring: Option<WithoutMeasuring>,
    by_queue: Vec<Part>,
    by_worker: Vec<Part>,
}

/// Bounds of the cost and of the rate without the measuring programs.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
struct WithoutMeasuring {
    /// The minimum CPU time per request, in nanoseconds: as if the programs' whole run time were part of
    /// `cost`.
    cpu_at_least: f64,
    /// The maximum rate per second: as if the programs' whole run time were lost to requests, as in a service
    /// without spare CPU time.
    rate_at_most: f64,
}

impl WithoutMeasuring {
    fn of(summary: &Summary, cost: &Cost) -> Option<Self> {
        let with = cost.service? + cost.delivery.unwrap_or(0.0);
        let without = with - summary.weight?;
        (without > 0.0).then(|| Self { cpu_at_least: without, rate_at_most: summary.rate * with / without })
    }
}

/// The output for one window.
#[derive(Debug, JsonSchema, Serialize)]
#[serde(transparent)]
pub struct WatchWindowReport<'a>(WatchReport<'a>);

impl<'a> WatchReport<'a> {
    /// Creates the report from the windows of a service.
    pub fn of(
        target: &'a MeasuredService,
        names: &ThreadNames,
        summary: &'a Summary,
        cost: Cost,
        watched: Duration,
    ) -> Self {
        let queue = |part: &PartSummary| target.queue_of(NapiId(part.id.unwrap_or(0)));
        let named = |parts: &[PartSummary], name: &dyn Fn(&PartSummary) -> String| {
            parts.iter().map(|part| Part { name: name(part), part: *part }).collect()
        };
        Self {
            service: &target.name,
            ports: target.ports.all(),
            seconds: watched.as_secs_f64(),
            summary,
            cost,
            without_measuring: WithoutMeasuring::of(summary, &cost),
            by_queue: named(&summary.napis, &queue),
            by_worker: named(&summary.workers, &|part| thread(names, part.id)),
        }
    }
}

impl<'a> WatchReport<'a> {
    /// Creates the report from a record of a watch, which has only the numbers of queues and threads.
    pub fn of_record(header: &'a WatchHeader, summary: &'a Summary) -> Self {
        let numbered = |parts: &[PartSummary], word: &str| {
            let name = |id: Option<u32>| id.map_or_else(|| "others".to_owned(), |id| format!("{word} {id}"));
            parts.iter().map(|part| Part { name: name(part.id), part: *part }).collect()
        };
        Self {
            service: &header.service,
            ports: header.ports.clone(),
            seconds: summary.measured_seconds,
            summary,
            cost: Cost::default(),
            without_measuring: None,
            by_queue: numbered(&summary.napis, "napi"),
            by_worker: numbered(&summary.workers, "thread"),
        }
    }
}

/// Returns a thread's name and tid, or "other threads" for threads that are not counted separately.
fn thread(names: &ThreadNames, tid: Option<u32>) -> String {
    tid.map_or_else(|| "other threads".to_owned(), |tid| names.sentence(Pid(tid)))
}

impl<'a> WatchWindowReport<'a> {
    /// Creates the report of a single window.
    pub fn of(
        target: &'a MeasuredService,
        names: &ThreadNames,
        shown: &'a MeasuredWindow,
        watched: Duration,
    ) -> Self {
        Self(WatchReport::of(target, names, &shown.summary, shown.cost, watched))
    }
}

/// Formats an estimate with its interval: `118us (112us to 131us)`, `>29us (29us or more)`.
fn long(estimate: Option<Estimate>) -> String {
    let Some(found) = estimate else { return "-".to_owned() };
    let low = span(found.interval.low);
    match found.open_end {
        true => format!("{} ({low} or more)", short(estimate)),
        false => format!("{} ({low} to {})", short(estimate), span(found.interval.high)),
    }
}

/// Formats what is counted, by protocol: `requests of HTTP/1`, `exchanges of TLS`.
fn counted(summary: &Summary) -> String {
    let named = summary.counts.protocols.named();
    let protocols: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    match &protocols[..] {
        [] => summary.unit.to_string(),
        [one] => format!("{} of {one}", summary.unit),
        [most @ .., last] => format!("{} of {} and {last}", summary.unit, most.join(", ")),
    }
}

/// Formats the lines of a growing table. Repeats the headings from time to time, and when the unit changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct WatchRow {
    lines: usize,
    unit: Option<Unit>,
}

impl WatchRow {
    /// The number of lines after which the headings have scrolled off the screen.
    const LINES: usize = 20;

    /// Formats the next line.
    pub fn text(&mut self, window: &WatchWindowReport<'_>) -> String {
        let WatchReport { summary, cost, seconds, .. } = &window.0;
        let mut text = String::new();
        let mut line = |cells: [&str; 11]| {
            let [time, rest @ ..] = cells;
            let _ = write!(text, "{time:>6}");
            for cell in rest {
                let _ = write!(text, " {cell:>9}");
            }
            text.push('\n');
        };
        // A window without requests does not show the unit.
        let unit = match summary.requests {
            0 => self.unit.unwrap_or(summary.unit),
            _ => summary.unit,
        };
        if self.lines.is_multiple_of(Self::LINES) || self.unit != Some(unit) {
            let (rate, cpu) = match unit {
                Unit::Requests => ("REQ/S", "CPU/REQ"),
                Unit::Exchanges => ("EXCH/S", "CPU/EXCH"),
            };
            line(["TIME", rate, "P50", "P90", "P99", "RING", "WAKE-UP", "SERVICE", cpu, "MASKED", "WAITING"]);
        }
        self.unit = Some(unit);
        self.lines += 1;
        let cpu = cost.service.map(|service| span(service + cost.delivery.unwrap_or(0.0)));
        let masked = summary.masked_share.map(|share| format!("{:.0} %", share * 100.0));
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        line([
            &format!("{seconds:.0}s"),
            &format!("{:.0}", summary.rate),
            &short(summary.response.p50),
            &short(summary.response.p90),
            &short(summary.response.p99),
            &short(summary.ring.p50),
            &short(summary.wakeup.p50),
            &short(summary.service_time.p50),
            &or_dash(cpu),
            &or_dash(masked),
            &summary.waiting.to_string(),
        ]);
        let counts = &summary.counts;
        let lost = [(counts.lost(), "lost"), (counts.out_of_order, "out of order")];
        let lost: Vec<String> =
            lost.iter().filter(|(of, _)| *of > 0).map(|(of, word)| format!("{of} {word}")).collect();
        if !lost.is_empty() {
            let end = text.trim_end().len();
            text.truncate(end);
            let _ = writeln!(text, "  {}", lost.join(", "));
        }
        text
    }
}

impl Report for WatchReport<'_> {
    const KIND: &'static str = "watch";

    fn page(&self, page: &mut Page) {
        let Self { service, summary, cost, .. } = self;
        page.gap();
        page.styled(
            Style::Strong,
            format!(
                "{service}: {} {} in {} windows of {:.1} s in total, {:.0} per second{}",
                summary.requests,
                counted(summary),
                summary.windows,
                summary.measured_seconds,
                summary.rate,
                on_connections(summary)
            ),
        );
        if summary.unit == Unit::Exchanges && summary.requests > 0 {
            page.line("An exchange is what a client sends until the service answers; the protocol does not show how many requests it contains.");
        }
        let mut table = Table::new(&["", "P50", "P90", "P99"]);
        let mut row = |name: String, percentiles: &Percentiles| {
            let [p50, p90, p99] = percentiles.all().map(|found| Cell::new(long(found)));
            table.row([Cell::new(name), p50, p90, p99]);
        };
        row(format!("response time ({})", summary.estimator.letter()), &summary.response);
        row("  wait in the ring".to_owned(), &summary.ring);
        row("  wake-up".to_owned(), &summary.wakeup);
        row("  service".to_owned(), &summary.service_time);
        if summary.stack > 0.0 {
            table.row([Cell::new("  stack"), Cell::new(span(summary.stack))]);
        }
        let mut row = |name: String, percentiles: &Percentiles| {
            let [p50, p90, p99] = percentiles.all().map(|found| Cell::new(long(found)));
            table.row([Cell::new(name), p50, p90, p99]);
        };
        if summary.estimator != crate::measure::live::Estimator::Residence {
            row("without the ring (R)".to_owned(), &summary.residence);
        }
        if takes_to_send(summary) {
            row("from the last segment (R)".to_owned(), &summary.since_last);
        }
        if summary.estimator == crate::measure::live::Estimator::Larger {
            row("by U".to_owned(), &summary.uniform);
            row("by C".to_owned(), &summary.conditional);
        }
        page.table(&table);
        let mut costs = Vec::new();
        costs.extend(cost.service.map(|service| format!("{} of the service", span(service))));
        costs
            .extend(cost.delivery.map(|delivery| format!("{} of softirqs and NAPI threads", span(delivery))));
        costs.extend(cost.switches.map(|switches| format!("{switches:.2} context switches")));
        if !costs.is_empty() {
            page.line(format!("each {} costs {}", summary.unit.one(), costs.join(", ")));
        }
        if let Some(weight) = summary.weight {
            let one = summary.unit.one();
            page.line(format!(
                "measuring costs {} of CPU time per {one} while a window is open",
                span(weight)
            ));
            if let Some(without) = self.without_measuring {
                page.line(format!(
                    "  without measuring: at least {} per {one}; at most {:.0} per second if no CPU time is left",
                    span(without.cpu_at_least),
                    without.rate_at_most
                ));
            }
        }
        if let Some(datagrams) = of_datagrams(summary, cost) {
            page.line(datagrams);
        }
        if let Some(masked) = summary.masked_share {
            page.line(format!(
                "{:.1} % of {} arrived while the interrupt was masked",
                masked * 100.0,
                summary.unit
            ));
        }
        if let Some(oldest) = summary.oldest {
            #[expect(clippy::cast_precision_loss, reason = "a span of hours, below 2^53")]
            let oldest = oldest as f64;
            page.line(format!(
                "{} are waiting for an answer, the longest for {}",
                summary.waiting,
                span(oldest)
            ));
        }
        let network = of_network(summary);
        if !network.is_empty() {
            page.line(format!("network: {}", network.join(", ")));
        }
        parts(page, "QUEUE", &self.by_queue, true);
        parts(page, "WORKER", &self.by_worker, false);
        if !summary.findings.is_empty() {
            page.gap();
            summary.findings.iter().for_each(|finding| found(page, finding));
        }
    }
}

/// Formats the connections: `, on 8 connections`; empty for a service that only receives datagrams.
fn on_connections(summary: &Summary) -> String {
    match summary.connections {
        0 if summary.counts.datagrams > 0 => String::new(),
        connections => format!(", on {connections} connections"),
    }
}

/// Formats the datagrams of a service: `4980 datagrams per second, 1.2 per context switch; 3 dropped`.
fn of_datagrams(summary: &Summary, cost: &Cost) -> Option<String> {
    let counts = &summary.counts;
    if counts.datagrams == 0 {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of datagrams, below 2^53")]
    let received = counts.datagrams as f64;
    let mut words = format!("{:.0} datagrams per second", received / summary.measured_seconds.max(1e-9));
    if let Some(each) = cost.datagrams_per_switch {
        let _ = write!(words, ", {each:.1} per context switch of the service");
    }
    if counts.dropped > 0 {
        let _ = write!(words, "; {} dropped", counts.dropped);
    }
    Some(words)
}

/// Formats TCP's counts if they are noteworthy: `1.2 % of segments lost, round trip 10ms`.
fn of_network(summary: &Summary) -> Vec<String> {
    /// The minimum number of segments for a share of them.
    const FEW: u64 = 10;
    /// New connections are noteworthy from one in this many requests.
    const OPENED: u64 = 10;
    let counts = &summary.counts;
    #[expect(clippy::cast_precision_loss, reason = "counts of segments, below 2^53")]
    let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
    let (lost, gaps) = (counts.lost(), counts.out_of_order);
    let mut words = Vec::new();
    for (part, of, word) in [(lost, counts.segments_out, "lost"), (gaps, counts.segments_in, "out of order")]
    {
        if part >= FEW && share(part, of) >= LOSS_MATTERS {
            words.push(format!("{:.1} % of segments {word}", share(part, of) * 100.0));
        }
    }
    if counts.zero_windows > 0 {
        words.push(format!("{} reads found the receive window closed", counts.zero_windows));
    }
    if counts.clients_full > 0 {
        words.push(format!("clients' receive windows full {} times", counts.clients_full));
    }
    if counts.opened * OPENED >= summary.requests.max(1) {
        words.push(format!("{} new connections", counts.opened));
    }
    // Clients wait longer for the network than for the service, which is noteworthy.
    let response = summary.response.p50.map(|found| found.interval.estimate);
    if let Some(rtt) = summary.rtt.filter(|rtt| response.is_some_and(|response| *rtt > response)) {
        words.push(format!("round trip {}", span(rtt)));
    }
    words
}

/// Whether clients take so long to send a request that it matters where response times start.
fn takes_to_send(summary: &Summary) -> bool {
    const MATTERS: f64 = 1.05;
    let pairs = summary.residence.all().into_iter().zip(summary.since_last.all());
    pairs
        .filter_map(|(first, last)| first.zip(last))
        .any(|(first, last)| first.interval.estimate > last.interval.estimate * MATTERS)
}

fn parts(page: &mut Page, heading: &'static str, parts: &[Part], polls: bool) {
    if parts.is_empty() {
        return;
    }
    let mut table = Table::new(&[
        heading, "REQUESTS", "P50", "P99", "RING", "WAKE-UP", "SERVICE", "IRQ", "TIMER", "APP", "KTHREAD",
    ]);
    for Part { name, part } in parts {
        let shared = |number: u64| {
            let all = part.packets.total();
            #[expect(clippy::cast_precision_loss, reason = "counts of packets, below 2^53")]
            let share = (polls && all > 0).then(|| format!("{:.0} %", number as f64 / all as f64 * 100.0));
            Cell::optional(share)
        };
        table.row([
            Cell::new(name.clone()),
            Cell::number(part.requests),
            Cell::optional(part.p50.map(span)),
            Cell::optional(part.p99.map(span)),
            Cell::new(span(part.ring)),
            Cell::new(span(part.wakeup)),
            Cell::new(span(part.service)),
            shared(part.packets.interrupt),
            shared(part.packets.timer),
            shared(part.packets.application),
            shared(part.packets.kthread),
        ]);
    }
    page.gap();
    page.table(&table);
}

/// Formats a finding as `doctor` does.
pub(crate) fn found(page: &mut Page, finding: &Finding) {
    let style = match finding.severity {
        Severity::Problem => Style::Bad,
        Severity::Warning => Style::Warning,
        Severity::Note => Style::Plain,
        Severity::Ok => Style::Good,
    };
    let severity = page.word(style, &format!("{:<7}", finding.severity.to_string()));
    page.line(format!("{severity}  {}: {} [{}]", finding.object, finding.summary, finding.rule));
    for evidence in &finding.evidence {
        page.line(format!("         · {evidence}"));
    }
    if let Some(remedy) = &finding.remedy {
        page.line(format!("         → {remedy}"));
    }
}

impl Report for WatchWindowReport<'_> {
    const KIND: &'static str = "watch-window";

    fn page(&self, page: &mut Page) {
        page.line(WatchRow::default().text(self).trim_end());
    }
}
