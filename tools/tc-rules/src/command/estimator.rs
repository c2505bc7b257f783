//! The rate estimator of a rule: the interval at which the counters of its police actions are sampled, and
//! the time constant of their moving average.

use crate::number;
use crate::words::{Read, Words};

/// `struct tc_estimator`.
///
/// Kernel: 6.18, `include/uapi/linux/pkt_sched.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimator {
    /// The base-2 logarithm of the interval in seconds, from -2 (a quarter of a second).
    interval: i8,
    /// The weight of a new value in the average is 2 to the power of minus this.
    ewma_log: u8,
}

/// A quarter of a second, in microseconds.
const QUARTER: f64 = 250_000.0;

impl Estimator {
    /// Parses an estimator, such as `1s 8s`: the interval, and the time constant of the mean.
    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        let interval = words.read("an interval, as in 1s", microseconds)?;
        let constant = words.read("the time constant of the average, as in 8s", microseconds)?;
        Self::of(interval, constant).ok_or_else(|| {
            words.wrong("the kernel has no such estimator: an interval of 8s at most, and a longer constant")
        })
    }

    /// Computes the estimator as `tc_setup_estimator()` of iproute2 6.1, `tc/tc_estimator.c`, does.
    fn of(interval: f64, constant: f64) -> Option<Self> {
        let quarters = (0_i8..=5).find(|shift| interval <= f64::from(1_u32 << shift) * QUARTER)?;
        let decays = |log: &u8| {
            let weight = 1.0 - 1.0 / f64::from(1_u32 << log);
            interval / -weight.ln() > constant
        };
        let ewma_log = (1_u8..32).find(decays)? - 1;
        (ewma_log != 0 && ewma_log < 31).then_some(Self { interval: quarters - 2, ewma_log })
    }

    /// The kernel's encoding.
    pub(super) const fn bytes(self) -> [u8; 2] {
        [self.interval.to_ne_bytes()[0], self.ewma_log]
    }
}

/// Parses a time, by default in microseconds: `get_time()` of iproute2 6.1, `tc/tc_util.c`.
#[expect(clippy::cast_precision_loss, reason = "times of seconds")]
fn microseconds(word: &str) -> Option<f64> {
    match word.parse::<f64>() {
        Ok(bare) => (bare.is_finite() && bare >= 0.0).then_some(bare),
        Err(_) => number::nanoseconds(word).map(|time| time as f64 / 1e3),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_estimator_is_what_tc_makes_of_it() {
        // The expected bytes are from messages sent by tc of iproute2 6.1, recorded with strace.
        for (interval, constant, bytes) in [
            ("1s", "8s", Some([0, 3])),
            ("250ms", "1s", Some([0xfe, 2])),
            ("500000", "4000000", Some([0xff, 3])),
            ("8s", "64s", Some([3, 3])),
            ("9s", "64s", None),
            ("1s", "1s", None),
        ] {
            let [interval, constant] = [interval, constant].map(|word| microseconds(word).expect("a time"));
            assert_eq!(
                Estimator::of(interval, constant).map(Estimator::bytes),
                bytes,
                "{interval} {constant}"
            );
        }
    }
}
