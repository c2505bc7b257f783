//! Many windows of one service, stored in bounded memory.

use model::live::{LiveCounts, LivePart, LiveSpans, LiveWaiting, LiveWindow, SpanCounts};
use model::{Nanoseconds, NapiId, Pid};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::survival::{Quantile, Survival, count};
use crate::measure::statistics::{Interval, student_t};

/// A percentile of response times, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Estimate {
    /// The estimate with its 95 % confidence interval.
    #[serde(flatten)]
    pub interval: Interval,
    /// Whether the estimate is a lower bound, because too many requests are unanswered.
    pub at_least: bool,
    /// Whether the interval has no upper end.
    pub open_end: bool,
}

/// The method by which a response time is estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Estimator {
    /// The time from TCP to the answer. Excludes the wait in the ring.
    Residence,
    /// The time from the ring to the answer (U). Assumes that the packets of a poll arrived uniformly since
    /// the ring was last empty.
    Uniform,
    /// The time from the ring to the answer (C). Assumes that clients send their next request as soon after
    /// an answer as they do while interrupts are enabled.
    Conditional,
    /// The larger of U and C at each percentile, because both tend to underestimate the wait.
    Larger,
    /// The time from the ring to the answer (T). The client's microsecond TCP timestamps show how much longer
    /// a request was in transit than the fastest one of its connection.
    Stamped,
}

impl Estimator {
    /// All estimators.
    pub const ALL: [Self; 5] =
        [Self::Residence, Self::Uniform, Self::Conditional, Self::Larger, Self::Stamped];

    /// Returns the estimator's letter, as used in tables.
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Residence => "R",
            Self::Uniform => "U",
            Self::Conditional => "C",
            Self::Larger => "U|C",
            Self::Stamped => "T",
        }
    }

    fn of(self, spans: &LiveSpans) -> &SpanCounts {
        match self {
            Self::Residence => &spans.residence,
            Self::Uniform => &spans.uniform,
            Self::Conditional | Self::Larger => &spans.conditional,
            Self::Stamped => &spans.stamped,
        }
    }
}

/// The unit in which requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Requests, if the protocol shows them.
    Requests,
    /// Exchanges: an exchange is everything that a client sends until the server answers, whatever the number
    /// of requests in it.
    Exchanges,
}

impl Unit {
    /// Returns the unit of these counts: requests, if at least 99 % of them belong to a protocol that shows
    /// requests.
    pub fn of(counts: &LiveCounts) -> Self {
        /// The reciprocal of the maximum share of requests that may be exchanges.
        const ONE_OF: u64 = 100;
        let exchanges = counts.requests.saturating_sub(counts.protocols.requests());
        if exchanges * ONE_OF > counts.requests { Self::Exchanges } else { Self::Requests }
    }

    /// The plural.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Exchanges => "exchanges",
        }
    }

    /// The singular.
    pub const fn one(self) -> &'static str {
        match self {
            Self::Requests => "request",
            Self::Exchanges => "exchange",
        }
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// A part of the time that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stretch {
    /// The whole response time, by an estimator.
    Response(Estimator),
    /// The time in the ring of the NIC.
    Ring,
    /// The time from TCP to the read.
    Wakeup,
    /// The time from the read to the answer.
    Service,
    /// The time from the last arrival at TCP to the answer. Excludes the time that the client took to send.
    SinceLast,
}

impl Stretch {
    fn of(self, spans: &LiveSpans) -> &SpanCounts {
        match self {
            Self::Response(estimator) => estimator.of(spans),
            Self::Ring => &spans.ring,
            Self::Wakeup => &spans.wakeup,
            Self::Service => &spans.service,
            Self::SinceLast => &spans.since_last,
        }
    }
}

/// The windows of one service, oldest first, in at most [`Series::BLOCKS_MAX`] blocks. When there would be
/// more blocks, adjacent ones are merged in pairs.
#[derive(Clone, Debug, Default)]
pub struct Series {
    blocks: Vec<Block>,
    blocks_max: usize,
    /// The number of windows per block; the last block may have fewer.
    per_block: usize,
    in_last: usize,
    windows: usize,
    span: Nanoseconds,
    counts: LiveCounts,
    spans: LiveSpans,
    ages: SpanCounts,
    waiting: LiveWaiting,
    connections: u64,
    /// The run time of the measuring programs, and the number of requests that they measured.
    weighed: (Nanoseconds, u64),
    napis: Vec<(NapiId, LivePart)>,
    workers: Vec<(Option<Pid>, LivePart)>,
}

/// Consecutive windows.
#[derive(Clone, Debug, Default)]
struct Block {
    spans: LiveSpans,
    ages: SpanCounts,
}

impl Series {
    /// The maximum number of blocks. Blocks show how much percentiles vary over time.
    pub const BLOCKS_MAX: usize = 128;

    /// The maximum number of NAPIs, and of threads, that are counted separately. Further ones are included
    /// only in the totals.
    pub const PARTS_MAX: usize = 256;

    /// An empty series.
    pub fn new() -> Self {
        Self::in_blocks(Self::BLOCKS_MAX)
    }

    /// Creates an empty series with fewer blocks, which need less memory and give less certain intervals.
    ///
    /// # Panics
    /// If the number is odd, or not from 2 to [`Series::BLOCKS_MAX`].
    pub fn in_blocks(blocks_max: usize) -> Self {
        assert!(blocks_max.is_multiple_of(2) && (2..=Self::BLOCKS_MAX).contains(&blocks_max));
        Self { per_block: 1, blocks_max, ..Self::default() }
    }

    /// Adds the next window.
    pub fn add(&mut self, window: &LiveWindow) {
        self.windows += 1;
        self.span.0 += window.span.0;
        self.counts += window.counts;
        self.spans.merge(&window.spans);
        self.ages.merge(&window.waiting.ages);
        self.waiting.clone_from(&window.waiting);
        self.connections = self.connections.max(window.counts.connections);
        if let Some(weight) = window.weight {
            self.weighed.0.0 += weight.0;
            self.weighed.1 += window.counts.requests;
        }
        merge_parts(&mut self.napis, &window.napis);
        merge_parts(&mut self.workers, &window.workers);
        if self.blocks.is_empty() || self.in_last == self.per_block.max(1) {
            if self.blocks.len() == self.blocks_max {
                self.halve();
            }
            self.blocks.push(Block::default());
            self.in_last = 0;
        }
        self.in_last += 1;
        if let Some(last) = self.blocks.last_mut() {
            last.spans.merge(&window.spans);
            last.ages.merge(&window.waiting.ages);
        }
    }

    /// Merges adjacent blocks in pairs.
    fn halve(&mut self) {
        let blocks = std::mem::take(&mut self.blocks);
        let mut pairs = blocks.into_iter();
        while let Some(mut first) = pairs.next() {
            if let Some(second) = pairs.next() {
                first.spans.merge(&second.spans);
                first.ages.merge(&second.ages);
            }
            self.blocks.push(first);
        }
        self.per_block = self.per_block.max(1) * 2;
    }

    /// The number of windows.
    pub const fn windows(&self) -> usize {
        self.windows
    }

    /// The total length of the windows.
    pub const fn span(&self) -> Nanoseconds {
        self.span
    }

    /// The total event counts.
    pub const fn counts(&self) -> &LiveCounts {
        &self.counts
    }

    /// The total spans.
    pub const fn spans(&self) -> &LiveSpans {
        &self.spans
    }

    /// Returns the requests that were unanswered at the end of the last window.
    pub const fn waiting(&self) -> &LiveWaiting {
        &self.waiting
    }

    /// The maximum number of connections with an event in one window.
    pub const fn connections(&self) -> u64 {
        self.connections
    }

    /// Returns the run time of the measuring programs per request in nanoseconds, without the overhead of
    /// calling them. `None` if it was not measured.
    pub fn weight(&self) -> Option<f64> {
        let (weight, requests) = self.weighed;
        (requests > 0).then(|| count(weight.0) / count(requests))
    }

    /// The unit of counts.
    pub fn unit(&self) -> Unit {
        Unit::of(&self.counts)
    }

    /// Returns the requests of each NAPI.
    pub fn napis(&self) -> &[(NapiId, LivePart)] {
        &self.napis
    }

    /// Returns the requests of each thread.
    pub fn workers(&self) -> &[(Option<Pid>, LivePart)] {
        &self.workers
    }

    /// Returns the best estimator that applies to nearly all requests: T if clients use microsecond TCP
    /// timestamps; otherwise the larger of U and C if turnarounds are known; otherwise U if the time in rings
    /// is known.
    pub fn estimator(&self) -> Estimator {
        let LiveCounts {
            answered,
            without_napi,
            without_poll,
            at_opening,
            conditioned,
            stamped,
            untimed,
            ..
        } = self.counts;
        let answered = answered.saturating_sub(untimed);
        // If more than a tenth of the requests had no timestamp, the percentiles of T would not describe
        // those.
        if stamped > 0 && (answered - stamped.min(answered)) * 10 <= answered {
            Estimator::Stamped
        } else if (without_napi + without_poll + at_opening) * 10 > answered {
            Estimator::Residence
        } else if conditioned > 0 {
            Estimator::Larger
        } else {
            Estimator::Uniform
        }
    }

    /// Returns the span that this share of requests does not exceed, with its 95 % confidence interval.
    /// Returns `None` if there are fewer requests than [`requests_for`] this share.
    ///
    /// The interval is Woodruff's. Because neighbouring requests are correlated, it is derived from blocks of
    /// windows: from how much the share of requests within the estimate varies between blocks. It is never
    /// narrower than for independent requests.
    pub fn percentile(&self, stretch: Stretch, share: f64) -> Option<Estimate> {
        if stretch == Stretch::Response(Estimator::Larger) {
            let by = |estimator| self.percentile(Stretch::Response(estimator), share);
            let (uniform, conditional) = (by(Estimator::Uniform)?, by(Estimator::Conditional)?);
            let is_larger = uniform.interval.estimate > conditional.interval.estimate;
            return Some(if is_larger { uniform } else { conditional });
        }
        let whole = self.survival(stretch, &self.spans, &self.ages);
        if whole.observed().max(stretch.of(&self.spans).total()) < requests_for(share) {
            return None;
        }
        let found = whole.quantile(share)?;
        let (mut squares, mut blocks) = (0.0, 0_usize);
        for block in &self.blocks {
            let of_block = self.survival(stretch, &block.spans, &block.ages);
            if of_block.observed() == 0 {
                continue;
            }
            let away = of_block.share_within(found.nanoseconds()) - share;
            squares += (count(of_block.observed()) * away).powi(2);
            blocks += 1;
        }
        let all = count(whole.observed().max(1));
        let independent = share * (1.0 - share) / all;
        let (variance, reach) = match blocks.checked_sub(1).filter(|degrees| *degrees > 0) {
            None => (independent, NORMAL),
            Some(degrees) => {
                let correction = count_of(blocks) / count_of(degrees);
                ((squares * correction / all.powi(2)).max(independent), student_t(degrees))
            }
        };
        let reach = reach * variance.sqrt();
        let low = whole.quantile((share - reach).max(0.0))?.nanoseconds();
        // If the upper end is beyond all observed spans, the interval has no upper end.
        let (high, bounded) = match whole.quantile((share + reach).min(1.0))? {
            Quantile::Exactly(high) => (high, share + reach < 1.0),
            Quantile::MoreThan(least) => (least, false),
        };
        // Add the time in the stack, which is assumed to be the same for every request.
        let stack = match stretch {
            Stretch::Response(
                Estimator::Uniform | Estimator::Conditional | Estimator::Larger | Estimator::Stamped,
            ) => self.stack(),
            Stretch::Response(Estimator::Residence)
            | Stretch::Ring
            | Stretch::Wakeup
            | Stretch::Service
            | Stretch::SinceLast => 0.0,
        };
        Some(Estimate {
            interval: Interval {
                estimate: found.nanoseconds() + stack,
                low: low + stack,
                high: high + stack,
            },
            at_least: matches!(found, Quantile::MoreThan(_)),
            open_end: !bounded,
        })
    }

    /// Returns the typical time in the stack outside TCP, in nanoseconds: from the ring to TCP, and from the
    /// answer to the device. Zero until a window has measured it.
    pub fn stack(&self) -> f64 {
        /// The minimum number of spans for a median.
        const SEEN_MIN: u64 = 50;
        let usual = |spans: &SpanCounts| {
            let median = Survival::of(spans, &SpanCounts::new()).quantile(0.5);
            median.filter(|_| spans.total() >= SEEN_MIN).map_or(0.0, Quantile::nanoseconds)
        };
        usual(&self.spans.receive) + usual(&self.spans.transmit)
    }

    /// Response times include requests that are unanswered, or that began before a window. Parts of response
    /// times include only completed requests.
    fn survival(&self, stretch: Stretch, spans: &LiveSpans, ages: &SpanCounts) -> Survival {
        let none = SpanCounts::new();
        match stretch {
            Stretch::Response(_) if self.counts.answered > 0 => {
                Survival::of_entered(stretch.of(spans), ages, &spans.entered)
            }
            Stretch::Response(_)
            | Stretch::Ring
            | Stretch::Wakeup
            | Stretch::Service
            | Stretch::SinceLast => Survival::of(stretch.of(spans), &none),
        }
    }
}

/// The 97.5th percentile of the normal distribution.
const NORMAL: f64 = 1.96;

/// Returns the minimum number of requests for a percentile: ten of them must exceed the percentile, and there
/// must be at least [`REQUESTS_MIN`].
pub fn requests_for(share: f64) -> u64 {
    const EXCEED: f64 = 10.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from ten to several thousand requests"
    )]
    let requests = (EXCEED / (1.0 - share).max(1e-6)).round() as u64;
    requests.max(REQUESTS_MIN)
}

/// The minimum number of requests for any percentile.
pub const REQUESTS_MIN: u64 = 20;

fn merge_parts<K: Copy + PartialEq>(sums: &mut Vec<(K, LivePart)>, more: &[(K, LivePart)]) {
    for (key, part) in more {
        if let Some((_, sum)) = sums.iter_mut().find(|(known, _)| known == key) {
            sum.merge(part);
        } else if sums.len() < Series::PARTS_MAX {
            sums.push((*key, part.clone()));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of blocks")]
const fn count_of(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod test {
    use super::*;
    use model::Chance;

    /// Creates a window with requests that take these times.
    fn window(spans: impl IntoIterator<Item = f64>) -> LiveWindow {
        let mut window = LiveWindow { span: Nanoseconds::from_millis(100), ..LiveWindow::default() };
        for span in spans {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
            let span = Nanoseconds(span as u64);
            window.spans.residence.add(span);
            window.spans.uniform.add(span);
            window.spans.conditional.add(span);
            window.counts.answered += 1;
        }
        window
    }

    const P99: Stretch = Stretch::Response(Estimator::Uniform);

    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say_also_when_windows_differ() {
        const EXPERIMENTS: u32 = 400;
        let mut chance = Chance::stream(5, &[]);
        let (mut held, mut naive) = (0, 0);
        // Because load varies, each window has a different speed: log-normal around 100 us.
        let truth = 100_000.0;
        for _ in 0..EXPERIMENTS {
            let mut series = Series::new();
            for _ in 0..30 {
                let pace = normal(&mut chance) * 0.3;
                let spans: Vec<f64> =
                    (0..60).map(|_| truth * (pace + 0.4 * normal(&mut chance)).exp()).collect();
                series.add(&window(spans));
            }
            let found = series.percentile(P99, 0.5).expect("enough").interval;
            held += u32::from((found.low..=found.high).contains(&truth));
            let half = NORMAL * (0.25_f64 / 1_800.0).sqrt();
            let whole = Survival::of(&series.spans().uniform, &SpanCounts::new());
            let low = whole.quantile(0.5 - half).expect("spans").nanoseconds();
            let high = whole.quantile(0.5 + half).expect("spans").nanoseconds();
            naive += u32::from((low..=high).contains(&truth));
        }
        let share = |held: u32| f64::from(held) / f64::from(EXPERIMENTS);
        assert!((0.91..=0.985).contains(&share(held)), "{}", share(held));
        assert!(share(naive) < 0.75, "as if requests were independent: {}", share(naive));
    }

    fn normal(chance: &mut Chance) -> f64 {
        (-2.0 * chance.unit().max(1e-12).ln()).sqrt() * (std::f64::consts::TAU * chance.unit()).cos()
    }

    #[test]
    fn a_million_windows_take_no_more_memory_than_a_hundred() {
        let mut series = Series::new();
        let one = window([50_000.0; 3]);
        for _ in 0..10_000 {
            series.add(&one);
        }
        assert!(series.blocks.len() <= Series::BLOCKS_MAX, "{}", series.blocks.len());
        assert_eq!((series.windows(), series.spans().uniform.total()), (10_000, 30_000));
        let in_blocks: u64 = series.blocks.iter().map(|block| block.spans.uniform.total()).sum();
        assert_eq!(in_blocks, 30_000, "nothing is lost");
    }

    #[test]
    fn a_percentile_needs_ten_requests_beyond_it() {
        let mut series = Series::new();
        series.add(&window(vec![10_000.0; 999]));
        assert!(series.percentile(P99, 0.99).is_none() && series.percentile(P99, 0.9).is_some());
        series.add(&window([10_000.0]));
        assert!(series.percentile(P99, 0.99).is_some());
        assert_eq!((requests_for(0.5), requests_for(0.9), requests_for(0.99)), (20, 100, 1_000));
    }

    #[test]
    fn requests_that_wait_make_the_percentile_a_least_one() {
        let mut series = Series::new();
        let mut hung = window(vec![10_000.0; 1_000]);
        for _ in 0..50 {
            hung.waiting.ages.add(Nanoseconds::from_millis(80));
        }
        series.add(&hung);
        let found = series.percentile(P99, 0.99).expect("enough");
        assert!(found.at_least && found.open_end, "{found:?}");
        assert!(!series.percentile(P99, 0.5).expect("enough").at_least);
    }
}
