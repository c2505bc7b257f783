//! Reads the host's clocks for the journal. Lower-level crates get the time as an argument.

use std::sync::OnceLock;

use apply::Moment;
use linux::clock::{since_1970, since_boot};

/// Returns the current time, by the wall clock and since boot.
pub fn now() -> Moment {
    Moment { unix_micros: since_1970().0 / 1_000, since_boot: since_boot() }
}

/// Returns the current time in microseconds since 1970, based on the wall clock at the first call in this
/// process. Setting the clock later does not affect the result, so daily counts stay right.
pub fn steady_unix_micros() -> u64 {
    static FIRST: OnceLock<Moment> = OnceLock::new();
    let now = now();
    steadied(*FIRST.get_or_init(|| now), now)
}

/// Returns the time of `now`, based on the wall clock of `first`.
const fn steadied(first: Moment, now: Moment) -> u64 {
    let passed = now.since_boot.0.saturating_sub(first.since_boot.0);
    first.unix_micros.saturating_add(passed / 1_000)
}

#[cfg(test)]
mod test {
    use model::Nanoseconds;

    use super::*;

    #[test]
    fn a_clock_that_is_set_moves_no_steady_time() {
        let at = |unix_micros, seconds: u64| Moment {
            unix_micros,
            since_boot: Nanoseconds(seconds * 1_000_000_000),
        };
        let first = at(1_795_233_900_000_000, 100);
        let a_second_later = first.unix_micros + 1_000_000;
        for set_to in [a_second_later, 0, a_second_later + 86_400_000_000] {
            assert_eq!(steadied(first, at(set_to, 101)), a_second_later);
        }
        let one = steady_unix_micros();
        assert!(steady_unix_micros() >= one);
    }
}
