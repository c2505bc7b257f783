//! Evaluates the pairs of a standing proof, which measures the effect of a policy.

use crate::measure::sequential::{Bounds, Sequence};
use crate::measure::switchback::Rule;
use model::{Effect, Proof, ProofInterval};

/// Computes the effects from the differences in a proof. This takes up to half a second, so do not call it
/// from a thread that must answer requests.
pub fn effects(proof: &Proof) -> Vec<Effect> {
    let of = |(quantity, differences): (&model::Guarded, &Vec<f32>)| {
        let recent = differences.len().saturating_sub(Proof::RECENT_PAIRS);
        Some(Effect {
            quantity: *quantity,
            change: interval(differences)?,
            recent: interval(&differences[recent..])?,
            pairs: differences.len(),
        })
    };
    proof.differences.iter().filter_map(of).collect()
}

fn interval(differences: &[f32]) -> Option<ProofInterval> {
    let mut sequence = Sequence::new();
    differences.iter().for_each(|difference| sequence.add(f64::from(*difference)));
    let Bounds { estimate, low, high } = sequence.bounds(Rule::ALPHA)?.map(f64::exp_m1);
    Some(ProofInterval { estimate, low, high })
}

#[cfg(test)]
mod test {
    use std::collections::BTreeMap;

    use model::policy::Match;
    use model::proof::ProofState;
    use model::{Chance, Guarded, Intent, PolicyName, Target};

    use super::*;

    /// Draws random differences of the CPU time per request, for a policy that changes this time by a given
    /// share.
    fn drawn(chance: &mut Chance, change: f64, pairs: usize) -> BTreeMap<Guarded, Vec<f64>> {
        let mut normal =
            || (-2.0 * chance.unit().ln()).sqrt() * (std::f64::consts::TAU * chance.unit()).cos();
        BTreeMap::from([(Guarded::Cpu, (0..pairs).map(|_| change.ln_1p() + 0.1 * normal()).collect())])
    }

    fn proof() -> Proof {
        let target = Target::Service("cache".to_owned(), Match::default());
        Proof::of(&Intent::new(target, PolicyName::Cpu, "a:1"), "defer50", 0)
    }

    #[test]
    fn an_effect_is_estimated_and_what_is_gone_or_reversed_lately_shows() {
        for (lately, standing) in
            [(-0.2, ProofState::Helps), (0.0, ProofState::NoEffect), (0.1, ProofState::Reversed)]
        {
            let (mut proof, mut chance) = (proof(), Chance::stream(1, &[]));
            proof.add(&drawn(&mut chance, -0.2, 600));
            proof.add(&drawn(&mut chance, lately, Proof::RECENT_PAIRS));
            proof.effects = effects(&proof);
            let cpu = proof.effects[0];
            assert_eq!((cpu.pairs, proof.standing()), (856, standing), "{cpu:?}");
            assert!(cpu.change.is_less(), "over all pairs, the policy helped: {cpu:?}");
            assert!((cpu.recent.estimate - lately).abs() < 0.02, "{cpu:?}");
        }
    }

    #[test]
    fn the_interval_contains_the_true_effect_after_each_episode() {
        const RUNS: u64 = 40;
        let mut misses = 0;
        for seed in 0..RUNS {
            // Test pairs without an effect and with known effects.
            let change = [0.0, -0.2, 0.3, 0.05][usize::try_from(seed % 4).unwrap_or(0)];
            let (mut proof, mut chance) = (proof(), Chance::stream(seed, &[]));
            let mut missed = false;
            for _ in 0..8 {
                proof.add(&drawn(&mut chance, change, 20));
                proof.effects = effects(&proof);
                let ProofInterval { low, high, .. } = proof.effects[0].change;
                missed |= low.is_some_and(|low| low > change) || high.is_some_and(|high| high < change);
            }
            misses += u64::from(missed);
        }
        // At most 5 % of 40 runs may miss the true effect.
        assert!(misses <= 2, "{misses} of {RUNS}");
    }
}
