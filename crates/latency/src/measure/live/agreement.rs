//! Measures how well estimates agree with the truth, where the truth is known: on the link between two hosts
//! on one machine.

use model::live::SpanCounts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::series::{Estimator, Series, Stretch};
use super::summary::Percentiles;
use super::survival::Survival;
use crate::measure::statistics::median;

/// A run: one mode under one load, with the measurements on the wire.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgreementRun {
    /// The mode.
    pub mode: String,
    /// The load.
    pub load: String,
    /// Whether clients wait for each answer before they send the next request.
    pub closed: bool,
    /// The number of the round.
    pub round: u32,
    /// The number of requests that were answered, according to the packets on the wire.
    pub answered: u64,
    /// The number of requests that netpolicy counted.
    pub counted: u64,
    /// Percentiles on the wire in nanoseconds, in the order p50, p90, p99. The fields below have
    /// the same order and unit.
    pub wire: [Option<f64>; 3],
    /// Percentiles that the client measured, from its system call to send to its system call to receive.
    pub client: [Option<f64>; 3],
    /// Percentiles of the time from TCP to the answer, which excludes the wait in the ring.
    pub residence: [Option<f64>; 3],
    /// Percentiles by estimate U.
    pub uniform: [Option<f64>; 3],
    /// Percentiles by estimate C.
    pub conditional: [Option<f64>; 3],
    /// Percentiles by estimate T.
    #[serde(default)]
    pub stamped: [Option<f64>; 3],
}

impl AgreementRun {
    /// Returns the percentiles by one estimator.
    pub fn by(&self, estimator: Estimator) -> [Option<f64>; 3] {
        match estimator {
            Estimator::Residence => self.residence,
            Estimator::Uniform => self.uniform,
            Estimator::Conditional => self.conditional,
            Estimator::Larger => [0, 1, 2].map(|at| {
                let (uniform, conditional) = self.uniform[at].zip(self.conditional[at])?;
                Some(uniform.max(conditional))
            }),
            Estimator::Stamped => self.stamped,
        }
    }
}

/// Returns the percentiles of completed spans; each is `None` if there are too few spans for it.
pub fn percentiles_of(spans: &SpanCounts) -> [Option<f64>; 3] {
    let survival = Survival::of(spans, &SpanCounts::new());
    Percentiles::SHARES.map(|share| {
        let enough = survival.observed() >= super::series::requests_for(share);
        enough.then(|| survival.quantile(share).map(super::survival::Quantile::nanoseconds)).flatten()
    })
}

/// Returns the percentiles of a series by one estimator.
pub fn estimates_of(series: &Series, estimator: Estimator) -> [Option<f64>; 3] {
    let found = Percentiles::of(series, Stretch::Response(estimator)).all();
    found.map(|estimate| estimate.map(|found| found.interval.estimate))
}

/// The error of an estimator compared with the wire, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Errors {
    /// The median of the absolute errors at p50, p90 and p99; `None` if no run has both an estimate and a
    /// true value.
    pub absolute: [Option<f64>; 3],
    /// The median of the signed errors at p50, p90 and p99.
    pub signed: [Option<f64>; 3],
    /// The number of runs.
    pub trials: usize,
}

impl Errors {
    /// Computes the errors of an estimator over these runs.
    pub fn of<'a>(trials: impl IntoIterator<Item = &'a AgreementRun>, estimator: Estimator) -> Self {
        let (mut errors, mut count): ([Vec<f64>; 3], usize) = Default::default();
        for trial in trials {
            count += 1;
            for ((errors, wire), found) in errors.iter_mut().zip(trial.wire).zip(trial.by(estimator)) {
                errors.extend(wire.zip(found).map(|(wire, found)| (found / wire - 1.0) * 100.0));
            }
        }
        let amounts = |errors: &Vec<f64>| median(&errors.iter().map(|error| error.abs()).collect::<Vec<_>>());
        Self {
            absolute: [0, 1, 2].map(|at| amounts(&errors[at])),
            signed: [0, 1, 2].map(|at| median(&errors[at])),
            trials: count,
        }
    }
}

/// For how many pairs of modes an estimator agrees with the wire on which mode is faster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ordered {
    /// The number of pairs in the same order as on the wire, at p50, p90 and p99.
    pub right: [usize; 3],
    /// The number of pairs that differ by more than 10 % on the wire, at p50, p90 and p99.
    pub pairs: [usize; 3],
}

/// The smallest relative difference on the wire that an estimator must recognise.
pub const APART: f64 = 0.1;

impl Ordered {
    /// Compares all pairs of modes with the same load and round.
    pub fn of(trials: &[AgreementRun], estimator: Estimator) -> Self {
        let mut ordered = Self::default();
        for (at, one) in trials.iter().enumerate() {
            let alike = |other: &&AgreementRun| other.load == one.load && other.round == one.round;
            for other in trials.iter().skip(at + 1).filter(alike) {
                for share in 0..3 {
                    let (Some(wire), Some(found)) = (
                        one.wire[share].zip(other.wire[share]),
                        one.by(estimator)[share].zip(other.by(estimator)[share]),
                    ) else {
                        continue;
                    };
                    if (wire.0 / wire.1).ln().abs() > (1.0 + APART).ln() {
                        ordered.pairs[share] += 1;
                        ordered.right[share] += usize::from((wire.0 > wire.1) == (found.0 > found.1));
                    }
                }
            }
        }
        ordered
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn trial(mode: &str, wire: f64, uniform: f64) -> AgreementRun {
        AgreementRun {
            mode: mode.to_owned(),
            load: "8K".to_owned(),
            closed: false,
            round: 0,
            answered: 1_000,
            counted: 1_000,
            wire: [Some(wire); 3],
            client: [None; 3],
            residence: [None; 3],
            uniform: [Some(uniform); 3],
            conditional: [None; 3],
            stamped: [None; 3],
        }
    }

    #[test]
    fn errors_are_of_the_wire_and_pairs_that_are_near_do_not_count() {
        let trials =
            [trial("base", 100.0, 90.0), trial("defer50", 200.0, 210.0), trial("defer200", 208.0, 150.0)];
        let errors = Errors::of(&trials, Estimator::Uniform);
        assert_eq!(errors.absolute[0].map(f64::round), Some(10.0));
        assert_eq!(errors.signed[0].map(f64::round), Some(-10.0));
        assert_eq!(Errors::of(&trials, Estimator::Conditional).absolute, [None; 3]);
        let ordered = Ordered::of(&trials, Estimator::Uniform);
        assert_eq!((ordered.pairs[0], ordered.right[0]), (2, 2), "the pair 4 % apart does not count");
        let mut wrong = trials.clone();
        wrong[0].uniform = [Some(300.0); 3];
        assert_eq!(Ordered::of(&wrong, Estimator::Uniform).right[0], 0);
    }
}
