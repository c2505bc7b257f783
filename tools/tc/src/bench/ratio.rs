//! The ratio of two durations that were measured in interleaved repeats.

use std::fmt;

/// The maximum probability that the true median lies below the interval, and the same above it.
const OUTSIDE: f64 = 0.025;

/// A ratio with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    /// The ratio of the medians.
    pub(super) of_medians: f64,
    low: f64,
    high: f64,
}

impl Ratio {
    /// Computes the ratio from interleaved measurements: entries with the same index form a pair.
    pub(super) fn of(slow: &[f64], fast: &[f64]) -> Self {
        let mut pairs: Vec<f64> = slow.iter().zip(fast).map(|(slow, fast)| slow / fast).collect();
        pairs.sort_by(f64::total_cmp);
        let cut = beyond(pairs.len());
        let at = |index: Option<usize>| index.and_then(|index| pairs.get(index)).copied().unwrap_or(f64::NAN);
        let (low, high) = (at(Some(cut)), at(pairs.len().checked_sub(1 + cut)));
        Self { of_medians: median(slow) / median(fast), low, high }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} x [{:.2}-{:.2}]", self.of_medians, self.low, self.high)
    }
}

/// Returns how many of `count` values to leave out on each side so that the interval contains the median with
/// 95 % confidence. This is the sign test: each value is above the median with probability 1/2. With fewer
/// than six values, the interval covers all of them.
fn beyond(count: usize) -> usize {
    let mut of_tosses = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut below = of_tosses;
    let mut cut = 0;
    while below <= OUTSIDE && cut < count / 2 {
        // The probability that exactly one more value is above the median.
        of_tosses *= (count - cut) as f64 / (cut + 1) as f64;
        below += of_tosses;
        if below <= OUTSIDE {
            cut += 1;
        }
    }
    cut
}

pub(super) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_interval_leaves_out_what_the_toss_of_a_coin_allows() {
        // Values from the tables of the sign test at 5 %, both sides together.
        let known = [(5, 0), (6, 0), (7, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (20, 5), (25, 7)];
        for (count, cut) in known {
            assert_eq!(beyond(count), cut, "of {count}");
        }
    }

    #[test]
    fn pairs_are_compared_and_not_the_whole() {
        // The machine becomes ten times slower in between, but each pair still has a ratio of two.
        let ratio = Ratio::of(&[2.0, 4.0, 20.0], &[1.0, 2.0, 10.0]);
        assert_eq!(ratio, Ratio { of_medians: 2.0, low: 2.0, high: 2.0 });
        assert_eq!(ratio.to_string(), "2.00 x [2.00-2.00]");
    }
}
