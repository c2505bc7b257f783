//! Fitting parameters: a search that proposes points and is told how good they are.
//!
//! Who evaluates the points, on how many cores, is not its business.
//!
//! Source: Ros and Hansen, "A Simple Modification in CMA-ES Achieving Linear Time and Space Complexity" (sep-CMA-ES),
//! PPSN 2008; weights and learning rates as given there. It needs no derivatives and bears noise.

use crate::chance::{Chance, Draws};
use crate::elementary::{exp, ln};
use crate::scenario::{Costs, Parameter};

/// A search over parameters, each on a logarithmic scale within its bounds.
#[derive(Clone, Debug)]
pub struct Search {
    parameters: Vec<&'static Parameter>,
    chance: Chance,
    mean: Vec<f64>,
    /// Variances by coordinate, relative to `step`².
    variance: Vec<f64>,
    step: f64,
    path: Vec<f64>,
    step_path: Vec<f64>,
    weights: Vec<f64>,
    proposed: Vec<Vec<f64>>,
    best: Option<(f64, Vec<f64>)>,
    archive: Vec<(f64, Vec<f64>)>,
    population: usize,
}

/// Where the search begins to look: a standard deviation of this much in the logarithm.
const STEP_AT_FIRST: f64 = 0.1;
/// A value of zero is this share of the largest on the logarithmic scale.
const ZERO_SHARE: f64 = 0.01;
/// How many of the best points are kept.
const ARCHIVE_MAX: usize = 200;

impl Search {
    /// A search that starts from these values. `None` if a name is no parameter's.
    pub fn new(names: &[&str], from: &Costs, population: usize, seed: u64) -> Option<Self> {
        let parameters: Vec<&'static Parameter> = names
            .iter()
            .map(|name| Costs::PARAMETERS.iter().find(|parameter| parameter.name == *name))
            .collect::<Option<_>>()?;
        let mean = parameters
            .iter()
            .map(|p| from.get(p.name).map(|v| to_scale(p, v)))
            .collect::<Option<Vec<_>>>()?;
        let parents = population / 2;
        let raw: Vec<f64> = (1..=u32::try_from(parents).ok()?)
            .map(|i| ln(f64::from(u32::try_from(parents).unwrap_or(1)) + 0.5) - ln(f64::from(i)))
            .collect();
        let sum: f64 = raw.iter().sum();
        let n = parameters.len();
        Some(Self {
            parameters,
            chance: Chance::new(seed),
            mean,
            variance: vec![1.0; n],
            step: STEP_AT_FIRST,
            path: vec![0.0; n],
            step_path: vec![0.0; n],
            weights: raw.iter().map(|w| w / sum).collect(),
            proposed: Vec::new(),
            best: None,
            archive: Vec::new(),
            population,
        })
    }

    /// The next points to evaluate.
    pub fn propose(&mut self) -> Vec<Costs> {
        self.proposed = (0..self.population)
            .map(|_| {
                (0..self.mean.len())
                    .map(|i| self.mean[i] + self.step * root(self.variance[i]) * self.chance.normal())
                    .collect()
            })
            .collect();
        self.proposed.iter().map(|point| self.costs(point)).collect()
    }

    /// How good the proposed points were, in their order: less is better.
    #[expect(clippy::cast_precision_loss, reason = "a few dozen parameters")]
    pub fn judge(&mut self, losses: &[f64]) {
        let mut order: Vec<usize> = (0..self.proposed.len().min(losses.len())).collect();
        let penalised: Vec<f64> =
            order.iter().map(|&i| losses[i] + self.outside(&self.proposed[i])).collect();
        order.sort_by(|&a, &b| penalised[a].total_cmp(&penalised[b]));
        for &i in &order {
            self.archive.push((penalised[i], self.proposed[i].clone()));
        }
        self.archive.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.archive.truncate(ARCHIVE_MAX);
        self.best = self.archive.first().cloned();

        let n = self.mean.len() as f64;
        let effective = 1.0 / self.weights.iter().map(|w| w * w).sum::<f64>();
        let old = self.mean.clone();
        for (i, mean) in self.mean.iter_mut().enumerate() {
            *mean = order.iter().zip(&self.weights).map(|(&k, w)| w * self.proposed[k][i]).sum();
        }
        let step_rate = (effective + 2.0) / (n + effective + 3.0);
        let damping = 1.0 + step_rate + 2.0 * (root((effective - 1.0) / (n + 1.0)) - 1.0).max(0.0);
        let path_rate = 4.0 / (n + 4.0);
        let general = 2.0 / ((n + 1.414) * (n + 1.414)) / effective
            + (1.0 - 1.0 / effective)
                * ((2.0 * effective - 1.0) / ((n + 2.0) * (n + 2.0) + effective)).min(1.0);
        let covariance_rate = (general * (n + 2.0) / 3.0).min(0.5);
        let mut length = 0.0;
        for (i, &old) in old.iter().enumerate() {
            let moved = (self.mean[i] - old) / self.step;
            self.step_path[i] = (1.0 - step_rate) * self.step_path[i]
                + root(step_rate * (2.0 - step_rate) * effective) * moved / root(self.variance[i]);
            self.path[i] =
                (1.0 - path_rate) * self.path[i] + root(path_rate * (2.0 - path_rate) * effective) * moved;
            length += self.step_path[i] * self.step_path[i];
            let spread: f64 = order
                .iter()
                .zip(&self.weights)
                .map(|(&k, w)| {
                    let away = (self.proposed[k][i] - old) / self.step;
                    w * away * away
                })
                .sum();
            self.variance[i] = (1.0 - covariance_rate) * self.variance[i]
                + covariance_rate
                    * (self.path[i] * self.path[i] / effective + (1.0 - 1.0 / effective) * spread);
        }
        let expected = root(n) * (1.0 - 1.0 / (4.0 * n) + 1.0 / (21.0 * n * n));
        self.step *= exp((step_rate / damping * (root(length) / expected - 1.0)).clamp(-1.0, 1.0));
    }

    /// The best point so far with its loss.
    pub fn best(&self) -> Option<(f64, Costs)> {
        self.best.as_ref().map(|(loss, point)| (*loss, self.costs(point)))
    }

    /// Points that were nearly as good as the best: within this share of its loss.
    pub fn nearly_as_good(&self, share: f64) -> Vec<Costs> {
        let Some((best, _)) = self.best else { return Vec::new() };
        self.archive
            .iter()
            .filter(|(loss, _)| *loss <= best * (1.0 + share))
            .map(|(_, p)| self.costs(p))
            .collect()
    }

    /// How far each parameter may be from its value, as the search sees it: a standard deviation of its logarithm.
    pub fn spread(&self) -> Vec<(&'static Parameter, f64)> {
        self.parameters.iter().zip(&self.variance).map(|(p, v)| (*p, self.step * root(*v))).collect()
    }

    fn costs(&self, point: &[f64]) -> Costs {
        let mut costs = Costs::default();
        for (parameter, x) in self.parameters.iter().zip(point) {
            costs.set(parameter.name, from_scale(parameter, *x));
        }
        costs
    }

    /// How far a point is beyond the bounds.
    fn outside(&self, point: &[f64]) -> f64 {
        let beyond = |(parameter, &x): (&&Parameter, &f64)| {
            let (low, high) = (to_scale(parameter, parameter.min), to_scale(parameter, parameter.max));
            (low - x).max(x - high).max(0.0)
        };
        self.parameters.iter().zip(point).map(beyond).sum()
    }
}

fn to_scale(parameter: &Parameter, value: f64) -> f64 {
    ln(value + ZERO_SHARE * parameter.max)
}

fn from_scale(parameter: &Parameter, x: f64) -> f64 {
    (exp(x) - ZERO_SHARE * parameter.max).clamp(parameter.min, parameter.max)
}

/// The square root, which IEEE 754 fixes to the last bit.
fn root(x: f64) -> f64 {
    x.max(0.0).sqrt()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_search_finds_the_values_that_a_loss_was_made_of() {
        let wanted = [("irq", 2.0), ("packet", 1.0), ("epoll", 3.0), ("sleep", 0.5)];
        let names = wanted.map(|(name, _)| name);
        let mut search = Search::new(&names, &Costs::default(), 12, 1).expect("parameters");
        for _ in 0..80 {
            let losses: Vec<f64> = search
                .propose()
                .iter()
                .map(|costs| {
                    let off = |(name, value): (&str, f64)| ln(costs.get(name).expect("named") / value);
                    wanted.map(|w| off(w) * off(w)).iter().sum()
                })
                .collect();
            search.judge(&losses);
        }
        let (_, found) = search.best().expect("judged");
        for (name, value) in wanted {
            let off = found.get(name).expect("named") / value - 1.0;
            assert!(off.abs() < 0.02, "{name}: {off}");
        }
    }
}
