//! Histograms of spans.

/// A histogram of spans in nanoseconds with buckets no wider than 1/128 of their lower bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
    min: u64,
}

/// Each span below this has its own bucket; above it, there are this many buckets per doubling.
const SUB_BUCKETS: u64 = 128;
const SUB_BITS: u32 = 7;
/// Number of doublings above `SUB_BUCKETS` that have buckets: up to 2^44 ns, more than four hours.
const DOUBLINGS: usize = 37;

impl Histogram {
    /// Creates an empty histogram.
    pub fn new() -> Self {
        Self { counts: vec![0; (DOUBLINGS + 1) << SUB_BITS], count: 0, sum: 0, max: 0, min: u64::MAX }
    }

    /// Counts a span.
    #[inline]
    pub fn record(&mut self, span: u64) {
        let bucket = bucket(span).min(self.counts.len() - 1);
        self.counts[bucket] += 1;
        self.count += 1;
        self.sum += u128::from(span);
        self.max = self.max.max(span);
        self.min = self.min.min(span);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
        self.min = self.min.min(other.min);
    }

    /// The number of spans.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The mean span; zero without spans.
    #[expect(clippy::cast_precision_loss, reason = "a mean for display")]
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// Returns the percentile given in thousandths: the middle of its bucket.
    pub fn per_mille(&self, per_mille: u64) -> u64 {
        self.quantile(per_mille * 10)
    }

    /// Returns the percentile given in ten-thousandths: the middle of its bucket.
    pub fn quantile(&self, parts: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(parts)).div_ceil(10_000).max(1);
        let mut below = 0_u128;
        for (bucket, &count) in self.counts.iter().enumerate() {
            below += u128::from(count);
            if below >= rank {
                let (low, width) = bounds(bucket);
                return (low + width / 2).min(self.max);
            }
        }
        0
    }

    /// Iterates over the non-empty buckets, each as its middle and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts.iter().enumerate().filter(|&(_, &count)| count > 0).map(|(bucket, &count)| {
            let (low, width) = bounds(bucket);
            ((low + width / 2).clamp(self.min, self.max), count)
        })
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "far below 2^32 buckets")]
fn bucket(span: u64) -> usize {
    if span < SUB_BUCKETS {
        return span as usize;
    }
    let doubling = span.ilog2() - SUB_BITS;
    (((u64::from(doubling) + 1) << SUB_BITS) + ((span >> doubling) - SUB_BUCKETS)) as usize
}

fn bounds(bucket: usize) -> (u64, u64) {
    let bucket = bucket as u64;
    if bucket < SUB_BUCKETS {
        return (bucket, 1);
    }
    let doubling = (bucket >> SUB_BITS) - 1;
    ((SUB_BUCKETS + (bucket & (SUB_BUCKETS - 1))) << doubling, 1 << doubling)
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

    #[test]
    fn every_span_is_within_the_bounds_of_its_bucket() {
        for span in (0..44).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1]) {
            let (low, width) = bounds(bucket(span));
            assert!((low..low + width).contains(&span), "{span}");
        }
    }
}
