//! Guards that are replayed on pairs in which nothing was changed: how often they cry wolf, and how soon they see a regression.

use measure::sequential::Sequence;
use measure::switchback::{Metric, Rule, Switchback};
use model::Chance;
use schemars::JsonSchema;
use serde::Serialize;

use crate::trial::PAIRS_MIN;

/// What replayed guards look at, and what may grow by how much.
const GUARDED: [Metric; 3] = [Metric::P50, Metric::P90, Metric::Cpu];
const LIMIT: f64 = 0.15;

/// How many pairs a replayed guard lasts: a minute.
const PAIRS: usize = 27;

/// How long a pair takes, in seconds: two windows of a second, and what goes before each.
const PAIR_TAKES: f64 = 2.2;

/// Guards that were replayed.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Replayed {
    /// The regression of p50 and p90 that was added to each pair, as a share.
    pub regression: f64,
    /// How many guards.
    pub trials: u32,
    /// The pairs that were replayed.
    pub pairs: usize,
    /// How many guards put back.
    pub reverted: usize,
    /// The time until half of them had put back, in seconds; `None` if fewer did.
    pub median_seconds: Option<f64>,
    /// The same of 95 %.
    pub p95_seconds: Option<f64>,
}

impl Replayed {
    /// Replays so many guards of a minute, each with the pairs from a random one on, and each pair in a random order of its own. `None` without pairs.
    pub fn of(unchanged: &Switchback, regression: f64, trials: u32, seed: u64) -> Option<Self> {
        let pairs = GUARDED.map(|metric| (metric, unchanged.differences(1, metric)));
        let known = pairs.iter().map(|(_, differences)| differences.len()).min()?;
        let below = u32::try_from(known).ok().filter(|known| *known > 0)?;
        let guard = |trial: u32| {
            let mut chance = Chance::stream(seed, &[u64::from(trial)]);
            let first = usize::try_from(chance.below(below)).unwrap_or(0);
            reverts_after(&pairs, first, known, regression, &mut chance)
        };
        let mut seconds: Vec<f64> = (0..trials)
            .filter_map(guard)
            .map(|pairs| f64::from(u32::try_from(pairs).unwrap_or(u32::MAX)) * PAIR_TAKES)
            .collect();
        seconds.sort_by(f64::total_cmp);
        let all = usize::try_from(trials).unwrap_or(usize::MAX);
        let at = |percent: usize| seconds.get((all * percent).div_ceil(100).saturating_sub(1)).copied();
        let (median_seconds, p95_seconds) = (at(50), at(95));
        Some(Self { regression, trials, pairs: known, reverted: seconds.len(), median_seconds, p95_seconds })
    }
}

/// After how many pairs a guard puts back; `None` if it keeps.
fn reverts_after(
    pairs: &[(Metric, Vec<f64>); 3],
    first: usize,
    known: usize,
    regression: f64,
    chance: &mut Chance,
) -> Option<usize> {
    let mut sequences = GUARDED.map(|_| Sequence::new());
    #[expect(clippy::cast_precision_loss, reason = "three limits")]
    let refused = (GUARDED.len() as f64 / Rule::ALPHA).ln();
    (1..=PAIRS).find(|pair| {
        let swapped = chance.below(2) == 0;
        for (sequence, (metric, differences)) in sequences.iter_mut().zip(pairs) {
            let difference = differences[(first + pair) % known];
            let added = if *metric == Metric::Cpu { 0.0 } else { regression.ln_1p() };
            sequence.add(if swapped { -difference } else { difference } + added);
        }
        *pair >= PAIRS_MIN
            && sequences.iter().any(|sequence| sequence.against_at_most(LIMIT.ln_1p()) >= refused)
    })
}

#[cfg(test)]
mod test {
    use measure::live::Estimator;
    use measure::switchback::Figures;

    use super::*;

    /// Pairs of the same, with noise of 15 %.
    fn same() -> Switchback {
        let mut chance = Chance::stream(7, &[]);
        let mut figures = || {
            let normal = (-2.0 * chance.unit().ln()).sqrt() * (std::f64::consts::TAU * chance.unit()).cos();
            let p50 = 1e5 * (0.15 * normal).exp();
            Figures {
                seconds: 1.0,
                requests: 5_000,
                estimator: Estimator::Uniform,
                p50: Some(p50),
                p90: Some(2.0 * p50),
                p99: None,
                cpu_service: Some(1e4),
                cpu_delivery: Some(5e3),
                engaged: Some(0.0),
                oldest: None,
            }
        };
        let rule = Rule { deciding: vec![Metric::P50], margin: 0.05, alpha: Rule::ALPHA };
        let mut all = Switchback::new(vec!["current".to_owned(), "current".to_owned()], rule);
        (0..60).for_each(|_| assert_eq!(all.add(&[figures(), figures()], None), None));
        all
    }

    #[test]
    fn a_guard_keeps_what_makes_no_difference_and_puts_back_what_doubles_response_times() {
        let same = same();
        let of = |regression| Replayed::of(&same, regression, 1_000, 1).expect("pairs");
        // 0.1 % of them.
        assert!(of(0.0).reverted <= 1, "{:?}", of(0.0));
        let doubled = of(1.0);
        assert_eq!(doubled.reverted, 1_000);
        assert!(doubled.p95_seconds.is_some_and(|seconds| seconds <= 30.0), "{doubled:?}");
        assert!(of(0.5).reverted > of(0.3).reverted);
    }
}
