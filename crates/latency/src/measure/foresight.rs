//! Predicts how soon a switchback experiment can detect a change, from windows without a change.
//!
//! Adjacent windows without a change differ by the noise that a pair of windows will have. Per pair, the
//! stake of [`crate::measure::sequential`]'s bets grows by the average result of the bets on these
//! differences plus the change, in either order of the two windows. The prediction ignores that noise may
//! come in bursts longer than a pair.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::measure::sequential::{PAIRS_MAX, Sequence};
use crate::measure::switchback::{Figures, Metric};

/// The minimum number of differences for a prediction.
pub const DIFFERENCES_MIN: usize = 5;

/// A prediction of what a comparison or guard can detect, given the noise of the windows before it.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Foresight {
    /// The metric.
    pub metric: Metric,
    /// The number of windows from which this was predicted.
    pub windows: usize,
    /// The typical difference between adjacent windows, as a share.
    pub noise: f64,
    /// The growth of the metric for which `seen_within` is predicted, as a share.
    pub growth: f64,
    /// The time within which nine of ten comparisons or guards detect this growth, in seconds; `None` if that
    /// takes more pairs than a comparison can have.
    pub seen_within: Option<f64>,
    /// The smallest growth that nine of ten comparisons or guards detect within their time, as a share;
    /// `None` if even a tenfold value takes longer.
    pub smallest: Option<f64>,
}

/// The parameters that determine when a growth is detected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sight {
    /// The growth beyond which a larger growth is to be detected: a guard's limit, or zero for a comparison.
    pub limit: f64,
    /// The factor by which a stake must grow for a detection: 1/α for one bet at the error rate α.
    pub stake: f64,
    /// The duration of a pair, in seconds.
    pub pair_seconds: f64,
    /// The time that the comparison or guard has, in seconds.
    pub within: f64,
    /// Whether the bets are those of [`Sequence::robust`].
    pub robust: bool,
    /// The minimum number of pairs for a detection.
    pub pairs_min: usize,
}

/// The largest growth that is tried for [`Foresight::smallest`].
const GROWTH_MAX: f64 = 9.0;

/// The number of bisections of the range of growths, which gives a precision of a hundredth of a per cent.
const HALVINGS: u32 = 16;

impl Foresight {
    /// Predicts from consecutive windows without a change. Returns `None` for metrics that are not ratios,
    /// and for fewer than [`DIFFERENCES_MIN`] differences.
    pub fn of(windows: &[Figures], metric: Metric, growth: f64, sight: &Sight) -> Option<Self> {
        if !metric.is_ratio() {
            return None;
        }
        let pairs = windows.windows(2).filter_map(|pair| metric.difference(&pair[0], &pair[1]));
        let differences: Vec<f64> = pairs.filter(|difference| difference.is_finite()).collect();
        if differences.len() < DIFFERENCES_MIN {
            return None;
        }
        let away: Vec<f64> = differences.iter().map(|difference| difference.abs()).collect();
        let noise = crate::measure::statistics::median(&away)?.exp_m1();
        let pairs = |growth: f64| {
            let distance = growth.ln_1p() - sight.limit.ln_1p();
            let bets = if sight.robust { Sequence::robust() } else { Sequence::new() };
            Some(bets.pairs_until(&differences, distance, sight.stake)?.max(sight.pairs_min))
        };
        #[expect(clippy::cast_precision_loss, reason = "at most PAIRS_MAX")]
        let seconds = |pairs: usize| pairs as f64 * sight.pair_seconds;
        let in_time = |growth: f64| pairs(growth).is_some_and(|pairs| seconds(pairs) <= sight.within);
        let smallest = in_time(GROWTH_MAX).then(|| {
            let (mut not, mut seen) = (sight.limit, GROWTH_MAX);
            for _ in 0..HALVINGS {
                let middle = f64::midpoint(not, seen);
                if in_time(middle) { seen = middle } else { not = middle }
            }
            seen
        });
        let seen_within = pairs(growth).filter(|pairs| *pairs <= PAIRS_MAX).map(seconds);
        Some(Self { metric, windows: windows.len(), noise, growth, seen_within, smallest })
    }

    /// Formats the prediction: `p50 +30 % within 12 s`.
    pub fn words(&self) -> String {
        let growth = format!("{} {:+.0} %", self.metric, self.growth * 100.0);
        match self.seen_within {
            Some(seconds) => format!("{growth} within {}", duration(seconds)),
            None => format!("{growth} not at all"),
        }
    }

    /// Formats the smallest growth that is detected: `p50 from +22 %`. Returns `None` if no growth is
    /// detected in time.
    pub fn smallest_words(&self) -> Option<String> {
        let smallest = self.smallest?;
        Some(format!("{} from {:+.0} %", self.metric, (smallest * 100.0).ceil()))
    }
}

/// Formats a duration, rounded up: `12 s`, `3 min`, `2 h`.
fn duration(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{:.0} s", seconds.ceil()),
        ..7_200.0 => format!("{:.0} min", (seconds / 60.0).ceil()),
        _ => format!("{:.0} h", (seconds / 3_600.0).ceil()),
    }
}

/// Formats all predictions for one service: the time in which each growth is detected, and the smallest
/// growths that are detected within `within` seconds.
pub fn sentence(all: &[Foresight], within: f64) -> String {
    let seen: Vec<String> = all.iter().map(Foresight::words).collect();
    let smallest: Vec<String> = all.iter().filter_map(Foresight::smallest_words).collect();
    let in_time = match smallest.is_empty() {
        true => format!("{} are too short for any of these", duration(within)),
        false => format!("in {} they see {}", duration(within), smallest.join(", ")),
    };
    format!("at this noise, nine of ten runs see {}; {in_time}", seen.join(", "))
}

#[cfg(test)]
mod test {
    use model::Chance;

    use super::*;

    fn figures(p50: f64) -> Figures {
        Figures { p50: Some(p50), ..Figures::of_requests(0.06, 120) }
    }

    fn sight(within: f64) -> Sight {
        Sight { limit: 0.15, stake: 100.0, pair_seconds: 0.2, within, robust: true, pairs_min: 7 }
    }

    /// Draws a random window. The logarithms of windows have this standard deviation, and one window in ten
    /// is three times as slow.
    fn noisy(chance: &mut Chance, noise: f64) -> f64 {
        let normal = (-2.0 * chance.unit().ln()).sqrt() * (std::f64::consts::TAU * chance.unit()).cos();
        let slow = if chance.below(10) == 0 { 3.0 } else { 1.0 };
        1e5 * slow * (noise * normal).exp()
    }

    #[test]
    fn nine_of_ten_sequences_see_a_growth_about_when_it_was_predicted() {
        for noise in [0.05, 0.2, 0.4] {
            let mut chance = Chance::stream(39, &[1]);
            let before: Vec<Figures> = (0..32).map(|_| figures(noisy(&mut chance, noise))).collect();
            let predicted = Foresight::of(&before, Metric::P50, 0.3, &sight(60.0)).expect("enough windows");
            let predicted = predicted.seen_within.expect("it is seen");
            let mut took: Vec<f64> = (0..100)
                .map(|trial| {
                    let mut chance = Chance::stream(trial, &[2]);
                    let mut sequence = Sequence::robust();
                    let mut pairs = 0.0;
                    while pairs < 7.0 || sequence.against_at_most(0.15_f64.ln_1p()) < 100_f64.ln() {
                        let pair = noisy(&mut chance, noise) / noisy(&mut chance, noise);
                        sequence.add(pair.ln() + 0.3_f64.ln_1p());
                        pairs += 1.0;
                    }
                    pairs * 0.2
                })
                .collect();
            took.sort_by(f64::total_cmp);
            let ratio = predicted / took[89];
            assert!((0.5..2.0).contains(&ratio), "noise {noise}: {predicted} s, took {} s", took[89]);
        }
    }

    #[test]
    fn more_noise_takes_longer_and_the_smallest_growth_is_just_seen_in_time() {
        let of = |noise: f64, growth: f64, within: f64| {
            let windows: Vec<Figures> = [1.0, -0.6, 0.9, -1.0, 0.2, -0.4, 1.2, -0.1]
                .map(|at| figures(1e5 * (noise * at).exp()))
                .into();
            Foresight::of(&windows, Metric::P50, growth, &sight(within)).expect("enough windows")
        };
        let seconds = |noise| of(noise, 0.3, 60.0).seen_within.unwrap_or(f64::INFINITY);
        assert!(seconds(0.05) < seconds(0.2) && seconds(0.2) < seconds(0.6));
        let smallest = of(0.3, 0.3, 20.0).smallest.expect("a growth is seen");
        assert!(smallest > 0.15, "{smallest}");
        let seen = |growth| of(0.3, growth, 20.0).seen_within.expect("seen");
        assert!(seen(smallest) <= 20.0 && seen(smallest * 0.98) > 20.0, "{smallest}");
        assert_eq!(of(0.3, 0.15, 20.0).seen_within, None, "the limit itself is not exceeded");
    }

    #[test]
    fn too_few_windows_predict_nothing() {
        let windows = vec![figures(1e5); DIFFERENCES_MIN];
        assert_eq!(Foresight::of(&windows, Metric::P50, 0.3, &sight(60.0)), None);
        assert_eq!(Foresight::of(&vec![figures(1e5); 20], Metric::P90, 0.3, &sight(60.0)), None);
    }

    #[test]
    fn predictions_are_said_in_words() {
        let of = |metric, growth, seen_within, smallest| Foresight {
            metric,
            windows: 20,
            noise: 0.1,
            growth,
            seen_within,
            smallest,
        };
        let all = [
            of(Metric::P50, 0.3, Some(11.2), Some(0.218)),
            of(Metric::P90, 0.3, Some(150.0), Some(0.41)),
            of(Metric::P99, 0.3, None, None),
        ];
        assert_eq!(
            sentence(&all, 60.0),
            "at this noise, nine of ten runs see p50 +30 % within 12 s, p90 +30 % within 3 min, p99 +30 % not at all; in 60 s they see p50 from +22 %, p90 from +41 %"
        );
        assert_eq!(
            sentence(&all[2..], 20.0),
            "at this noise, nine of ten runs see p99 +30 % not at all; 20 s are too short for any of these"
        );
    }
}
