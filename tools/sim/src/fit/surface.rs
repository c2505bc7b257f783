//! Fits surfaces to noisy residuals: regresses each residual on linear and squared terms of the parameters.

use super::cholesky::Cholesky;

use crate::chance::Chance;
use crate::math::{exp, root};

/// Huber's loss: half the square of a residual, continued by its tangent beyond [`HUBER`].
pub(super) fn bend(residual: f64) -> f64 {
    let r = residual.abs();
    if r < HUBER { 0.5 * r * r } else { HUBER * r - 0.5 * HUBER * HUBER }
}

/// Beyond this many deviations, a residual counts linearly.
pub const HUBER: f64 = 2.0;

/// The residuals as a function of the position in a box with coordinates from -1 to 1.
#[derive(Clone, Debug)]
pub(super) struct Surface {
    /// For each residual: the constant term, and for each coordinate the linear and the squared one.
    terms: Vec<Vec<f64>>,
    /// For each residual, the variance of single runs around the surface.
    scatter: Vec<f64>,
    /// The factor of the normal equations.
    factor: Cholesky,
    coordinates: usize,
}

/// The ridge penalty on linear and on squared terms, in points; it restrains terms that few points determine.
const RIDGES: (f64, f64) = (0.02, 0.15);
/// The mean of the square of a uniform draw from -1 to 1; it is subtracted from each squared term.
const MIDDLE: f64 = 1.0 / 3.0;
/// How fast the weight of points outside the box decreases with their distance, in half widths.
const FADES: f64 = 2.0;
/// A unit includes the scatter of a mean over `UNIT_RUNS` runs, and is at most `UNIT_MAX`.
const UNIT_RUNS: f64 = 3.0;
const UNIT_MAX: f64 = 3.0;
/// A weak pull towards the centre: among positions with similar predictions, it prefers the nearest.
const PULL: f64 = 0.15;
/// The number of starts of the search for the best position, their spread, the first and last step sizes, and
/// the maximum number of sweeps per start.
const STARTS: usize = 8;
const START_REACH: f64 = 0.6;
const STEPS: (f64, f64) = (0.3, 0.01);
const SWEEPS_MAX: usize = 400;

impl Surface {
    /// Fits the surface to the residuals of points, given in the box's coordinates; points outside are
    /// weighted by their distance.
    #[expect(clippy::cast_precision_loss, reason = "at most a thousand points")]
    pub(super) fn through(points: &[Vec<f64>], missed: &[Vec<f64>]) -> Self {
        let coordinates = points.first().map_or(0, Vec::len);
        let count = 1 + 2 * coordinates;
        let rows: Vec<Vec<f64>> = points.iter().map(|point| row(point)).collect();
        let weights: Vec<f64> = points
            .iter()
            .map(|point| point.iter().fold(1.0_f64, |far, u| far.max(u.abs())))
            .map(|far| if far <= 1.01 { 1.0 } else { exp((-FADES * (far - 1.0)).max(-600.0)) })
            .collect();
        let weight: f64 = weights.iter().sum();
        let mut matrix = vec![vec![0.0; count]; count];
        for (row, w) in rows.iter().zip(&weights) {
            for (i, to) in matrix.iter_mut().enumerate() {
                for (to, other) in to[..=i].iter_mut().zip(row) {
                    *to += w * row[i] * other;
                }
            }
        }
        for (i, row) in matrix.iter_mut().enumerate().skip(1) {
            row[i] += if i <= coordinates { RIDGES.0 } else { RIDGES.1 } * weight * MIDDLE;
        }
        let factor = Cholesky::of(matrix);
        let residuals = missed.first().map_or(0, Vec::len);
        // Every term costs a degree of freedom.
        let free = points.len().saturating_sub(count).max(1) as f64 / points.len().max(1) as f64;
        let (mut terms, mut scatter) = (Vec::new(), Vec::new());
        for k in 0..residuals {
            let mut right = vec![0.0; count];
            for ((row, w), missed) in rows.iter().zip(&weights).zip(missed) {
                right.iter_mut().zip(row).for_each(|(to, x)| *to += w * x * missed[k]);
            }
            let solved = factor.solve(right);
            let squares: f64 = rows
                .iter()
                .zip(&weights)
                .zip(missed)
                .map(|((row, w), missed)| {
                    let predicted: f64 = row.iter().zip(&solved).map(|(x, term)| x * term).sum();
                    w * (missed[k] - predicted) * (missed[k] - predicted)
                })
                .sum();
            scatter.push(squares / (weight * free).max(f64::MIN_POSITIVE));
            terms.push(solved);
        }
        Self { terms, scatter, factor, coordinates }
    }

    /// Returns the size of one deviation for each residual: that of a good prediction, or more if single runs
    /// scatter.
    pub(super) fn units(&self) -> Vec<f64> {
        self.scatter.iter().map(|variance| root(1.0 + variance / UNIT_RUNS).min(UNIT_MAX)).collect()
    }

    /// Returns each residual's slope along a coordinate at the centre of the box.
    pub(super) fn slopes(&self, coordinate: usize) -> impl Iterator<Item = f64> {
        self.terms.iter().map(move |terms| terms[1 + coordinate])
    }

    /// Returns the variance of each residual's slope along a coordinate.
    pub(super) fn doubts(&self, coordinate: usize) -> impl Iterator<Item = f64> {
        let mut right = vec![0.0; 1 + 2 * self.coordinates];
        right[1 + coordinate] = 1.0;
        let share = self.factor.solve(right)[1 + coordinate];
        self.scatter.iter().map(move |variance| variance * share)
    }

    /// Returns the position between `low` and `high` with the lowest predicted loss; `units` holds the
    /// deviation of each residual.
    pub(super) fn least(&self, units: &[f64], low: &[f64], high: &[f64], chance: &mut Chance) -> Vec<f64> {
        let mut best: Option<(f64, Vec<f64>)> = None;
        for start in 0..STARTS {
            let mut draw = || if start == 0 { 0.0 } else { START_REACH * (2.0 * chance.unit() - 1.0) };
            let mut place: Vec<f64> = low.iter().zip(high).map(|(l, h)| draw().clamp(*l, *h)).collect();
            let mut predicted = self.at(&place);
            let mut least = loss(&predicted, units, &place);
            let mut step = STEPS.0;
            for _ in 0..SWEEPS_MAX {
                let mut moved = false;
                for i in 0..place.len() {
                    for by in [step, -step] {
                        let to = (place[i] + by).clamp(low[i], high[i]);
                        let from = std::mem::replace(&mut place[i], to);
                        let there = self.moved(&predicted, i, from, to);
                        let l = loss(&there, units, &place);
                        if l < least - 1e-9 {
                            (least, predicted, moved) = (l, there, true);
                        } else {
                            place[i] = from;
                        }
                    }
                }
                if !moved {
                    step /= 2.0;
                    if step < STEPS.1 {
                        break;
                    }
                }
            }
            if best.as_ref().is_none_or(|(known, _)| least < *known) {
                best = Some((least, place));
            }
        }
        best.map_or_else(|| vec![0.0; low.len()], |(_, place)| place)
    }

    /// Returns the residuals that the surface predicts at a position.
    fn at(&self, place: &[f64]) -> Vec<f64> {
        let row = row(place);
        self.terms.iter().map(|terms| terms.iter().zip(&row).map(|(term, x)| term * x).sum()).collect()
    }

    /// Returns the residuals that the surface predicts after a step along one coordinate.
    fn moved(&self, predicted: &[f64], i: usize, from: f64, to: f64) -> Vec<f64> {
        let (by, squared) = (to - from, to * to - from * from);
        let terms =
            self.terms.iter().map(|terms| terms[1 + i] * by + terms[1 + self.coordinates + i] * squared);
        predicted.iter().zip(terms).map(|(predicted, more)| predicted + more).collect()
    }
}

/// Returns the factors of the surface's terms at a position.
fn row(place: &[f64]) -> Vec<f64> {
    let squares = place.iter().map(|u| u * u - MIDDLE);
    std::iter::once(1.0).chain(place.iter().copied()).chain(squares).collect()
}

/// Returns the loss at a position, plus the penalty for its distance from the centre.
fn loss(predicted: &[f64], units: &[f64], place: &[f64]) -> f64 {
    let missed: f64 = predicted.iter().zip(units).map(|(r, unit)| bend(r / unit)).sum();
    missed + PULL * place.iter().map(|u| u * u).sum::<f64>()
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::chance::Draws;

    /// A curved surface over two coordinates, with scatter.
    fn surface(scatter: f64) -> Surface {
        let mut chance = Chance::new(1);
        let points: Vec<Vec<f64>> =
            (0..400).map(|_| vec![2.0 * chance.unit() - 1.0, 2.0 * chance.unit() - 1.0]).collect();
        let missed: Vec<Vec<f64>> = points
            .iter()
            .map(|p| {
                vec![8.0 * (p[0] - 0.4) + 2.0 * p[1] * p[1] + scatter * chance.normal(), 5.0 * (p[1] + 0.5)]
            })
            .collect();
        Surface::through(&points, &missed)
    }

    #[test]
    fn a_surface_tells_slopes_and_scatter_apart() {
        let surface = surface(3.0);
        let slopes: Vec<f64> = surface.slopes(0).collect();
        assert!((slopes[0] - 8.0).abs() < 0.8 && slopes[1].abs() < 0.3, "{slopes:?}");
        assert!(
            (6.0..12.0).contains(&surface.scatter[0]) && surface.scatter[1] < 0.1,
            "{:?}",
            surface.scatter
        );
        let doubt = surface.doubts(0).next().expect("two residuals");
        // The variance of a slope over 400 uniform draws from -1 to 1: 9 / (400 / 3).
        assert!((0.04..0.1).contains(&doubt), "{doubt}");
        assert!((surface.units()[0] - 2.0).abs() < 0.3 && surface.units()[1] < 1.02, "{:?}", surface.units());
    }

    #[test]
    fn the_least_loss_is_found_within_the_bounds() {
        let surface = surface(0.0);
        let mut chance = Chance::new(2);
        let place = surface.least(&[1.0, 1.0], &[-1.0, -1.0], &[1.0, 1.0], &mut chance);
        // Where the second residual is zero, the first is 8·(x - 0.4) + 0.5.
        assert!((place[0] - 0.3375).abs() < 0.05 && (place[1] + 0.5).abs() < 0.05, "{place:?}");
        let bounded = surface.least(&[1.0, 1.0], &[-1.0, -0.2], &[0.1, 1.0], &mut chance);
        assert!((bounded[0] - 0.1).abs() < 1e-9 && (bounded[1] + 0.2).abs() < 1e-9, "{bounded:?}");
    }
}
