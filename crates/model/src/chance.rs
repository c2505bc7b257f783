//! Seeded pseudo-random numbers: one seed gives any number of independent streams.

/// A pseudo-random number generator: xoshiro256++ by Blackman and Vigna, seeded with SplitMix64 as they
/// recommend.
///
/// Source: <https://prng.di.unimi.it/>; the tests check the published test vectors.
#[derive(Clone, Debug)]
pub struct Chance {
    state: [u64; 4],
}

impl Chance {
    /// Returns the stream for a seed and a path of numbers, such as the numbers of a thread and a connection.
    /// Streams with different paths are independent.
    pub fn stream(seed: u64, path: &[u64]) -> Self {
        let mut mixed = seed;
        let mut state = split_mix(&mut mixed);
        for &step in path {
            mixed = state ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            state = split_mix(&mut mixed);
        }
        Self::new(state)
    }

    /// Returns a single stream, for callers that need only one.
    pub fn new(mut seed: u64) -> Self {
        Self { state: [(); 4].map(|()| split_mix(&mut seed)) }
    }

    /// Returns the next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        let [s0, s1, s2, s3] = self.state;
        let result = s0.wrapping_add(s3).rotate_left(23).wrapping_add(s0);
        let (s2, s3) = (s2 ^ s0, s3 ^ s1);
        self.state = [s0 ^ s3, s1 ^ s2, s2 ^ (s1 << 17), s3.rotate_left(45)];
        result
    }

    /// Returns a uniform number in (0, 1], never zero, so that its logarithm is finite.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        Self::unit_of(self.bits())
    }

    /// Maps 64 bits to the number that [`Chance::unit`] returns.
    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    pub const fn unit_of(bits: u64) -> f64 {
        ((bits >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a uniform number in 0..`bound`, or zero if `bound` is zero. The bias is below 2^-32.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Shuffles a list (Fisher–Yates).
    ///
    /// # Panics
    /// If the list has more than `u32::MAX` elements.
    #[inline]
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
    fn the_generators_give_their_published_numbers() {
        let mut seed = 1_234_567;
        assert_eq!(split_mix(&mut seed), 6_457_827_717_110_365_317);
        assert_eq!(split_mix(&mut seed), 3_203_168_211_198_807_973);
        let mut chance = Chance { state: [1, 2, 3, 4] };
        let expected = [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386];
        assert_eq!([(); 4].map(|()| chance.bits()), expected);
    }

    #[test]
    fn streams_of_one_seed_repeat_and_differ_from_each_other() {
        let draw = |seed, path: &[u64]| Chance::stream(seed, path).bits();
        assert_eq!(draw(7, &[0, 1]), draw(7, &[0, 1]));
        let all = [draw(7, &[0, 1]), draw(7, &[1, 0]), draw(8, &[0, 1]), draw(7, &[0]), draw(7, &[])];
        let distinct: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn unit_numbers_are_even_and_never_zero() {
        let mut chance = Chance::stream(3, &[]);
        let draws: Vec<f64> = (0..100_000).map(|_| chance.unit()).collect();
        assert!(draws.iter().all(|&u| u > 0.0 && u <= 1.0));
        let mean = draws.iter().sum::<f64>() / 100_000.0;
        // The tolerance is four standard errors of the mean of 100 000 uniform draws.
        assert!((mean - 0.5).abs() < 4.0 * (1.0_f64 / 12.0 / 100_000.0).sqrt(), "{mean}");
    }

    #[test]
    fn a_bound_is_never_reached_and_every_number_below_it_is() {
        let mut chance = Chance::stream(5, &[]);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[chance.below(7) as usize] = true;
        }
        assert_eq!(seen, [true; 7]);
        assert_eq!(chance.below(0), 0);
    }
}
