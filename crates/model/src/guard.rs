//! Limits how much a change of settings may hurt a service before it is rolled back.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Nanoseconds;

/// The growth that a guard allows a measured quantity, in thousandths: [`Growth::LEAST`] to [`Growth::MOST`].
///
/// Written in percent, with or without a sign: `+15%`, `2.5%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Growth(u32);

impl Growth {
    /// The smallest growth that a guard accepts: detecting less would take hundreds of pairs of windows, or
    /// fail.
    pub const LEAST: Self = Self(10);

    /// The largest growth that a guard accepts: to eleven times the value.
    pub const MOST: Self = Self(10_000);

    /// Returns this growth if it is within the range.
    pub const fn thousandths(thousandths: u32) -> Option<Self> {
        let growth = Self(thousandths);
        if thousandths >= Self::LEAST.0 && thousandths <= Self::MOST.0 { Some(growth) } else { None }
    }

    /// Returns the growth as a share, such as 0.15 for +15 %.
    pub fn share(self) -> f64 {
        f64::from(self.0) / 1_000.0
    }
}

/// `+15%`, `+2.5%`.
impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 10 {
            0 => write!(f, "+{}%", self.0 / 10),
            tenth => write!(f, "+{}.{tenth}%", self.0 / 10),
        }
    }
}

impl FromStr for Growth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a growth that a guard allows: write {} to {}, as in +15%",
                Self::LEAST,
                Self::MOST
            )
        };
        let digits = text.strip_prefix('+').unwrap_or(text);
        let digits = digits.strip_suffix('%').ok_or_else(wrong)?.trim_end();
        let (whole, tenth) = digits.split_once('.').unwrap_or((digits, "0"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(tenth) || tenth.len() > 1 {
            return Err(wrong());
        }
        let (whole, tenth): (u32, u32) = whole.parse().ok().zip(tenth.parse().ok()).ok_or_else(wrong)?;
        let thousandths = whole.checked_mul(10).and_then(|whole| whole.checked_add(tenth));
        thousandths.and_then(Self::thousandths).ok_or_else(wrong)
    }
}

crate::as_text! { Growth: "by how much a quantity may grow, as in `+15%`" }

/// A quantity that a guard watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarded {
    /// The limit for the median response time.
    P50,
    /// The 90th percentile.
    P90,
    /// The 99th percentile.
    P99,
    /// The CPU time per request, of the service and the softirqs that serve it.
    Cpu,
}

impl Guarded {
    /// All guarded quantities.
    pub const ALL: [Self; 4] = [Self::P50, Self::P90, Self::P99, Self::Cpu];

    /// The quantity's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
            Self::Cpu => "cpu",
        }
    }
}

/// The limits of a guard: which quantities may grow, and by how much.
///
/// Written as `p99=+15%,cpu=+25%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The limit for the median response time.
    pub p50: Option<Growth>,
    /// The 90th percentile.
    pub p90: Option<Growth>,
    /// The 99th percentile.
    pub p99: Option<Growth>,
    /// The limit for the CPU time per request.
    pub cpu: Option<Growth>,
}

impl Limits {
    /// Iterates over the limits that are set.
    pub fn iter(&self) -> impl Iterator<Item = (Guarded, Growth)> {
        let of = |guarded: Guarded| match guarded {
            Guarded::P50 => self.p50,
            Guarded::P90 => self.p90,
            Guarded::P99 => self.p99,
            Guarded::Cpu => self.cpu,
        };
        Guarded::ALL
            .into_iter()
            .filter_map(move |guarded| Some((guarded, of(guarded)?)))
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// Whether no limit is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Sets a limit and returns the previous one.
    pub const fn set(&mut self, guarded: Guarded, growth: Growth) -> Option<Growth> {
        match guarded {
            Guarded::P50 => self.p50.replace(growth),
            Guarded::P90 => self.p90.replace(growth),
            Guarded::P99 => self.p99.replace(growth),
            Guarded::Cpu => self.cpu.replace(growth),
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (guarded, growth)) in self.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{}={growth}", guarded.as_str())?;
        }
        Ok(())
    }
}

impl FromStr for Limits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut limits = Self::default();
        for part in text.split(',') {
            let (name, growth) = part
                .split_once('=')
                .ok_or_else(|| format!("`{part}` names no limit: write p99=+15%,cpu=+25%"))?;
            let guarded = Guarded::ALL.into_iter().find(|guarded| guarded.as_str() == name);
            let guarded = guarded.ok_or_else(|| {
                format!(
                    "`{name}` cannot be guarded: expected {}",
                    Guarded::ALL.map(Guarded::as_str).join(", ")
                )
            })?;
            if let Some(before) = limits.set(guarded, growth.parse()?) {
                return Err(format!("{name} has two limits, {before} and {growth}"));
            }
        }
        Ok(limits)
    }
}

/// A guard: the limits that a change must not exceed, and how long they are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// How much each guarded quantity may grow.
    pub limits: Limits,
    /// How long the guard watches: [`Guard::WITHIN_LEAST`] to [`Guard::WITHIN_MOST`].
    pub within: Nanoseconds,
}

impl Default for Guard {
    fn default() -> Self {
        Self { limits: Limits::default(), within: Self::WITHIN }
    }
}

impl Guard {
    /// The shortest time that a guard may watch: seven pairs of windows, one more than the minimum for a
    /// decision.
    pub const WITHIN_LEAST: Nanoseconds = Nanoseconds::from_millis(20_000);

    /// The longest time.
    pub const WITHIN_MOST: Nanoseconds = Nanoseconds::from_millis(3_600_000);

    /// The default time.
    pub const WITHIN: Nanoseconds = Nanoseconds::from_millis(60_000);
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn limits_are_read_as_they_are_written() {
        for text in ["p99=+15%,cpu=+25%", "p50=+2.5%", "p50=+1%,p90=+10%,p99=+100%,cpu=+1000%"] {
            assert_eq!(text.parse::<Limits>().map(|limits| limits.to_string()).as_deref(), Ok(text));
        }
        assert_eq!("15%".parse::<Growth>().map(Growth::share), Ok(0.15));
    }

    #[test]
    fn what_is_no_limit_is_refused_with_what_to_write() {
        for (text, words) in [
            ("p99", "write p99=+15%,cpu=+25%"),
            ("p98=+15%", "expected p50, p90, p99, cpu"),
            ("p99=-15%", "write +1% to +1000%"),
            ("p99=15", "as in +15%"),
            ("p99=+0%", "+1% to"),
            ("p99=+1.55%", "+1% to"),
            ("p99=+99999999999%", "+1% to"),
            ("p99=+15%,p99=+25%", "p99 has two limits, +15% and +25%"),
            ("", "names no limit"),
        ] {
            let error = text.parse::<Limits>().expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
