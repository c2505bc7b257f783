//! The figures of several windows combined, for text and JSON output.

use model::live::{LiveCounts, LivePart, LivePolls};
use model::{Finding, NapiId, Pid};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::series::{Estimate, Estimator, Series, Stretch, Unit};
use super::survival::{Survival, count};
use model::live::SpanCounts;

/// Three percentiles. Each is `None` if there are too few requests for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Percentiles {
    /// The median.
    pub p50: Option<Estimate>,
    /// The 90th percentile.
    pub p90: Option<Estimate>,
    /// The 99th percentile.
    pub p99: Option<Estimate>,
}

impl Percentiles {
    /// The shares of the percentiles, in the order of the fields.
    pub const SHARES: [f64; 3] = [0.5, 0.9, 0.99];

    /// Computes the percentiles of a part of the requests' time in these windows.
    pub fn of(series: &Series, stretch: Stretch) -> Self {
        let [p50, p90, p99] = Self::SHARES.map(|share| series.percentile(stretch, share));
        Self { p50, p90, p99 }
    }

    /// Returns the estimates in the order of [`Percentiles::SHARES`].
    pub const fn all(&self) -> [Option<Estimate>; 3] {
        [self.p50, self.p90, self.p99]
    }
}

/// The figures of the requests of one NAPI or one thread.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartSummary {
    /// A NAPI id or a tid; `None` for threads that are not counted separately.
    pub id: Option<u32>,
    /// The number of answered requests.
    pub requests: u64,
    /// The median response time in nanoseconds, by the best estimate.
    pub p50: Option<f64>,
    /// The 99th percentile in nanoseconds, by the best estimate.
    pub p99: Option<f64>,
    /// The mean wait in the ring, in nanoseconds.
    pub ring: f64,
    /// The mean wait from TCP until the request was read, in nanoseconds.
    pub wakeup: f64,
    /// The mean time from read to answer, in nanoseconds.
    pub service: f64,
    /// The polls of a NAPI, by polling context.
    pub polls: LivePolls,
    /// The packets that these polls delivered, by polling context.
    pub packets: LivePolls,
}

/// The figures of several windows of a service.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// The number of windows.
    pub windows: usize,
    /// The total length of the windows in seconds.
    pub measured_seconds: f64,
    /// The unit of `requests`, `rate` and all figures per request: requests if the protocol shows them,
    /// otherwise exchanges.
    pub unit: Unit,
    /// The number of answered requests or exchanges, depending on `unit`.
    pub requests: u64,
    /// The number of answered requests or exchanges per second.
    pub rate: f64,
    /// The number of answered exchanges. An exchange is everything that a client sends until the server
    /// answers.
    pub exchanges: u64,
    /// The estimator of `response`.
    pub estimator: Estimator,
    /// The time from the NIC's ring to the answer.
    pub response: Percentiles,
    /// Response times from TCP to the answer.
    pub residence: Percentiles,
    /// Response times by estimator U.
    pub uniform: Percentiles,
    /// Response times by estimator C.
    pub conditional: Percentiles,
    /// Response times by estimator T.
    pub stamped: Percentiles,
    /// Response times from the last arrival at TCP to the answer. They exclude the wait in the ring and the
    /// time that the client took to send.
    pub since_last: Percentiles,
    /// The time in the ring.
    pub ring: Percentiles,
    /// The time from TCP to the read.
    pub wakeup: Percentiles,
    /// The time from the read to the answer.
    pub service_time: Percentiles,
    /// The part of `response` that is spent in the network stack, between the ring and TCP and between the
    /// answer and the device, in nanoseconds.
    pub stack: f64,
    /// The run time of the measuring programs per request while a window is open, in nanoseconds, as measured
    /// on this host. Excludes the overhead of calling the programs. Measuring slows requests in a window down
    /// by this time.
    pub weight: Option<f64>,
    /// The share of requests whose poll began with the interrupt masked; `None` if this is not known for any
    /// request.
    pub masked_share: Option<f64>,
    /// The number of unanswered exchanges at the end of the last window.
    pub waiting: u64,
    /// The longest wait of an unanswered exchange since its last arrival, in nanoseconds; `None` if there is
    /// no such exchange.
    pub oldest: Option<u64>,
    /// The number of connections that had waited for at least a second at the end of the last window.
    pub stalled: u64,
    /// The maximum number of connections with an event in one window.
    pub connections: u64,
    /// The requests by NAPI, ordered by decreasing number of requests.
    pub napis: Vec<PartSummary>,
    /// The requests by thread, ordered by decreasing number of requests.
    pub workers: Vec<PartSummary>,
    /// The median of the connections' smoothed round-trip times, in nanoseconds: from a segment of the
    /// service to its acknowledgement, including the wait of the acknowledgement in the ring. `None` if there
    /// were no answers.
    pub rtt: Option<f64>,
    /// The total event counts.
    pub counts: LiveCounts,
    /// Findings about the reliability of these figures.
    pub findings: Vec<Finding>,
}

impl Summary {
    /// Summarises these windows. `findings` are those of the caller.
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
            rtt: crate::measure::switchback::median_rtt(&series.spans().rtt),
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
