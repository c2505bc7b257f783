//! A betting confidence sequence (an e-process, inverted): it can be evaluated after every pair, and stopped
//! at any time.
//!
//! Two settings are measured alternately, in pairs, and a coin toss decides which comes first. Suppose that
//! the settings differ by a constant. After subtracting that constant, the sign of a pair's difference
//! depends only on the coin: plus and minus are equally likely, whatever the noise. Autocorrelation, drift
//! and heavy tails change the size of the difference, but not its sign. So a bet on the sign at even odds is
//! a fair bet. No sequence of fair bets multiplies its stake by 1/α with a probability above α, however long
//! it runs and whenever it stops (Ville 1939).
//!
//! The bet on a pair is tanh of its difference in units of the noise of earlier pairs: nearly a sign test for
//! pairs far from the hypothesis, nearly a t-test for pairs close to it. A single pair can at most double the
//! stake, so an outlier decides nothing. The stake is divided among several such bets, because a sum of fair
//! bets is fair. A bet grows with the difference. So a bet that is fair for one constant loses on average if
//! the true difference is smaller: it is also valid for "at most this constant". (A bet that ignores outliers
//! does not grow with the difference, and is not valid for smaller differences.) The constants for which the
//! stake stays below 2/α, on both sides, form an interval. The probability that this interval contains the
//! true difference at all times is at least 1 − α. docs/decisions/0029 describes the alternatives and the
//! false-alarm rates.
//!
//! Sources: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2023 (stakes
//! that depend on the past only, mixtures of bets); Ramdas and others, "Game-theoretic statistics and safe
//! anytime-valid inference", 2023; Howard and others, "Time-uniform, nonparametric, nonasymptotic confidence
//! sequences", 2021, for conditionally symmetric increments.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::measure::statistics::median;

/// A bet on each pair, which stakes a part of what the bet has won so far: risk · tanh(boldness · difference
/// / noise).
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bet {
    /// The factor on differences, which are in units of the noise.
    boldness: f64,
    /// The largest part of its stake that the bet risks on one pair.
    risk: f64,
    /// The bet's share of the whole stake.
    share: f64,
}

const fn bet(boldness: f64, risk: f64, share: f64) -> Bet {
    Bet { boldness, risk, share }
}

/// The bets among which the stake is divided. They have several scales, because the best scale depends on the
/// unknown size of the difference. The last bet is nearly on the sign and risks at most 0.3 of its stake. So
/// it survives pairs that are far off in the wrong direction, which are frequent on a busy machine. Its share
/// is small enough that clear differences need no further pair.
const BETS: &[Bet] = &[bet(0.2, 1.0, 0.31), bet(0.6, 1.0, 0.31), bet(2.0, 1.0, 0.32), bet(10.0, 0.3, 0.06)];

/// The bets for many short pairs on a machine that may be busy. With these, clear differences need one more
/// pair.
const ROBUST: &[Bet] = &[bet(0.2, 1.0, 0.15), bet(0.6, 1.0, 0.15), bet(2.0, 1.0, 0.2), bet(10.0, 0.3, 0.5)];

/// The noise, on a logarithmic scale, that is assumed until there are enough pairs.
const NOISE_SUPPOSED: f64 = 0.1;

/// The number of differences from which on the noise is estimated.
const NOISE_KNOWN_FROM: usize = 4;

/// The minimum noise. Smaller values are not plausible, because histogram buckets have a finite width.
const NOISE_MIN: f64 = 0.002;

/// The maximum number of pairs, which is three hours of one-second pairs. Later pairs are ignored.
pub const PAIRS_MAX: usize = 8_192;

/// How far beyond all differences the search for the ends of the interval goes, in units of the noise.
const REACH: f64 = 40.0;

/// The number of bisections for each end of the interval, which gives a precision of 2^-40 of the searched
/// range.
const HALVINGS: u32 = 40;

/// The differences of pairs, in the order in which they were measured, and the bets on them.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    bets: &'static [Bet],
    differences: Vec<f64>,
    /// For each difference, the noise of the differences before it.
    noise: Vec<f64>,
}

/// A confidence interval of the true difference that is valid at any time.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// The point estimate: the median of all pairwise means (Hodges–Lehmann).
    pub estimate: f64,
    /// The interval's lower end; `None` while there are too few pairs.
    pub low: Option<f64>,
    /// The interval's upper end; `None` while there are too few pairs.
    pub high: Option<f64>,
}

impl Bounds {
    /// Applies an increasing function to the estimate and to both ends.
    #[must_use]
    pub fn map(self, of: impl Fn(f64) -> f64) -> Self {
        Self { estimate: of(self.estimate), low: self.low.map(&of), high: self.high.map(&of) }
    }
}

impl Bounds {
    /// Widens the interval by `spread` on both sides.
    #[must_use]
    pub fn wider_by(self, spread: f64) -> Self {
        Self { low: self.low.map(|low| low - spread), high: self.high.map(|high| high + spread), ..self }
    }
}

impl Sequence {
    /// An empty sequence.
    pub const fn new() -> Self {
        Self { bets: BETS, differences: Vec::new(), noise: Vec::new() }
    }

    /// Creates an empty sequence for many short pairs, with bets that survive outliers.
    pub fn robust() -> Self {
        Self { bets: ROBUST, ..Self::new() }
    }

    /// Adds the difference of the next pair. Ignores values that are not finite, and pairs beyond
    /// [`PAIRS_MAX`].
    pub fn add(&mut self, difference: f64) {
        if difference.is_finite() && self.differences.len() < PAIRS_MAX {
            self.noise.push(noise(&self.differences));
            self.differences.push(difference);
        }
    }

    /// The number of pairs.
    pub const fn pairs(&self) -> usize {
        self.differences.len()
    }

    /// The differences.
    pub fn differences(&self) -> &[f64] {
        &self.differences
    }

    /// Returns the logarithm of the factor by which a unit stake has grown that was bet against "the
    /// difference is at most this much".
    pub fn against_at_most(&self, most: f64) -> f64 {
        self.wealth(|difference| difference - most)
    }

    /// Returns the logarithm of the factor by which a unit stake has grown that was bet against "the
    /// difference is at least this much".
    pub fn against_at_least(&self, least: f64) -> f64 {
        self.wealth(|difference| least - difference)
    }

    fn wealth(&self, excess: impl Fn(f64) -> f64) -> f64 {
        let by_bet = self.bets.iter().map(|Bet { boldness, risk, share }| {
            let pairs = self.differences.iter().zip(&self.noise);
            let grown =
                pairs.map(|(&difference, noise)| growth(boldness * excess(difference) / noise, *risk));
            share.ln() + grown.sum::<f64>()
        });
        sum_of_logs(&by_bet.collect::<Vec<f64>>())
    }

    /// Returns an interval. The probability that it misses the true difference, at any time, is at most
    /// `alpha`. Returns `None` if there are no pairs.
    ///
    /// `against_at_most` decreases as its hypothesis grows, so the values that are not rejected form an
    /// interval.
    pub fn bounds(&self, alpha: f64) -> Option<Bounds> {
        let estimate = hodges_lehmann(&self.differences)?;
        let refused = (2.0 / alpha).ln();
        let spread = noise(&self.differences).max(NOISE_SUPPOSED);
        let least = self.differences.iter().copied().fold(f64::INFINITY, f64::min) - REACH * spread;
        let most = self.differences.iter().copied().fold(f64::NEG_INFINITY, f64::max) + REACH * spread;
        let low = (self.against_at_most(least) >= refused)
            .then(|| bisect(least, most, |at| self.against_at_most(at) >= refused));
        let high = (self.against_at_least(most) >= refused)
            .then(|| bisect(most, least, |at| self.against_at_least(at) >= refused));
        Some(Bounds { estimate, low, high })
    }

    /// Estimates how many pairs in total are needed to reject a value at this distance from the true
    /// difference, if future pairs are as noisy as those so far. Returns `None` if there is too little data,
    /// or if more than [`PAIRS_MAX`] pairs would be needed.
    pub fn pairs_for(&self, distance: f64, alpha: f64) -> Option<usize> {
        if self.differences.len() < NOISE_KNOWN_FROM || distance <= 0.0 {
            return None;
        }
        let middle = median(&self.differences)?;
        let noise = noise(&self.differences);
        let needed = |&Bet { boldness, risk, share }: &Bet| {
            let residuals = self.differences.iter().map(|difference| difference - middle);
            let grown: f64 = residuals.map(|left| growth(boldness * (distance + left) / noise, risk)).sum();
            let mean = grown / count(self.differences.len());
            (mean > 0.0).then(|| (2.0 / alpha / share).ln() / mean)
        };
        let needed = self.bets.iter().filter_map(needed).fold(f64::INFINITY, f64::min);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive and below PAIRS_MAX"
        )]
        let pairs = (needed <= count(PAIRS_MAX)).then(|| needed.ceil() as usize);
        pairs
    }
}

impl Sequence {
    /// Returns the number of pairs within which nine of ten sequences with these bets multiply a unit stake
    /// by `stake`, in bets against a value that is `distance` below the true difference. `differences` are
    /// those of pairs without a true difference, in either order. Returns `None` if there are none, or if
    /// more than [`PAIRS_MAX`] pairs are needed.
    pub fn pairs_until(&self, differences: &[f64], distance: f64, stake: f64) -> Option<usize> {
        /// The 90th percentile of a standard normal distribution.
        const NINE_OF_TEN: f64 = 1.2816;
        if differences.is_empty() || distance <= 0.0 {
            return None;
        }
        let both: Vec<f64> = differences.iter().flat_map(|one| [*one, -one]).collect();
        let noise = noise(&both);
        let pairs = self.bets.iter().filter_map(|&Bet { boldness, risk, share }| {
            let refused = (stake / share).ln();
            let grown = || both.iter().map(|one| growth(boldness * (distance + one) / noise, risk));
            let mean = grown().sum::<f64>() / count(both.len());
            let variance = grown().map(|one| (one - mean).powi(2)).sum::<f64>() / count(both.len());
            // Solves mean · n − reach · √n = refused for √n.
            let reach = NINE_OF_TEN * variance.sqrt();
            let root = (reach + (reach * reach + 4.0 * mean * refused).sqrt()) / (2.0 * mean);
            (mean > 0.0).then_some(root * root)
        });
        let pairs = pairs.fold(f64::INFINITY, f64::min);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, at most PAIRS_MAX"
        )]
        let pairs = (pairs <= count(PAIRS_MAX)).then(|| pairs.ceil() as usize);
        pairs
    }
}

impl Default for Sequence {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns by how much one bet increases the logarithm of the stake: ln(1 + risk · tanh x). The bet was risk
/// · tanh x on a sign that turned out to be that of x.
fn growth(x: f64, risk: f64) -> f64 {
    if risk < 1.0 {
        return (risk * x.tanh()).ln_1p();
    }
    // Calculates ln(1 + tanh x), where 1 + tanh x = 2 / (1 + e^-2x), without overflow or loss of small
    // values.
    let doubled = -2.0 * x;
    std::f64::consts::LN_2 - if doubled > 30.0 { doubled } else { doubled.exp().ln_1p() }
}

/// Returns the logarithm of the mean of exponentials: the log growth of a stake that was divided evenly among
/// bets, from the log growth of each bet. Minus infinity if there are no bets.
pub fn mean_of_logs(logs: &[f64]) -> f64 {
    sum_of_logs(logs) - count(logs.len().max(1)).ln()
}

/// Returns the logarithm of the sum of exponentials.
fn sum_of_logs(logs: &[f64]) -> f64 {
    let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return most;
    }
    most + logs.iter().map(|log| (log - most).exp()).sum::<f64>().ln()
}

/// Returns the spread of differences around their median: the median absolute deviation, scaled to the
/// standard deviation of a normal distribution.
fn noise(differences: &[f64]) -> f64 {
    const TO_NORMAL: f64 = 1.4826;
    if differences.len() < NOISE_KNOWN_FROM {
        return NOISE_SUPPOSED;
    }
    let middle = median(differences).unwrap_or(0.0);
    let away: Vec<f64> = differences.iter().map(|difference| (difference - middle).abs()).collect();
    (TO_NORMAL * median(&away).unwrap_or(NOISE_SUPPOSED)).max(NOISE_MIN)
}

/// Returns the median of all values and of the means of all pairs of values.
///
/// Source: Hodges and Lehmann, "Estimates of location based on rank tests", 1963.
pub fn hodges_lehmann(values: &[f64]) -> Option<f64> {
    /// The maximum number of values that are used. Larger sets are sampled evenly, because the number of
    /// means grows quadratically.
    const VALUES_MAX: usize = 512;
    let every = values.len().div_ceil(VALUES_MAX).max(1);
    let values: Vec<f64> = values.iter().copied().step_by(every).collect();
    let mut means = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
    for (at, first) in values.iter().enumerate() {
        means.extend(values[at..].iter().map(|second| f64::midpoint(*first, *second)));
    }
    median(&means)
}

/// Returns the last point from `from` towards `to` at which a predicate is true. The predicate must be true
/// at `from`.
fn bisect(from: f64, to: f64, holds: impl Fn(f64) -> bool) -> f64 {
    let (mut held, mut not) = (from, to);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(held, not);
        if holds(middle) { held = middle } else { not = middle }
    }
    held
}

#[expect(clippy::cast_precision_loss, reason = "counts of pairs")]
const fn count(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod test {
    use super::*;
    use model::Chance;
    use proptest::prelude::*;

    fn sequence(differences: &[f64]) -> Sequence {
        let mut sequence = Sequence::new();
        differences.iter().for_each(|difference| sequence.add(*difference));
        sequence
    }

    fn normal(chance: &mut Chance) -> f64 {
        (-2.0 * chance.unit().ln()).sqrt() * (std::f64::consts::TAU * chance.unit()).cos()
    }

    #[test]
    fn six_pairs_that_all_say_the_same_are_the_fewest_that_decide() {
        let refused = |pairs: usize| {
            sequence(&vec![1.0; pairs])
                .bounds(0.05)
                .is_some_and(|found| found.low.is_some_and(|low| low > 0.0))
        };
        assert!(!refused(5) && refused(6));
        assert_eq!(Sequence::new().bounds(0.05), None);
    }

    #[test]
    fn looking_after_every_pair_raises_no_false_alarm_whatever_the_windows_are_like() {
        const TRIALS: u64 = 300;
        let kinds = [
            ("alike", 0.76, 0.0, 0.0, false),
            ("drifting", 0.0, 0.02, 0.0, false),
            ("stalled", 0.0, 0.0, 0.1, false),
            ("heavy tails with drift", 0.5, 0.02, 0.02, true),
        ];
        let all = kinds.into_iter().flat_map(|kind| [(kind, Sequence::new()), (kind, Sequence::robust())]);
        for ((name, correlation, drift, stalled, heavy), empty) in all {
            let mut alarms = 0;
            for seed in 0..TRIALS {
                let mut chance = Chance::stream(seed, &[1]);
                let (mut sequence, mut level, mut trend) = (empty.clone(), 0.0, 0.0);
                let mut window = |chance: &mut Chance| {
                    // Heavy tails are those of Student's t with two degrees of freedom, which has no finite
                    // variance.
                    let tail = if heavy { (-chance.unit().ln()).sqrt().max(1e-9) } else { 1.0 };
                    level = correlation * level + 0.1 * normal(chance) / tail;
                    trend += drift;
                    level + trend + if chance.unit() < stalled { 3.0 } else { 0.0 }
                };
                alarms += u32::from((0..100).any(|_| {
                    let difference = window(&mut chance) - window(&mut chance);
                    sequence.add(if chance.below(2) == 0 { difference } else { -difference });
                    let refused = (2.0 / 0.05_f64).ln();
                    sequence.against_at_most(0.0) >= refused || sequence.against_at_least(0.0) >= refused
                }));
            }
            // The limit is 5 % of 300 trials, plus twice the standard error of that number.
            assert!(alarms <= 22, "{name}: {alarms} false alarms of {TRIALS} with {:?}", empty.bets);
        }
    }

    #[test]
    fn shares_of_bets_are_the_whole_stake() {
        for bets in [BETS, ROBUST] {
            assert!((bets.iter().map(|bet| bet.share).sum::<f64>() - 1.0).abs() < 1e-12, "{bets:?}");
        }
    }

    #[test]
    fn a_difference_below_the_hypothesis_is_refused_no_more_often_than_the_hypothesis_itself() {
        // There are outliers in both directions. A bet that ignored them would win from pairs just below the
        // threshold at which they are ignored.
        let alarms = |truth: f64| {
            let trials = (0..300).filter(|seed| {
                let mut chance = Chance::stream(*seed, &[3]);
                let mut sequence = Sequence::robust();
                (0..100).any(|_| {
                    let outlier = if chance.below(2) == 0 { 1.5 } else { -1.5 };
                    let noise = if chance.unit() < 0.3 { outlier } else { 0.05 * normal(&mut chance) };
                    sequence.add(truth + noise);
                    sequence.against_at_most(0.0) >= 20_f64.ln()
                })
            });
            trials.count()
        };
        let found = [0.0, -0.02, -0.1].map(alarms);
        assert!(found[0] <= 22 && found[1] <= found[0] && found[2] == 0, "{found:?}");
    }

    /// One pair in five is far off in either direction, as on a machine on which other programs run.
    #[test]
    fn robust_bets_survive_pairs_that_are_far_off_in_the_wrong_direction() {
        let growth = |mut sequence: Sequence| {
            let mut chance = Chance::stream(39, &[4]);
            for _ in 0..150 {
                let outlier = if chance.below(2) == 0 { 2.0 } else { -2.0 };
                let noise = if chance.below(5) == 0 { outlier } else { 0.1 * normal(&mut chance) };
                sequence.add(0.1 + noise);
            }
            sequence.against_at_most(0.0)
        };
        let bold = Sequence { bets: &BETS[..3], ..Sequence::new() };
        let [bold, few, robust] = [bold, Sequence::new(), Sequence::robust()].map(growth);
        assert!(bold < 5.0 && few > 5.0 && robust > few, "{bold} {few} {robust}");
    }

    #[test]
    fn how_many_pairs_it_takes_is_predicted_to_within_a_factor_of_two() {
        let mut chance = Chance::stream(4, &[]);
        let mut sequence = Sequence::new();
        let mut draw = move || 0.1 + 0.3 * normal(&mut chance);
        (0..40).for_each(|_| sequence.add(draw()));
        let predicted = sequence.pairs_for(0.1, 0.05).expect("enough pairs");
        let mut needed = Vec::new();
        for seed in 0..50 {
            let mut chance = Chance::stream(seed, &[2]);
            let mut sequence = Sequence::new();
            let pairs = (1..2_000).find(|_| {
                sequence.add(0.1 + 0.3 * normal(&mut chance));
                sequence.against_at_most(0.0) >= (2.0 / 0.05_f64).ln()
            });
            needed.push(count(pairs.expect("decided")));
        }
        let typical = median(&needed).expect("fifty");
        assert!((0.5..2.0).contains(&(count(predicted) / typical)), "{predicted}, took {typical}");
        assert_eq!(sequence.pairs_for(1e-6, 0.05), None, "more than the maximum number of pairs");
    }

    proptest! {
        #[test]
        fn a_bet_at_most_doubles_the_stake(
            differences in prop::collection::vec(-3.0..3.0_f64, 0..40),
            outlier in prop::num::f64::NORMAL,
            at in -1.0..1.0_f64,
        ) {
            let before = sequence(&differences);
            let mut after = before.clone();
            after.add(outlier);
            let grown = after.against_at_most(at) - before.against_at_most(at);
            prop_assert!(grown <= std::f64::consts::LN_2 + 1e-9, "{grown}");
        }

        #[test]
        fn swapping_the_settings_mirrors_the_interval(
            differences in prop::collection::vec(-1.0..1.0_f64, 1..60),
        ) {
            let mirrored: Vec<f64> = differences.iter().map(|difference| -difference).collect();
            let (there, back) = (sequence(&differences).bounds(0.05), sequence(&mirrored).bounds(0.05));
            let (there, back) = (there.expect("pairs"), back.expect("pairs"));
            prop_assert!((there.estimate + back.estimate).abs() < 1e-9);
            prop_assert_eq!(there.low.is_some(), back.high.is_some());
            if let (Some(low), Some(high)) = (there.low, back.high) {
                prop_assert!((low + high).abs() < 1e-6, "{} {}", low, high);
            }
        }

        #[test]
        fn what_is_inside_the_interval_is_not_refused_and_what_is_outside_is(
            differences in prop::collection::vec(-1.0..1.0_f64, 8..60),
            within in 0.01..0.99_f64,
        ) {
            let sequence = sequence(&differences);
            let refused = (2.0 / 0.05_f64).ln();
            if let Some(Bounds { low: Some(low), high: Some(high), .. }) = sequence.bounds(0.05)
                && low < high
            {
                let at = low + within * (high - low);
                prop_assert!(sequence.against_at_most(at) < refused + 1e-6);
                prop_assert!(sequence.against_at_least(at) < refused + 1e-6);
                prop_assert!(sequence.against_at_most(low - 1e-6) >= refused - 1e-3);
                prop_assert!(sequence.against_at_least(high + 1e-6) >= refused - 1e-3);
            }
        }
    }
}
