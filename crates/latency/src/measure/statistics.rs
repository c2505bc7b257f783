//! Statistics of repeated runs. All intervals should contain the true value in 95 of 100 experiments.
//!
//! Two questions, two methods:
//!
//! - *How large is it?* An experiment has few repeats, and a percentile of response times is not normally
//!   distributed. So the result is the median of the repeats, with the interval between two order statistics
//!   that the sign test gives. It assumes only that repeats are independent, uses no random numbers, and is
//!   exact. With fewer than six repeats, no such interval reaches 95 %: the range of all repeats is given,
//!   with its [`coverage`].
//! - *Is it better?* Runs before and after are paired by round, because a noisy neighbour disturbs a whole
//!   round. The test is Student's t over the differences of the pairs. Response times and throughput are
//!   compared as ratios, on a logarithmic scale, on which a disturbance by a tenth is the same at 20 µs and
//!   at 2 ms. CPU use, which may be zero, is compared by difference. A bootstrap would be overconfident with
//!   three to ten rounds, and more are not practical.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An estimate with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// The point estimate.
    pub estimate: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
}

impl Interval {
    /// Returns the wider of the two sides, for display as `±`.
    pub fn half_width(&self) -> f64 {
        (self.high - self.estimate).max(self.estimate - self.low)
    }
}

/// Returns the median: the middle value, or the mean of the two middle values. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted.get(middle).copied()
    } else {
        Some((sorted.get(middle.checked_sub(1)?)? + sorted.get(middle)?) / 2.0)
    }
}

/// Returns the median with the interval between two order statistics. `None` without values.
pub fn median_interval(values: &[f64]) -> Option<Interval> {
    let estimate = median(values)?;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let cut = cut(sorted.len());
    Some(Interval { estimate, low: sorted[cut], high: sorted[sorted.len() - 1 - cut] })
}

/// Returns the probability, from 0 to 1, that an interval of [`median_interval`] over this many values
/// contains the true median.
pub fn coverage(values: usize) -> f64 {
    1.0 - 2.0 * at_most(values, cut(values))
}

/// Returns how many values to drop at each end: as many as still give 95 % coverage.
fn cut(values: usize) -> usize {
    (1..values.div_ceil(2)).take_while(|&k| 1.0 - 2.0 * at_most(values, k) >= 0.95).last().unwrap_or(0)
}

/// Returns the probability that at most `k` of `n` fair coins show heads.
fn at_most(n: usize, k: usize) -> f64 {
    let mut term = 0.5_f64.powf(from_count(n));
    let mut sum = 0.0;
    for heads in 0..=k.min(n) {
        sum += term;
        term *= from_count(n - heads) / from_count(heads + 1);
    }
    sum
}

/// Returns the ratio after / before over paired runs, with its interval by Student's t over the logarithms of
/// the ratios. `None` for fewer than two pairs, and if a value is not positive.
pub fn paired_ratio(before: &[f64], after: &[f64]) -> Option<Interval> {
    if before.iter().chain(after).any(|&v| v.is_nan() || v <= 0.0) {
        return None;
    }
    let logs = |values: &[f64]| values.iter().map(|v| v.ln()).collect::<Vec<_>>();
    let Interval { estimate, low, high } = paired_difference(&logs(before), &logs(after))?;
    Some(Interval { estimate: estimate.exp(), low: low.exp(), high: high.exp() })
}

/// Returns the difference after − before over paired runs, with its interval by Student's t. `None` for fewer
/// than two pairs, and if the lengths differ.
pub fn paired_difference(before: &[f64], after: &[f64]) -> Option<Interval> {
    if before.len() != after.len() || before.len() < 2 {
        return None;
    }
    let differences: Vec<f64> = before.iter().zip(after).map(|(b, a)| a - b).collect();
    let n = from_count(differences.len());
    let mean = differences.iter().sum::<f64>() / n;
    let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let reach = student_t(differences.len() - 1) * (variance / n).sqrt();
    Some(Interval { estimate: mean, low: mean - reach, high: mean + reach })
}

/// Returns the 97.5th percentile of Student's t distribution with these degrees of freedom, to three
/// decimals: from a table up to 30, beyond that by the first terms of its expansion around the normal
/// distribution.
pub(crate) fn student_t(degrees: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    match degrees.checked_sub(1) {
        None => f64::INFINITY,
        Some(row) if row < TABLE.len() => TABLE[row],
        Some(_) => {
            let (z, n) = (1.959_964_f64, from_count(degrees));
            z + (z.powi(3) + z) / (4.0 * n) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of runs")]
fn from_count(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod test {
    use super::*;
    use model::Chance;

    fn assert_near(found: f64, expected: f64, tolerance: f64) {
        assert!((found - expected).abs() <= tolerance, "{found}, expected {expected}");
    }

    #[test]
    fn medians_are_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn order_statistics_are_those_of_the_sign_tests_table() {
        // How many values to drop at each end for 95 % coverage, according to published tables of the sign
        // test.
        for (n, left_out) in
            [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (10, 1), (12, 2), (15, 3), (20, 5), (25, 7)]
        {
            assert_eq!(cut(n), left_out, "{n} values");
        }
        assert_near(coverage(3), 0.75, 1e-9);
        assert_near(coverage(5), 0.9375, 1e-9);
        assert_near(coverage(6), 0.96875, 1e-9);
        assert_near(coverage(10), 0.9785, 1e-3);
        assert_eq!(
            median_interval(&[1.0, 2.0, 3.0, 4.0, 50.0]),
            Some(Interval { estimate: 3.0, low: 1.0, high: 50.0 })
        );
    }

    #[test]
    fn students_t_is_the_tables() {
        for (degrees, expected) in
            [(1, 12.706), (9, 2.262), (30, 2.042), (40, 2.021), (60, 2.000), (120, 1.980)]
        {
            assert_near(student_t(degrees), expected, 0.0011);
        }
    }

    #[test]
    fn a_paired_difference_is_the_textbooks() {
        // The sleep data of Student (1908): extra hours of sleep with two drugs, mean 1.58, t = 4.0621 with 9
        // degrees of freedom.
        let first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
        let second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];
        let found = paired_difference(&first, &second).expect("ten pairs");
        assert_near(found.estimate, 1.58, 1e-9);
        assert_near(found.low, 0.7001, 1e-3);
        assert_near(found.high, 2.4599, 1e-3);
    }

    #[test]
    fn a_ratio_is_the_same_seen_from_either_side() {
        let (before, after) = ([100.0, 210.0, 95.0], [50.0, 100.0, 50.0]);
        let there = paired_ratio(&before, &after).expect("three pairs");
        let back = paired_ratio(&after, &before).expect("three pairs");
        assert_near(there.estimate * back.estimate, 1.0, 1e-12);
        assert_near(there.low * back.high, 1.0, 1e-12);
        assert_eq!(paired_ratio(&[1.0, 0.0], &[1.0, 1.0]), None, "a ratio to zero is undefined");
        assert_eq!(paired_ratio(&[1.0], &[1.0]), None, "the noise of a single pair is unknown");
        assert_eq!(paired_ratio(&[1.0, 2.0], &[1.0]), None, "a run without a partner");
    }

    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        const EXPERIMENTS: u32 = 4000;
        let mut chance = Chance::stream(11, &[]);
        let mut normal =
            move || (-2.0 * chance.unit().ln()).sqrt() * (std::f64::consts::TAU * chance.unit()).cos();
        let (mut by_t, mut by_order) = (0, 0);
        for _ in 0..EXPERIMENTS {
            let before: Vec<f64> = (0..5).map(|_| (0.2 * normal()).exp()).collect();
            // A true ratio of 0.8 with 20 % noise.
            let after: Vec<f64> = (0..5).map(|_| 0.8 * (0.2 * normal()).exp()).collect();
            let ratio = paired_ratio(&before, &after).expect("five pairs");
            by_t += u32::from((ratio.low..=ratio.high).contains(&0.8));
            let many: Vec<f64> = (0..9).map(|_| normal().exp()).collect();
            let middle = median_interval(&many).expect("nine values");
            by_order += u32::from((middle.low..=middle.high).contains(&1.0));
        }
        assert_near(f64::from(by_t) / f64::from(EXPERIMENTS), 0.95, 0.015);
        assert_near(f64::from(by_order) / f64::from(EXPERIMENTS), coverage(9), 0.015);
    }
}
