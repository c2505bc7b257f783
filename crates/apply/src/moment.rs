//! A moment in time, as two of the host's clocks show it. This crate reads no clock; the caller does.

use std::fmt;

use model::Nanoseconds;
use serde::{Deserialize, Serialize};

/// A reading of the wall clock and of the boot-time clock.
///
/// Messages show the wall clock. Deadlines use the boot-time clock: it cannot be set, it continues during
/// suspend, and it restarts at a reboot, which voids all transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moment {
    /// Microseconds since 1970-01-01 00:00 UTC: `CLOCK_REALTIME`.
    pub unix_micros: u64,
    /// Time since boot: `CLOCK_BOOTTIME`.
    pub since_boot: Nanoseconds,
}

impl fmt::Display for Moment {
    /// Writes the wall-clock time with a resolution of seconds: `2026-11-21 04:05:00 UTC`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Utc { year, month, day, hour, minute, second, .. } = Utc::from_unix_micros(self.unix_micros);
        f.pad(&format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC"))
    }
}

/// A wall-clock time, split into its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Utc {
    pub(crate) year: u64,
    pub(crate) month: u64,
    pub(crate) day: u64,
    pub(crate) hour: u64,
    pub(crate) minute: u64,
    pub(crate) second: u64,
    pub(crate) micro: u64,
}

/// The last microsecond of the year 9999. It replaces any later time, because a later year has more than four
/// digits.
pub(crate) const UNIX_MICROS_MAX: u64 = 253_402_300_799_999_999;

impl Utc {
    const MICROS_PER_SECOND: u64 = 1_000_000;
    const SECONDS_PER_DAY: u64 = 86_400;
    /// Days from 0000-03-01, where the leap-year cycle begins, to 1970-01-01.
    const EPOCH_DAYS: u64 = 719_468;
    /// Days in 400 years.
    const ERA_DAYS: u64 = 146_097;

    /// Splits a time into its parts. Replaces times after [`UNIX_MICROS_MAX`] by [`UNIX_MICROS_MAX`].
    ///
    /// The calendar is Gregorian. Years are counted from March, so that the leap day is the last day of the
    /// year; see Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
    pub(crate) fn from_unix_micros(unix_micros: u64) -> Self {
        let unix_micros = unix_micros.min(UNIX_MICROS_MAX);
        let seconds = unix_micros / Self::MICROS_PER_SECOND;
        let (days, of_day) =
            (seconds / Self::SECONDS_PER_DAY + Self::EPOCH_DAYS, seconds % Self::SECONDS_PER_DAY);
        let (era, of_era) = (days / Self::ERA_DAYS, days % Self::ERA_DAYS);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        Self {
            year: era * 400 + year_of_era + u64::from(month <= 2),
            month,
            day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
            hour: of_day / 3_600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
            micro: unix_micros % Self::MICROS_PER_SECOND,
        }
    }

    /// Converts the parts to microseconds, or returns `None` for an invalid time or one before 1970.
    pub(crate) fn to_unix_micros(self) -> Option<u64> {
        let year_from_march = self.year.checked_sub(u64::from(self.month <= 2))?;
        let (era, year_of_era) = (year_from_march / 400, year_from_march % 400);
        let month_from_march = (self.month + 9) % 12;
        let day_of_year = (153 * month_from_march + 2) / 5 + self.day.checked_sub(1)?;
        let days =
            era * Self::ERA_DAYS + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        let seconds = days.checked_sub(Self::EPOCH_DAYS)? * Self::SECONDS_PER_DAY
            + self.hour * 3_600
            + self.minute * 60
            + self.second;
        let unix_micros = seconds * Self::MICROS_PER_SECOND + self.micro;
        // Reject an invalid date (a thirteenth month, 31 February): converting it back gives a different
        // date.
        (unix_micros <= UNIX_MICROS_MAX && Self::from_unix_micros(unix_micros) == self).then_some(unix_micros)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    fn at(unix_micros: u64) -> String {
        Moment { unix_micros, since_boot: Nanoseconds::ZERO }.to_string()
    }

    #[test]
    fn the_calendar_is_the_common_one() {
        // The expected texts are the output of `date -u -d @SECONDS`.
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_164_799, "2024-02-28 23:59:59 UTC"),
            (1_795_233_900, "2026-11-21 04:05:00 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(at(seconds * 1_000_000), text);
        }
        assert_eq!(at(u64::MAX), "9999-12-31 23:59:59 UTC");
    }

    proptest! {
        #[test]
        fn a_time_survives_being_taken_apart(unix_micros in 0..=UNIX_MICROS_MAX) {
            prop_assert_eq!(Utc::from_unix_micros(unix_micros).to_unix_micros(), Some(unix_micros));
        }
    }

    #[test]
    fn a_date_that_does_not_exist_is_no_time() {
        let day = |year, month, day| Utc { year, month, day, hour: 0, minute: 0, second: 0, micro: 0 };
        for none in [day(2023, 2, 29), day(2024, 13, 1), day(2024, 0, 1), day(2024, 1, 0), day(1969, 12, 31)]
        {
            assert_eq!(none.to_unix_micros(), None, "{none:?}");
        }
    }
}
