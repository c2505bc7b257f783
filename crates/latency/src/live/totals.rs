//! The total counts of a service, from which counters are published that only increase.

use crate::measure::live::{Estimator, Series};
use model::Nanoseconds;
use model::live::{LiveCounts, LivePolls, LiveWindow, SpanCounts};

use crate::live::sampler::Sample;

/// The total counts of a service since it was first measured. They never decrease.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// The number of windows.
    pub windows: u64,
    /// The total length of the windows.
    pub measured: Nanoseconds,
    /// The number of requests that were answered in the windows, or of exchanges if the protocol does not
    /// show requests.
    pub requests: u64,
    /// How many of these are exchanges, whose number of requests is unknown.
    pub exchanges: u64,
    /// The times from the ring to the answer, by estimate U. If packets have no NAPI id, the times exclude
    /// the wait in the ring.
    uniform: SpanCounts,
    /// The times from the ring to the answer, by estimate C.
    conditional: SpanCounts,
    /// The times that requests waited in the ring.
    pub ring: SpanTotals,
    /// The times from TCP to the read.
    pub wakeup: SpanTotals,
    /// The times from the read to the answer.
    pub service: SpanTotals,
    /// The number of polls of the service's NAPIs, by polling context.
    pub polls: LivePolls,
    /// The number of packets that these polls delivered, by polling context.
    pub packets: LivePolls,
    /// The CPU time of the service's processes in the windows.
    pub cpu_service: Nanoseconds,
    /// The CPU time of the softirqs and kernel threads that polled for the service, as far as it was counted.
    pub cpu_delivery: Nanoseconds,
    /// All event counts.
    pub counts: LiveCounts,
}

/// A histogram of time spans, with their sum.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpanTotals {
    /// The number of time spans in each bucket.
    pub counts: SpanCounts,
    /// The sum of the time spans.
    pub sum: Nanoseconds,
}

impl SpanTotals {
    /// Returns the number of time spans that do not exceed `span`, which must be the edge of a bucket.
    pub fn within(&self, span: Nanoseconds) -> u64 {
        within(&self.counts, span)
    }
}

impl Totals {
    /// Adds a window of a service. `series` tells whether the time in the ring is known.
    pub(crate) fn add(&mut self, sample: &Sample, series: &Series) {
        let LiveWindow { span, counts, spans, napis, workers, .. } = &sample.window;
        self.windows += 1;
        self.counts += *counts;
        self.measured.0 += span.0;
        self.requests += counts.requests;
        self.exchanges += counts.requests.saturating_sub(counts.protocols.requests());
        let (uniform, conditional) = match series.estimator() {
            Estimator::Residence => (&spans.residence, &spans.residence),
            Estimator::Uniform | Estimator::Conditional | Estimator::Larger => {
                (&spans.uniform, &spans.conditional)
            }
            Estimator::Stamped => (&spans.stamped, &spans.stamped),
        };
        self.uniform.merge(uniform);
        self.conditional.merge(conditional);
        self.ring.counts.merge(&spans.ring);
        self.wakeup.counts.merge(&spans.wakeup);
        self.service.counts.merge(&spans.service);
        for (_, part) in workers {
            self.ring.sum.0 += part.ring.0;
            self.wakeup.sum.0 += part.wakeup.0;
            self.service.sum.0 += part.service.0;
        }
        for (_, part) in napis {
            self.polls += part.polls;
            self.packets += part.packets;
        }
        if let Some(usage) = &sample.usage {
            self.cpu_service.0 += usage.service.0;
            self.cpu_delivery.0 += usage.softirq.map_or(0, |softirq| softirq.0) + usage.kthreads.0;
        }
    }

    /// Returns the number of response times up to `span`, which must be the edge of a bucket. Uses the
    /// smaller of the numbers by estimates U and C, because the larger estimate of each percentile is the
    /// better one.
    pub fn responses_within(&self, span: Nanoseconds) -> u64 {
        within(&self.uniform, span).min(within(&self.conditional, span))
    }

    /// Returns the number of response times.
    pub fn responses(&self) -> u64 {
        self.uniform.total().min(self.conditional.total())
    }

    /// Returns the sum of all response times.
    pub fn response_sum(&self) -> Nanoseconds {
        Nanoseconds(self.ring.sum.0 + self.wakeup.sum.0 + self.service.sum.0)
    }
}

fn within(counts: &SpanCounts, span: Nanoseconds) -> u64 {
    counts.buckets().iter().take(SpanCounts::bucket_of(span)).sum()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_histogram_has_what_is_shorter_than_each_edge_and_never_more_by_one_estimate_than_by_the_other() {
        let mut window = LiveWindow::default();
        for micros in [10, 20, 40] {
            window.spans.uniform.add(Nanoseconds::from_micros(micros));
            window.spans.conditional.add(Nanoseconds::from_micros(2 * micros));
            window.counts.answered += 1;
        }
        let mut series = Series::new();
        series.add(&window);
        let mut totals = Totals::default();
        totals.add(&Sample { window, usage: None }, &series);
        let edges = [1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17].map(Nanoseconds);
        assert_eq!(edges.map(|edge| totals.responses_within(edge)), [0, 0, 1, 2, 3]);
        assert_eq!(totals.responses(), 3);
    }
}
