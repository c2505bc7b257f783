//! Fitting parameters: damped least squares that propose points and are told what the points miss.
//!
//! Who evaluates the points, on how many cores, is not its business.
//!
//! Source: Marquardt, "An Algorithm for Least-Squares Estimation of Nonlinear Parameters", SIAM 1963, with Huber's weights:
//! a residual beyond [`HUBER`] counts linearly, so that no single row rules the fit.

use crate::chance::{Chance, Draws};
use crate::elementary::{exp, ln};
use crate::scenario::{Costs, Parameter};

/// A descent over parameters, each on a scale that is logarithmic above a tenth of its range and linear below.
#[derive(Clone, Debug)]
pub struct Descent {
    parameters: Vec<&'static Parameter>,
    /// The best point so far, what it misses, and its loss.
    at: Vec<f64>,
    residuals: Vec<f64>,
    loss: f64,
    /// By parameter, how each residual answers to it.
    slopes: Vec<Vec<f64>>,
    /// By parameter, how far its probe goes.
    reaches: Vec<f64>,
    /// The best probe of this round with what it misses: it may beat every step.
    aside: Option<(Vec<f64>, Vec<f64>)>,
    damping: f64,
    stage: Stage,
    /// Steps since the last probes.
    steps: u32,
    proposed: Vec<Vec<f64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The point to start from.
    Start,
    /// One point beside it for each parameter.
    Probes,
    /// Steps of several lengths.
    Steps,
}

/// From this many deviations on, a residual counts linearly.
pub const HUBER: f64 = 2.0;
/// A probe goes this far on the scale at first.
const PROBE: f64 = 0.1;
/// Then so far that the residuals together change by about this much: out of the noise, but not over the nearest cliff.
const EFFECT: f64 = 3.0;
/// The least and the most that a probe may go.
const PROBES: (f64, f64) = (0.02, 0.3);
/// The longest step of one parameter on the scale.
const STEP_MAX: f64 = 0.35;
/// Steps are tried with the damping times each of these.
const DAMPINGS: [f64; 3] = [0.25, 1.0, 4.0];
/// The most rounds of steps between probes: between them, slopes follow what the steps found.
const STEPS_MAX: u32 = 4;
/// The least and the most damping; beyond the most, no step helps any more.
const DAMPING: (f64, f64) = (0.01, 1e4);

impl Descent {
    /// A descent from these values. `None` if a name is no parameter's.
    pub fn new(names: &[&str], from: &Costs) -> Option<Self> {
        let parameters: Vec<&'static Parameter> = names
            .iter()
            .map(|name| Costs::PARAMETERS.iter().find(|parameter| parameter.name == *name))
            .collect::<Option<_>>()?;
        let at = parameters
            .iter()
            .map(|p| from.get(p.name).map(|v| to_scale(p, v)))
            .collect::<Option<Vec<_>>>()?;
        Some(Self {
            parameters,
            at,
            residuals: Vec::new(),
            loss: f64::MAX,
            slopes: Vec::new(),
            reaches: vec![PROBE; names.len()],
            aside: None,
            damping: 1.0,
            stage: Stage::Start,
            steps: 0,
            proposed: Vec::new(),
        })
    }

    /// The next points to evaluate; none when no step helps any more.
    pub fn propose(&mut self) -> Vec<Costs> {
        self.proposed = match self.stage {
            Stage::Start => vec![self.at.clone()],
            Stage::Probes if self.damping > DAMPING.1 => Vec::new(),
            Stage::Probes => (0..self.at.len()).map(|i| self.beside(i)).collect(),
            Stage::Steps => DAMPINGS.iter().map(|factor| self.stepped(factor * self.damping)).collect(),
        };
        self.proposed.iter().map(|point| self.costs(point)).collect()
    }

    /// What the proposed points miss, in their order: for each, the same residuals in units of what would be good.
    pub fn judge(&mut self, missed: &[Vec<f64>]) {
        let best = (0..self.proposed.len().min(missed.len()))
            .min_by(|&a, &b| loss_of(&missed[a]).total_cmp(&loss_of(&missed[b])));
        let Some(best) = best else { return };
        let better = loss_of(&missed[best]) < self.loss;
        match self.stage {
            Stage::Start => self.stage = Stage::Probes,
            Stage::Probes => {
                self.slopes = (0..self.at.len())
                    .map(|i| {
                        let away = self.proposed[i][i] - self.at[i];
                        let slope = |(probed, here): (&f64, &f64)| (probed - here) / away;
                        missed[i].iter().zip(&self.residuals).map(slope).collect()
                    })
                    .collect();
                for (i, reach) in self.reaches.iter_mut().enumerate() {
                    let effect = root(self.slopes[i].iter().map(|slope| slope * slope).sum()) * *reach;
                    let factor = EFFECT / effect.max(f64::MIN_POSITIVE);
                    *reach = (*reach * factor.clamp(0.5, 2.0)).clamp(PROBES.0, PROBES.1);
                }
                self.aside = better.then(|| (self.proposed[best].clone(), missed[best].clone()));
                self.stage = Stage::Steps;
                self.steps = 0;
                // The steps start from where the slopes were taken.
                return;
            }
            Stage::Steps => {
                if let Some((point, residuals)) = self.aside.take()
                    && loss_of(&residuals) < loss_of(&missed[best])
                {
                    self.loss = loss_of(&residuals);
                    (self.at, self.residuals) = (point, residuals);
                    self.damping = (self.damping * 2.0).min(DAMPING.1);
                    self.stage = Stage::Probes;
                    return;
                }
                let factor = if better { DAMPINGS[best] } else { 8.0 };
                self.damping = (self.damping * factor).max(DAMPING.0);
                if better {
                    self.learn(best, &missed[best]);
                }
                self.steps += 1;
                if !better || self.steps >= STEPS_MAX {
                    self.stage = Stage::Probes;
                }
            }
        }
        if better {
            self.at.clone_from(&self.proposed[best]);
            self.residuals.clone_from(&missed[best]);
            self.loss = loss_of(&missed[best]);
        }
    }

    /// Slopes follow a step: the smallest change that explains what it found.
    ///
    /// Source: Broyden, "A Class of Methods for Solving Nonlinear Simultaneous Equations", Mathematics of Computation 1965.
    fn learn(&mut self, step: usize, found: &[f64]) {
        let moved: Vec<f64> = self.proposed[step].iter().zip(&self.at).map(|(to, from)| to - from).collect();
        let length: f64 = moved.iter().map(|x| x * x).sum();
        if length <= 0.0 {
            return;
        }
        for (k, (found, here)) in found.iter().zip(&self.residuals).enumerate() {
            let expected: f64 = self.slopes.iter().zip(&moved).map(|(slope, moved)| slope[k] * moved).sum();
            let unexplained = (found - here - expected) / length;
            for (slope, moved) in self.slopes.iter_mut().zip(&moved) {
                slope[k] += unexplained * moved;
            }
        }
    }

    /// The best point so far with its loss.
    pub fn best(&self) -> (f64, Costs) {
        (self.loss, self.costs(&self.at))
    }

    /// What the best point misses.
    pub fn residuals(&self) -> &[f64] {
        &self.residuals
    }

    /// Points that the rows allow for as well as the best: drawn from the fit's covariance, within the bounds. Before the
    /// first probes there are none.
    pub fn samples(&self, count: usize, seed: u64) -> Vec<Costs> {
        let Some(factor) = self.factor() else { return Vec::new() };
        let mut chance = Chance::new(seed);
        let n = self.at.len();
        (0..count)
            .map(|_| {
                // If A = L·Lᵀ, Lᵀ·y = z gives y the covariance A⁻¹.
                let mut y: Vec<f64> = (0..n).map(|_| self.inflation() * chance.normal()).collect();
                for i in (0..n).rev() {
                    let known: f64 = (i + 1..n).map(|k| factor[k][i] * y[k]).sum();
                    y[i] = (y[i] - known) / factor[i][i];
                }
                let point: Vec<f64> = y.iter().zip(&self.at).map(|(y, x)| x + y).collect();
                self.costs(&point)
            })
            .collect()
    }

    /// How far residuals are beyond what would be good, at least 1: a model that misses more knows its parameters less well.
    #[expect(clippy::cast_precision_loss, reason = "a few dozen residuals")]
    fn inflation(&self) -> f64 {
        let free = self.residuals.len().saturating_sub(self.at.len()).max(1);
        root((2.0 * self.loss / free as f64).max(1.0))
    }

    /// The Cholesky factor of the inverse covariance; the bounds count as an even prior.
    fn factor(&self) -> Option<Vec<Vec<f64>>> {
        if self.slopes.is_empty() {
            return None;
        }
        let (mut matrix, _) = self.normal_equations();
        for (i, parameter) in self.parameters.iter().enumerate() {
            let width = to_scale(parameter, parameter.max) - to_scale(parameter, parameter.min);
            matrix[i][i] += 12.0 / (width * width);
        }
        let n = matrix.len();
        for i in 0..n {
            for j in 0..=i {
                let known: f64 = (0..j).map(|k| matrix[i][k] * matrix[j][k]).sum();
                let left = matrix[i][j] - known;
                matrix[i][j] = if i == j { root(left).max(f64::MIN_POSITIVE) } else { left / matrix[j][j] };
            }
        }
        Some(matrix)
    }

    /// `JᵀWJ` and `−JᵀWr`, with Huber's weights.
    fn normal_equations(&self) -> (Vec<Vec<f64>>, Vec<f64>) {
        let weight = |residual: &f64| (HUBER / residual.abs().max(HUBER)).min(1.0);
        let weights: Vec<f64> = self.residuals.iter().map(weight).collect();
        let product = |a: &[f64], b: &[f64]| -> f64 {
            a.iter().zip(b).zip(&weights).map(|((a, b), w)| w * a * b).sum()
        };
        let matrix =
            self.slopes.iter().map(|a| self.slopes.iter().map(|b| product(a, b)).collect()).collect();
        (matrix, self.slopes.iter().map(|a| -product(a, &self.residuals)).collect())
    }

    /// The point a probe's length from the best along one parameter, away from the nearer bound.
    fn beside(&self, i: usize) -> Vec<f64> {
        let parameter = self.parameters[i];
        let (low, high) = (to_scale(parameter, parameter.min), to_scale(parameter, parameter.max));
        let mut point = self.at.clone();
        let reach = self.reaches[i];
        point[i] += if self.at[i] - low > high - self.at[i] { -reach } else { reach };
        point
    }

    /// The point that the slopes promise to be best, under this damping.
    fn stepped(&self, damping: f64) -> Vec<f64> {
        let (mut matrix, mut right) = self.normal_equations();
        let n = matrix.len();
        for (i, row) in matrix.iter_mut().enumerate() {
            row[i] += damping * (row[i] * 0.3 + 3.0);
        }
        // Gauss and Jordan; the damped matrix is positive definite, so that the diagonal serves as pivot.
        for i in 0..n {
            let pivot = matrix[i].clone();
            let pivot_right = right[i];
            for r in (0..n).filter(|&r| r != i) {
                let factor = matrix[r][i] / pivot[i];
                for (left, pivot) in matrix[r].iter_mut().zip(&pivot) {
                    *left -= factor * pivot;
                }
                right[r] -= factor * pivot_right;
            }
        }
        (0..n)
            .map(|i| {
                let step = (right[i] / matrix[i][i]).clamp(-STEP_MAX, STEP_MAX);
                let parameter = self.parameters[i];
                to_scale(parameter, from_scale(parameter, self.at[i] + step))
            })
            .collect()
    }

    fn costs(&self, point: &[f64]) -> Costs {
        let mut costs = Costs::default();
        for (parameter, x) in self.parameters.iter().zip(point) {
            costs.set(parameter.name, from_scale(parameter, *x));
        }
        costs
    }
}

/// Half the square of each residual, and beyond [`HUBER`] the tangent to that.
pub fn loss_of(residuals: &[f64]) -> f64 {
    residuals
        .iter()
        .map(|r| r.abs())
        .map(|r| if r < HUBER { 0.5 * r * r } else { HUBER * r - 0.5 * HUBER * HUBER })
        .sum()
}

/// Where the scale turns from linear to logarithmic: a tenth of the range, but no more than a microsecond.
fn knee(parameter: &Parameter) -> f64 {
    0.1 * parameter.max.min(10.0)
}

fn to_scale(parameter: &Parameter, value: f64) -> f64 {
    ln(value + knee(parameter))
}

fn from_scale(parameter: &Parameter, x: f64) -> f64 {
    (exp(x) - knee(parameter)).clamp(parameter.min, parameter.max)
}

/// The square root, which IEEE 754 fixes to the last bit.
fn root(x: f64) -> f64 {
    x.max(0.0).sqrt()
}

#[cfg(test)]
mod test {
    use super::*;

    const WANTED: [(&str, f64); 4] = [("irq", 2.0), ("packet", 1.0), ("epoll", 3.0), ("sleep", 0.5)];

    /// Each residual mixes two neighbours, as rows do.
    fn missed(costs: &Costs) -> Vec<f64> {
        let off = |i: usize| {
            let (name, value) = WANTED[i % WANTED.len()];
            10.0 * ln(costs.get(name).expect("named") / value)
        };
        (0..WANTED.len()).map(|i| off(i) + 0.7 * off(i + 1)).collect()
    }

    fn fitted() -> Descent {
        let names = WANTED.map(|(name, _)| name);
        let mut descent = Descent::new(&names, &Costs::default()).expect("parameters");
        for _ in 0..60 {
            let residuals: Vec<Vec<f64>> = descent.propose().iter().map(missed).collect();
            descent.judge(&residuals);
        }
        descent
    }

    #[test]
    fn a_descent_finds_the_values_that_residuals_were_made_of() {
        let (_, found) = fitted().best();
        for (name, value) in WANTED {
            let off = found.get(name).expect("named") / value - 1.0;
            assert!(off.abs() < 0.02, "{name}: {off}");
        }
    }

    #[test]
    fn samples_are_as_wide_as_the_residuals_allow() {
        let descent = fitted();
        let samples = descent.samples(400, 1);
        assert_eq!(samples.len(), 400);
        let spread = |name: &str, value: f64| {
            let squares = samples.iter().map(|s| s.get(name).expect("named") / value - 1.0).map(|x| x * x);
            root(squares.sum::<f64>() / 400.0)
        };
        for (name, value) in WANTED {
            // Residuals change by 10 and 7 for a change of 1 in a logarithm, so that a deviation of 1 is about a tenth.
            let spread = spread(name, value);
            assert!((0.03..0.3).contains(&spread), "{name}: {spread}");
        }
        assert_eq!(samples, descent.samples(400, 1));
    }

    #[test]
    fn what_no_residual_answers_to_is_as_open_as_its_bounds() {
        let mut descent = Descent::new(&["irq"], &Costs::default()).expect("a parameter");
        for _ in 0..6 {
            let points = descent.propose().len();
            descent.judge(&vec![vec![1.0]; points]);
        }
        let irqs: Vec<f64> = descent.samples(200, 1).iter().filter_map(|s| s.get("irq")).collect();
        assert!(irqs.iter().any(|irq| *irq < 1.5) && irqs.iter().any(|irq| *irq > 8.0), "{irqs:?}");
    }
}
