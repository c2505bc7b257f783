//! Fits parameters in rounds: draws random points in a box, fits surfaces to their residuals, and moves the
//! box to the surfaces' minimum.
//!
//! Every point is a single run with its own seed, so that the scatter of runs averages out over points: no
//! single run and no single step decides whether a point is better. The caller evaluates the points, on as
//! many cores as it wants.
//!
//! Source: Box and Wilson, "On the Experimental Attainment of Optimum Conditions", Journal of the Royal
//! Statistical Society 1951, in a trust box, with Huber's loss: a residual beyond [`HUBER`] counts linearly,
//! so that no single row dominates the fit.

mod cholesky;
mod surface;

use crate::chance::{Chance, Draws};
use crate::math::{exp, ln, root};
use crate::scenario::{Costs, Parameter};

use cholesky::Cholesky;
pub use surface::HUBER;
use surface::{Surface, bend};

/// A fit of parameters, each on a scale that is logarithmic above a tenth of its range and linear below.
#[derive(Clone, Debug)]
pub struct Fit {
    parameters: Vec<&'static Parameter>,
    /// The parameters' bounds on the fit's scale.
    bounds: Vec<(f64, f64)>,
    /// The best point so far, at the centre of the box; its mean residuals in units, and its loss.
    at: Vec<f64>,
    residuals: Vec<f64>,
    loss: f64,
    /// Half the width of the box.
    reach: f64,
    /// For each residual, the size of one deviation.
    units: Vec<f64>,
    /// The slopes of the residuals around the best point.
    slopes: Option<Slopes>,
    /// All points with their residuals; the oldest are dropped first.
    points: Vec<Vec<f64>>,
    missed: Vec<Vec<f64>>,
    /// The residuals of the runs of the best point in this round.
    here: Vec<Vec<f64>>,
    round: Round,
    stage: Stage,
    proposed: Vec<Vec<f64>>,
    chance: Chance,
    /// The seed of the next run, and the numbers of points and rounds that may still be proposed.
    seed: u64,
    left: usize,
    rounds: usize,
}

/// A point to evaluate once.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialPoint {
    /// The parameters.
    pub costs: Costs,
    /// The seed for all rows of the point.
    pub seed: u64,
}

/// The numbers of points in a round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// Random points in the box.
    around: usize,
    /// Additional runs of the best point.
    centres: usize,
    /// Runs of the best and of the promising point that decide which is better.
    checks: (usize, usize),
}

#[derive(Clone, Debug)]
enum Stage {
    /// Evaluates the best point and the points around it.
    Around,
    /// Evaluates the best point and a promising point, which the surfaces predict to be better; `place` is
    /// the promising point's position in the box.
    Check { promised: Vec<f64>, place: Vec<f64> },
}

/// The sensitivity of residuals to parameters.
#[derive(Clone, Debug)]
struct Slopes {
    /// For each parameter, the slope of each residual, in units per unit of the scale.
    by_parameter: Vec<Vec<f64>>,
    /// For each parameter and residual, the variance of the estimated slope.
    doubts: Vec<Vec<f64>>,
}

/// Larger residuals are capped at this value, because surfaces cannot model points so far out.
const MISSED_MAX: f64 = 60.0;
/// Half the width of the first box, on the fit's scale: 0.3 means about a third more or less where the scale
/// is logarithmic.
const REACH: f64 = 0.3;
/// Factors on the width of the box after a round that found a better point, and after one that did not.
const NARROWER: f64 = 0.85;
const MUCH_NARROWER: f64 = 0.6;
/// A better point at least this far from the centre (root mean square, relative to half the width) leaves the
/// width of the box unchanged.
const FAR_OUT: f64 = 0.7;
/// Half the width of the narrowest box: in a narrower one, the scatter of single runs hides the effect of
/// parameters.
const REACH_MIN: f64 = 0.1;
/// A point counts as better if its loss is at most this multiple of the best point's loss: if runs cannot
/// distinguish two points, the surfaces, which are based on many more points, decide.
const NO_WORSE: f64 = 1.01;
/// More points make the rounds larger, not more numerous; further rounds bring no improvement.
const ROUNDS_MAX: usize = 10;
/// Minimum sizes in a full round: random points per parameter, additional runs of the best point, and runs
/// that check the promising point.
const AROUND: usize = 4;
const CENTRES: usize = 4;
const CHECKS: (usize, usize) = (6, 8);
/// In a larger round, one in this many points checks the promising point.
const CHECKED: usize = 7;
/// Minimum number of points left for a round; with fewer, nothing is fitted.
const ROUND_MIN: usize = 6;
/// Maximum number of points in a round, and in a surface.
const ROUND_MAX: usize = 500;
const POINTS_MAX: usize = 1000;

impl Fit {
    /// Creates a fit that starts from these values, may propose `evaluations` points, and numbers their seeds
    /// from `seed`. Returns `None` if a name is not a parameter.
    pub fn new(names: &[&str], from: &Costs, evaluations: usize, seed: u64) -> Option<Self> {
        let parameters: Vec<&'static Parameter> = names
            .iter()
            .map(|name| Costs::PARAMETERS.iter().find(|parameter| parameter.name == *name))
            .collect::<Option<_>>()?;
        let bounds: Vec<(f64, f64)> =
            parameters.iter().map(|p| (to_scale(p, p.min), to_scale(p, p.max))).collect();
        let at = parameters
            .iter()
            .zip(&bounds)
            .map(|(p, (low, high))| from.get(p.name).map(|v| to_scale(p, v).clamp(*low, *high)))
            .collect::<Option<Vec<_>>>()?;
        Some(Self {
            parameters,
            bounds,
            at,
            residuals: Vec::new(),
            loss: f64::MAX,
            reach: REACH,
            units: Vec::new(),
            slopes: None,
            points: Vec::new(),
            missed: Vec::new(),
            here: Vec::new(),
            round: Round::default(),
            stage: Stage::Around,
            proposed: Vec::new(),
            chance: Chance::new(seed),
            seed,
            left: evaluations,
            rounds: ROUNDS_MAX,
        })
    }

    /// Returns the next points to evaluate; none when the fit is finished.
    pub fn propose(&mut self) -> Vec<TrialPoint> {
        self.proposed = match &self.stage {
            Stage::Around => {
                self.round = Round::of(self.left, self.rounds, self.at.len());
                self.left -= self.round.size();
                self.rounds = self.rounds.saturating_sub(1);
                let mut points = vec![self.at.clone(); self.round.centres];
                points.extend((0..self.round.around).map(|_| self.drawn()));
                points
            }
            Stage::Check { promised, .. } => {
                let mut points = vec![self.at.clone(); self.round.checks.0];
                points.extend(vec![promised.clone(); self.round.checks.1]);
                points
            }
        };
        let seeds = self.seed..;
        self.seed += self.proposed.len() as u64;
        self.proposed
            .iter()
            .zip(seeds)
            .map(|(point, seed)| TrialPoint { costs: self.costs(point), seed })
            .collect()
    }

    /// Takes the residuals of the proposed points, in the order of the points: every point has the same
    /// residuals, in units of a good prediction's error. Returns whether there is a new best point.
    pub fn judge(&mut self, missed: &[Vec<f64>]) -> bool {
        let missed: Vec<Vec<f64>> = missed
            .iter()
            .map(|point| point.iter().map(|r| r.clamp(-MISSED_MAX, MISSED_MAX)).collect())
            .collect();
        self.points.append(&mut self.proposed);
        self.missed.extend(missed.iter().cloned());
        let old = self.points.len().saturating_sub(POINTS_MAX);
        self.points.drain(..old);
        self.missed.drain(..old);
        match std::mem::replace(&mut self.stage, Stage::Around) {
            Stage::Around => {
                self.here = missed[..self.round.centres.min(missed.len())].to_vec();
                if self.round.around == 0 {
                    self.units = vec![1.0; missed.first().map_or(0, Vec::len)];
                } else {
                    let surface = self.surface();
                    self.units = surface.units();
                    let side = |bound: f64, at: f64| ((bound - at) / self.reach).clamp(-1.0, 1.0);
                    let sides = self.bounds.iter().zip(&self.at);
                    let (low, high): (Vec<f64>, Vec<f64>) =
                        sides.map(|((low, high), at)| (side(*low, *at), side(*high, *at))).unzip();
                    let place = surface.least(&self.units, &low, &high, &mut self.chance);
                    let promised = self.at.iter().zip(&place).map(|(x, u)| x + self.reach * u).collect();
                    self.stage = Stage::Check { promised, place };
                }
                self.settle(&self.here.clone());
                false
            }
            Stage::Check { promised, place } => {
                let (here, there) = missed.split_at(self.round.checks.0.min(missed.len()));
                let here = [&self.here, here].concat();
                let (before, after) = (self.loss_of(&here), self.loss_of(there));
                let better = after <= NO_WORSE * before;
                // Evaluate the slopes in a box as wide as the spread of the points.
                let reach = self.reach;
                if better {
                    self.at = promised;
                    self.settle(there);
                    let far_out =
                        root(place.iter().map(|u| u * u).sum::<f64>() / count(place.len())) >= FAR_OUT;
                    self.reach *= if far_out { 1.0 } else { NARROWER };
                } else {
                    self.settle(&here);
                    self.reach *= MUCH_NARROWER;
                }
                self.reach = self.reach.max(REACH_MIN);
                self.answer(reach);
                better
            }
        }
    }

    /// Returns the loss of the best point so far, and its parameters.
    pub fn best(&self) -> (f64, Costs) {
        (self.loss, self.costs(&self.at))
    }

    /// Returns points that fit the rows about as well as the best one: drawn from the fit's covariance,
    /// within the bounds. Empty before the first round has ended.
    pub fn samples(&self, count: usize, seed: u64) -> Vec<Costs> {
        let Some(factor) = self.covariance() else { return Vec::new() };
        let mut chance = Chance::new(seed);
        (0..count)
            .map(|_| {
                let draws = self.at.iter().map(|_| self.inflation() * chance.normal()).collect();
                let point: Vec<f64> = factor.rise(draws).iter().zip(&self.at).map(|(y, x)| x + y).collect();
                self.costs(&point)
            })
            .collect()
    }

    /// Draws a random point in the box.
    fn drawn(&mut self) -> Vec<f64> {
        let place = self.at.iter().zip(&self.bounds);
        place
            .map(|(x, (low, high))| (x + self.reach * (2.0 * self.chance.unit() - 1.0)).clamp(*low, *high))
            .collect()
    }

    /// Fits the surface to all points, centred on the best one.
    fn surface(&self) -> Surface {
        let within =
            |point: &Vec<f64>| point.iter().zip(&self.at).map(|(x, at)| (x - at) / self.reach).collect();
        let places: Vec<Vec<f64>> = self.points.iter().map(within).collect();
        Surface::through(&places, &self.missed)
    }

    /// Stores the mean residuals of the best point's runs, and the loss.
    fn settle(&mut self, runs: &[Vec<f64>]) {
        self.residuals = self.mean(runs);
        self.loss = self.residuals.iter().map(|r| bend(*r)).sum();
    }

    /// Stores the slopes of the residuals around the best point.
    fn answer(&mut self, reach: f64) {
        let narrow = std::mem::replace(&mut self.reach, reach);
        let surface = self.surface();
        self.reach = narrow;
        let by_parameter = |i: usize| {
            let slopes = surface.slopes(i).zip(&self.units);
            slopes.map(|(slope, unit)| slope / (reach * unit)).collect()
        };
        let doubts = |i: usize| {
            let doubts = surface.doubts(i).zip(&self.units);
            doubts.map(|(doubt, unit)| doubt / (reach * unit * reach * unit)).collect()
        };
        self.slopes = Some(Slopes {
            by_parameter: (0..self.at.len()).map(by_parameter).collect(),
            doubts: (0..self.at.len()).map(doubts).collect(),
        });
    }

    /// Returns the mean of each residual over the runs, in units of its deviation.
    fn mean(&self, runs: &[Vec<f64>]) -> Vec<f64> {
        let sum = |k: usize| runs.iter().map(|run| run[k]).sum::<f64>();
        self.units.iter().enumerate().map(|(k, unit)| sum(k) / (count(runs.len().max(1)) * unit)).collect()
    }

    fn loss_of(&self, runs: &[Vec<f64>]) -> f64 {
        self.mean(runs).into_iter().map(bend).sum()
    }

    /// Returns the factor by which the residuals exceed those of a good prediction, at least 1: a model with
    /// larger errors knows its parameters less precisely.
    fn inflation(&self) -> f64 {
        let free = self.residuals.len().saturating_sub(self.at.len()).max(1);
        root((2.0 * self.loss / count(free)).max(1.0))
    }

    /// Returns the Cholesky factor of the inverse covariance, `JᵀWJ` with Huber's weights; the bounds act as
    /// a uniform prior.
    fn covariance(&self) -> Option<Cholesky> {
        let slopes = self.slopes.as_ref()?;
        let weights: Vec<f64> = self.residuals.iter().map(|r| HUBER / r.abs().max(HUBER)).collect();
        let product = |a: &[f64], b: &[f64]| -> f64 {
            a.iter().zip(b).zip(&weights).map(|((a, b), w)| w * a * b).sum()
        };
        // The square of a noisy slope is too large by its variance. Without this correction, a parameter
        // without any effect on the residuals would count as determined.
        let true_share = |(slope, doubts): (&Vec<f64>, &Vec<f64>)| {
            let doubt: f64 = doubts.iter().zip(&weights).map(|(doubt, w)| w * doubt).sum();
            root(1.0 - doubt / product(slope, slope).max(f64::MIN_POSITIVE))
        };
        let shares: Vec<f64> = slopes.by_parameter.iter().zip(&slopes.doubts).map(true_share).collect();
        let row = |(a, share): (&Vec<f64>, &f64)| -> Vec<f64> {
            slopes.by_parameter.iter().zip(&shares).map(|(b, other)| share * other * product(a, b)).collect()
        };
        let mut matrix: Vec<Vec<f64>> = slopes.by_parameter.iter().zip(&shares).map(row).collect();
        for (i, (low, high)) in self.bounds.iter().enumerate() {
            matrix[i][i] += 12.0 / ((high - low) * (high - low));
        }
        Some(Cholesky::of(matrix))
    }

    fn costs(&self, point: &[f64]) -> Costs {
        let mut costs = Costs::default();
        for (parameter, x) in self.parameters.iter().zip(point) {
            costs.set(parameter.name, from_scale(parameter, *x));
        }
        costs
    }
}

impl Round {
    /// Plans the next round, given the remaining points and rounds: points are divided evenly, so that the
    /// last round is a full one, too.
    fn of(left: usize, rounds: usize, parameters: usize) -> Self {
        if rounds == 0 {
            return Self::default();
        }
        if left < ROUND_MIN {
            return Self { centres: left, ..Self::default() };
        }
        let whole = AROUND * parameters + CENTRES + CHECKS.0 + CHECKS.1;
        let rounds = ((left + whole / 2) / whole).clamp(1, rounds);
        let size = left.div_ceil(rounds).min(ROUND_MAX);
        let checks = (size / 4).clamp(2, CHECKS.0 + CHECKS.1).max(size / CHECKED);
        let of_best = (checks * CHECKS.0 / (CHECKS.0 + CHECKS.1)).max(1);
        let centres = (size / 12).clamp(1, CENTRES);
        Self { around: size - checks - centres, centres, checks: (of_best, checks - of_best) }
    }

    fn size(&self) -> usize {
        self.around + self.centres + self.checks.0 + self.checks.1
    }
}

/// Returns where the scale changes from linear to logarithmic: at a tenth of the range, but at most one
/// microsecond.
fn knee(parameter: &Parameter) -> f64 {
    0.1 * parameter.max.min(10.0)
}

fn to_scale(parameter: &Parameter, value: f64) -> f64 {
    ln(value + knee(parameter))
}

fn from_scale(parameter: &Parameter, x: f64) -> f64 {
    (exp(x) - knee(parameter)).clamp(parameter.min, parameter.max)
}

#[expect(clippy::cast_precision_loss, reason = "points, residuals and parameters: at most a few thousand")]
fn count(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod test {
    use super::*;

    const WANTED: [(&str, f64); 4] = [("irq", 2.0), ("packet", 1.0), ("epoll", 3.0), ("sleep", 0.5)];

    /// Each residual mixes two neighbouring parameters, as rows do, and scatters by this much from run to
    /// run.
    fn missed(trial: &TrialPoint, scatter: f64) -> Vec<f64> {
        let mut chance = Chance::new(trial.seed);
        let off = |i: usize| {
            let (name, value) = WANTED[i % WANTED.len()];
            10.0 * ln(trial.costs.get(name).expect("named") / value)
        };
        (0..WANTED.len()).map(|i| off(i) + 0.3 * off(i + 1) + scatter * chance.normal()).collect()
    }

    fn fit(names: &[&str], evaluations: usize, missed: impl Fn(&TrialPoint) -> Vec<f64>) -> Fit {
        let mut fit = Fit::new(names, &Costs::default(), evaluations, 1).expect("parameters");
        let mut evaluated = 0;
        loop {
            let trials = fit.propose();
            if trials.is_empty() {
                break;
            }
            evaluated += trials.len();
            fit.judge(&trials.iter().map(&missed).collect::<Vec<_>>());
        }
        assert!(evaluated <= evaluations, "{evaluated}");
        fit
    }

    fn fitted(evaluations: usize, scatter: f64) -> Fit {
        fit(&WANTED.map(|(name, _)| name), evaluations, |trial| missed(trial, scatter))
    }

    fn finds_to_within(fit: &Fit, share: f64) {
        let (_, found) = fit.best();
        for (name, value) in WANTED {
            let off = found.get(name).expect("named") / value - 1.0;
            assert!(off.abs() < share, "{name}: {off}");
        }
    }

    #[test]
    fn a_fit_finds_the_values_that_residuals_were_made_of() {
        finds_to_within(&fitted(600, 0.0), 0.02);
    }

    #[test]
    fn a_fit_finds_them_where_single_runs_scatter_by_several_units() {
        // The scatter of a single run is as large as the effect of a parameter that is wrong by a third, so
        // choosing the best of many single runs would not work.
        finds_to_within(&fitted(1200, 3.0), 0.05);
    }

    #[test]
    fn the_same_seed_gives_the_same_fit() {
        let (first, second) = (fitted(1200, 3.0), fitted(1200, 3.0));
        assert_eq!(first.best(), second.best());
        assert_eq!(first.samples(16, 1), second.samples(16, 1));
    }

    #[test]
    fn every_point_has_a_seed_of_its_own() {
        let mut fit = Fit::new(&["irq", "packet"], &Costs::default(), 100, 7).expect("parameters");
        let mut seeds = Vec::new();
        loop {
            let trials = fit.propose();
            if trials.is_empty() {
                break;
            }
            seeds.extend(trials.iter().map(|trial| trial.seed));
            fit.judge(&vec![vec![1.0]; trials.len()]);
        }
        assert_eq!(seeds, (7..7 + seeds.len() as u64).collect::<Vec<_>>());
        assert_eq!(seeds.len(), 100);
    }

    #[test]
    fn a_best_value_beyond_its_bounds_ends_on_the_bound() {
        for (wanted, bound) in [(40.0, 10.0), (0.02, 0.3)] {
            let off = |trial: &TrialPoint| 10.0 * ln(trial.costs.get("irq").expect("named") / wanted);
            let fit = fit(&["irq"], 400, |trial| vec![off(trial) + 2.0 * Chance::new(trial.seed).normal()]);
            let irq = fit.best().1.get("irq").expect("named");
            assert!((irq / bound - 1.0).abs() < 0.01, "{irq} instead of {bound}");
        }
    }

    #[test]
    fn samples_are_as_wide_as_the_residuals_allow() {
        let fit = fitted(600, 0.0);
        let samples = fit.samples(400, 1);
        assert_eq!(samples.len(), 400);
        let spread = |name: &str, value: f64| {
            let squares = samples.iter().map(|s| s.get(name).expect("named") / value - 1.0).map(|x| x * x);
            root(squares.sum::<f64>() / 400.0)
        };
        for (name, value) in WANTED {
            // A change of 1 in a logarithm changes residuals by 10 and 3, so a deviation of 1 is about a
            // tenth.
            let spread = spread(name, value);
            assert!((0.03..0.3).contains(&spread), "{name}: {spread}");
        }
    }

    #[test]
    fn what_no_residual_answers_to_is_as_open_as_its_bounds() {
        for scatter in [0.0, 2.0] {
            let fit = fit(&["irq"], 200, |trial| {
                let mut chance = Chance::new(trial.seed);
                (0..40).map(|_| 1.0 + scatter * chance.normal()).collect()
            });
            let irqs: Vec<f64> = fit.samples(200, 1).iter().filter_map(|s| s.get("irq")).collect();
            assert!(irqs.iter().any(|irq| *irq < 1.5) && irqs.iter().any(|irq| *irq > 8.0), "{irqs:?}");
        }
    }

    #[test]
    fn with_too_few_points_nothing_is_fitted() {
        let fit = fit(&["irq"], ROUND_MIN - 1, |trial| vec![trial.costs.get("irq").expect("named")]);
        assert_eq!(fit.best().1.get("irq"), Costs::default().get("irq"));
        assert!(fit.samples(16, 1).is_empty());
    }
}
