//! The distributions that the world draws from, on [`model::Chance`]: one seed, one stream, handed to whoever draws.

pub use model::Chance;

use crate::elementary::{exp, ln};

/// Draws with mean 0 or 1, the same bytes on every machine.
pub trait Draws {
    /// An exponential draw with mean 1.
    fn exponential(&mut self) -> f64;

    /// A generalized Pareto draw with location 0, this shape and mean 1: Facebook's `fb_ia` at shape 0.154971.
    fn pareto(&mut self, shape: f64) -> f64;

    /// Nearly a normal draw with mean 0 and deviation 1: four even draws added up (Irwin and Hall), so never beyond
    /// ±3.47.
    fn normal(&mut self) -> f64;
}

impl Draws for Chance {
    #[inline]
    fn exponential(&mut self) -> f64 {
        -ln(self.unit())
    }

    #[inline]
    fn pareto(&mut self, shape: f64) -> f64 {
        (1.0 - shape) * (exp(-shape * ln(self.unit())) - 1.0) / shape
    }

    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "the sum of four numbers of 16 bits")]
    fn normal(&mut self) -> f64 {
        let bits = self.bits();
        let sum = (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
        (sum as f64 / 65_535.0 - 2.0) * 1.732_050_807_568_877_2
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn draws_have_the_moments_of_their_distributions() {
        const DRAWS: u32 = 400_000;
        let mut chance = Chance::new(7);
        let mut moments = |draw: &mut dyn FnMut(&mut Chance) -> f64| {
            let (mut sum, mut squares) = (0.0, 0.0);
            for _ in 0..DRAWS {
                let x = draw(&mut chance);
                sum += x;
                squares += x * x;
            }
            (sum / f64::from(DRAWS), squares / f64::from(DRAWS))
        };
        let near = |found: (f64, f64), mean: f64, square: f64| {
            assert!((found.0 - mean).abs() < 0.01 && (found.1 - square).abs() < 0.05, "{found:?}");
        };
        near(moments(&mut Chance::exponential), 1.0, 2.0);
        near(moments(&mut Chance::normal), 0.0, 1.0);
        near(moments(&mut |c| c.pareto(0.154_971)), 1.0, 1.0 + 1.0 / (1.0 - 2.0 * 0.154_971));
    }
}
