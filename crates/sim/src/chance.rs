//! Chance that can be repeated: one seed, one stream, handed to whoever draws.

use crate::elementary::{exp, ln};

/// The generator xoshiro256++ of Blackman and Vigna, seeded by SplitMix64 as they advise.
///
/// Source: <https://prng.di.unimi.it/>.
#[derive(Clone, Debug)]
pub struct Chance {
    state: [u64; 4],
}

impl Chance {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        let mut mixed = seed;
        Self { state: [(); 4].map(|()| split_mix(&mut mixed)) }
    }

    /// The next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        let [s0, s1, s2, s3] = self.state;
        let result = s0.wrapping_add(s3).rotate_left(23).wrapping_add(s0);
        let (s2, s3) = (s2 ^ s0, s3 ^ s1);
        self.state = [s0 ^ s3, s1 ^ s2, s2 ^ (s1 << 17), s3.rotate_left(45)];
        result
    }

    /// A number drawn evenly from (0, 1].
    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// A number drawn evenly from 0..`bound`; the bias is below 2^-32.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// An exponential draw with mean 1.
    #[inline]
    pub fn exponential(&mut self) -> f64 {
        -ln(self.unit())
    }

    /// A generalized Pareto draw with location 0, this shape and mean 1: Facebook's `fb_ia` at shape 0.154971.
    #[inline]
    pub fn pareto(&mut self, shape: f64) -> f64 {
        (1.0 - shape) * (exp(-shape * ln(self.unit())) - 1.0) / shape
    }

    /// Nearly a normal draw with mean 0 and deviation 1: four even draws added up (Irwin and Hall), so never beyond
    /// ±3.47.
    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "the sum of four numbers of 16 bits")]
    pub fn normal(&mut self) -> f64 {
        let bits = self.bits();
        let sum = (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
        (sum as f64 / 65_535.0 - 2.0) * 1.732_050_807_568_877_2
    }

    /// Puts a list into a random order (Fisher and Yates).
    ///
    /// # Panics
    /// If the list has more than `u32::MAX` elements.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let bound = u32::try_from(last + 1).expect("lists here are short");
            list.swap(last, self.below(bound) as usize);
        }
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_generator_gives_its_published_numbers() {
        let mut chance = Chance { state: [1, 2, 3, 4] };
        let expected = [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386];
        assert_eq!([(); 4].map(|()| chance.bits()), expected);
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
