//! Draws from the distributions that the model needs, based on [`model::Chance`]: one seed, one stream,
//! passed to each caller that draws.

pub use model::Chance;

use crate::math::{exp, ln};

/// Draws random numbers with mean 0 or 1, identical on every machine.
pub trait Draws {
    /// Returns an exponential draw with mean 1.
    fn exponential(&mut self) -> f64;

    /// Returns a generalized Pareto draw with location 0, the given shape and mean 1: Facebook's `fb_ia` has
    /// shape 0.154971.
    fn pareto(&mut self, shape: f64) -> f64;

    /// Returns an approximately normal draw with mean 0 and deviation 1: the sum of four uniform draws
    /// (Irwin-Hall), so never beyond ±3.47.
    fn normal(&mut self) -> f64;
}

impl Draws for Chance {
    #[inline]
    fn exponential(&mut self) -> f64 {
        -ln(self.unit())
    }

    #[inline]
    fn pareto(&mut self, shape: f64) -> f64 {
        pareto(shape, ln(self.unit()))
    }

    #[inline]
    fn normal(&mut self) -> f64 {
        normal(self.bits())
    }
}

/// The numbers of a [`Chance`], drawn in batches: the logarithms, which most users need, are computed for a
/// whole batch rather than one by one on demand.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    chance: Chance,
    units: [f64; AHEAD],
    logs: [f64; AHEAD],
    bits: [u64; AHEAD],
    taken: usize,
}

/// Numbers per batch.
const AHEAD: usize = 32;

impl Stream {
    /// Creates a stream of the numbers that `chance` would draw next.
    pub(crate) const fn new(chance: Chance) -> Self {
        let none = [0.0; AHEAD];
        Self { chance, units: none, logs: none, bits: [0; AHEAD], taken: AHEAD }
    }

    #[inline]
    fn take(&mut self) -> usize {
        if self.taken >= AHEAD {
            self.draw();
        }
        self.taken += 1;
        self.taken - 1
    }

    #[inline(never)]
    fn draw(&mut self) {
        self.bits = [(); AHEAD].map(|()| self.chance.bits());
        for i in 0..AHEAD {
            self.units[i] = Chance::unit_of(self.bits[i]);
        }
        for i in 0..AHEAD {
            self.logs[i] = ln(self.units[i]);
        }
        self.taken = 0;
    }

    /// Draws as [`Chance::unit`] does.
    #[inline]
    pub(crate) fn unit(&mut self) -> f64 {
        let i = self.take();
        self.units[i]
    }

    /// Draws as [`Chance::below`] does.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        let i = self.take();
        (((self.bits[i] >> 32) * u64::from(bound)) >> 32) as u32
    }
}

impl Draws for Stream {
    #[inline]
    fn exponential(&mut self) -> f64 {
        let i = self.take();
        -self.logs[i]
    }

    #[inline]
    fn pareto(&mut self, shape: f64) -> f64 {
        let i = self.take();
        pareto(shape, self.logs[i])
    }

    #[inline]
    fn normal(&mut self) -> f64 {
        let i = self.take();
        normal(self.bits[i])
    }
}

#[inline]
fn pareto(shape: f64, log: f64) -> f64 {
    (1.0 - shape) * (exp(-shape * log) - 1.0) / shape
}

#[inline]
#[expect(clippy::cast_precision_loss, reason = "the sum of four numbers of 16 bits")]
fn normal(bits: u64) -> f64 {
    let sum = (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
    (sum as f64 / 65_535.0 - 2.0) * 1.732_050_807_568_877_2
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn numbers_drawn_ahead_are_those_that_would_be_drawn_one_by_one() {
        let (mut chance, mut stream) = (Chance::new(3), Stream::new(Chance::new(3)));
        for step in 0..1000 {
            let (expected, found) = match step % 6 {
                0 => (chance.unit(), stream.unit()),
                1 => (chance.normal(), stream.normal()),
                5 => (f64::from(chance.below(9)), f64::from(stream.below(9))),
                2 => (chance.pareto(0.154_971), stream.pareto(0.154_971)),
                _ => (chance.exponential(), stream.exponential()),
            };
            assert_eq!(expected.to_bits(), found.to_bits(), "step {step}");
        }
    }

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
