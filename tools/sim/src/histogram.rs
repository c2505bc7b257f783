//! Histograms of spans.

use hdrhistogram::Histogram as Buckets;

/// A histogram of spans in nanoseconds with buckets no wider than 1/128 of their lower bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    buckets: Buckets<u64>,
    sum: u128,
}

/// Longer spans, of more than four hours, count as this long.
const SPAN_MAX: u64 = 1 << 44;
/// Two significant decimal digits: 128 buckets per doubling.
const DIGITS: u8 = 2;

impl Histogram {
    /// Creates an empty histogram.
    ///
    /// # Panics
    /// Never: the constants are valid.
    pub fn new() -> Self {
        Self { buckets: Buckets::new_with_max(SPAN_MAX, DIGITS).expect("valid constants"), sum: 0 }
    }

    /// Counts a span.
    #[inline]
    pub fn record(&mut self, span: u64) {
        self.buckets.saturating_record(span);
        self.sum += u128::from(span);
    }

    /// Adds the counts of another histogram.
    ///
    /// # Panics
    /// Never: all histograms have the same bounds.
    pub fn merge(&mut self, other: &Self) {
        self.buckets.add(&other.buckets).expect("equal bounds");
        self.sum += other.sum;
    }

    /// The number of spans.
    pub fn count(&self) -> u64 {
        self.buckets.len()
    }

    /// The mean span; zero without spans.
    #[expect(clippy::cast_precision_loss, reason = "a mean for display")]
    pub fn mean(&self) -> f64 {
        if self.buckets.is_empty() { 0.0 } else { self.sum as f64 / self.count() as f64 }
    }

    /// Returns the percentile given in thousandths: the middle of its bucket.
    pub fn per_mille(&self, per_mille: u64) -> u64 {
        self.quantile(per_mille * 10)
    }

    /// Returns the percentile given in ten-thousandths: the middle of its bucket.
    #[expect(clippy::cast_precision_loss, reason = "below 2^14")]
    pub fn quantile(&self, parts: u64) -> u64 {
        self.buckets.median_equivalent(self.buckets.value_at_quantile(parts as f64 / 10_000.0))
    }

    /// Iterates over the non-empty buckets, each as its middle and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.buckets.iter_recorded().map(|step| {
            (self.buckets.median_equivalent(step.value_iterated_to()), step.count_since_last_iteration())
        })
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn percentiles_are_right_to_half_a_bucket() {
        let mut histogram = Histogram::new();
        for us in 1..=100_000_u64 {
            histogram.record(us * 1000);
        }
        for (per_mille, expected) in [(500, 50_000_000_u64), (950, 95_000_000), (990, 99_000_000)] {
            let found = histogram.per_mille(per_mille);
            assert!(found.abs_diff(expected) * 128 <= expected, "{found} for {expected}");
        }
        assert!(histogram.quantile(9_999).abs_diff(99_990_000) * 128 <= 99_990_000);
        assert_eq!((histogram.count(), histogram.buckets().map(|(_, n)| n).sum::<u64>()), (100_000, 100_000));
    }
}
