//! What windows together say, as it is shown and written.

use model::live::{LiveCounts, LivePart, LivePolls};
use model::{Finding, NapiId, Pid};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::series::{Estimator, Series, Stretch, Unit};
use super::survival::{Survival, count};
use crate::statistics::Interval;
use model::live::SpanCounts;

/// A percentile, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Estimate {
    /// The estimate, and the interval that holds the true one in 95 of 100 cases.
    #[serde(flatten)]
    pub interval: Interval,
    /// Whether so many requests wait for an answer that the estimate is a lower bound.
    pub at_least: bool,
    /// Whether the interval has no upper end.
    pub open_end: bool,
}

/// Three percentiles; `None` with too few requests for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Percentiles {
    /// What half of the requests do not exceed.
    pub p50: Option<Estimate>,
    /// What nine of ten do not exceed.
    pub p90: Option<Estimate>,
    /// What 99 of 100 do not exceed.
    pub p99: Option<Estimate>,
}

impl Percentiles {
    /// The shares, in the order of the fields.
    pub const SHARES: [f64; 3] = [0.5, 0.9, 0.99];

    /// Of a stretch of the requests of these windows.
    pub fn of(series: &Series, stretch: Stretch) -> Self {
        let [p50, p90, p99] = Self::SHARES.map(|share| series.percentile(stretch, share));
        Self { p50, p90, p99 }
    }

    /// The estimates in the order of [`Percentiles::SHARES`].
    pub const fn all(&self) -> [Option<Estimate>; 3] {
        [self.p50, self.p90, self.p99]
    }
}

/// The requests of one NAPI or one thread.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartSummary {
    /// Its number: a NAPI id, a thread's pid; none for threads beyond those that are counted apart.
    pub id: Option<u32>,
    /// How many were answered.
    pub requests: u64,
    /// The median response time in nanoseconds, by the best estimate; likewise below.
    pub p50: Option<f64>,
    /// What 99 of 100 do not exceed.
    pub p99: Option<f64>,
    /// The mean wait in the ring, in nanoseconds; likewise below.
    pub ring: f64,
    /// The mean wait to be read.
    pub wakeup: f64,
    /// The mean time to the answer.
    pub service: f64,
    /// Of a NAPI: its polls, by who polled.
    pub polls: LivePolls,
    /// Of a NAPI: their packets.
    pub packets: LivePolls,
}

/// What some windows of a service say.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// How many windows.
    pub windows: usize,
    /// How long they were together, in seconds.
    pub measured_seconds: f64,
    /// What `requests`, `rate` and everything for each request count: requests where the protocol shows them, else exchanges.
    pub unit: Unit,
    /// Requests or exchanges that were answered, by `unit`.
    pub requests: u64,
    /// The same in a second.
    pub rate: f64,
    /// Exchanges that were answered: what a client sends until the server answers.
    pub exchanges: u64,
    /// By what `response` was estimated.
    pub estimator: Estimator,
    /// From the NIC's ring to the answer.
    pub response: Percentiles,
    /// The same by each estimator that has spans.
    pub residence: Percentiles,
    /// By estimator U.
    pub uniform: Percentiles,
    /// By estimator C.
    pub conditional: Percentiles,
    /// By estimator T.
    pub stamped: Percentiles,
    /// From the last arrival at TCP to the answer: without what the client took to send, and without the ring.
    pub since_last: Percentiles,
    /// In the ring.
    pub ring: Percentiles,
    /// From TCP to the read.
    pub wakeup: Percentiles,
    /// From the read to the answer.
    pub service_time: Percentiles,
    /// What the stack takes in `response`, between the ring and TCP and between the answer and the device, in nanoseconds.
    pub stack: f64,
    /// How long the programs that measure run for each request while a window is open, in nanoseconds, as measured on this host; the way to
    /// them and back is not in it. Windows have the times of a service that is slowed by so much.
    pub weight: Option<f64>,
    /// The share of requests whose poll began with the interrupt masked; `None` without such requests.
    pub masked_share: Option<f64>,
    /// Exchanges without an answer at the end of the last window.
    pub waiting: u64,
    /// How long the one of them that waits longest has waited since its last arrival, in nanoseconds.
    pub oldest: Option<u64>,
    /// Connections that have waited for a second and longer then.
    pub stalled: u64,
    /// The most connections that had any event in one window.
    pub connections: u64,
    /// By NAPI, most requests first.
    pub napis: Vec<PartSummary>,
    /// By thread, likewise.
    pub workers: Vec<PartSummary>,
    /// All events.
    pub counts: LiveCounts,
    /// What is not to be believed of it.
    pub findings: Vec<Finding>,
}

impl Summary {
    /// Of these windows, with what the caller found.
    pub fn of(series: &Series, findings: Vec<Finding>) -> Self {
        let counts = *series.counts();
        let estimator = series.estimator();
        let seconds = series.span().as_secs_f64();
        let known = counts.masked + counts.unmasked;
        Self {
            windows: series.windows(),
            measured_seconds: seconds,
            unit: series.unit(),
            requests: counts.requests,
            exchanges: counts.answered,
            rate: if seconds > 0.0 { count(counts.requests) / seconds } else { 0.0 },
            estimator,
            response: Percentiles::of(series, Stretch::Response(estimator)),
            residence: Percentiles::of(series, Stretch::Response(Estimator::Residence)),
            uniform: Percentiles::of(series, Stretch::Response(Estimator::Uniform)),
            conditional: Percentiles::of(series, Stretch::Response(Estimator::Conditional)),
            stamped: Percentiles::of(series, Stretch::Response(Estimator::Stamped)),
            since_last: Percentiles::of(series, Stretch::SinceLast),
            ring: Percentiles::of(series, Stretch::Ring),
            wakeup: Percentiles::of(series, Stretch::Wakeup),
            service_time: Percentiles::of(series, Stretch::Service),
            stack: series.stack(),
            weight: series.weight(),
            masked_share: (known > 0).then(|| count(counts.masked) / count(known)),
            waiting: series.waiting().requests,
            oldest: series.waiting().oldest.map(|oldest| oldest.0),
            stalled: series.waiting().stalled,
            connections: series.connections(),
            napis: parts(series.napis().iter().map(|(NapiId(id), part)| (Some(*id), part))),
            workers: parts(series.workers().iter().map(|(pid, part)| (pid.map(|Pid(pid)| pid), part))),
            counts,
            findings,
        }
    }
}

fn parts<'a>(parts: impl Iterator<Item = (Option<u32>, &'a LivePart)>) -> Vec<PartSummary> {
    let mut found: Vec<PartSummary> = parts
        .map(|(id, part)| {
            let survival = Survival::of(&part.total, &SpanCounts::new());
            let quantile = |share: f64| {
                (part.requests >= super::series::requests_for(share))
                    .then(|| survival.quantile(share).map(super::survival::Quantile::nanoseconds))
                    .flatten()
            };
            let mean = |sum: model::Nanoseconds| count(sum.0) / count(part.requests.max(1));
            PartSummary {
                id,
                requests: part.requests,
                p50: quantile(0.5),
                p99: quantile(0.99),
                ring: mean(part.ring),
                wakeup: mean(part.wakeup),
                service: mean(part.service),
                polls: part.polls,
                packets: part.packets,
            }
        })
        .collect();
    found.sort_by_key(|part| (std::cmp::Reverse(part.requests), part.id));
    found
}
