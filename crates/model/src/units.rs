//! Quantities with their units. Rounding is always explicit.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A time span in nanoseconds, the kernel's unit for `gro-flush-timeout` and `irq-suspend-timeout`.
///
/// Displayed and parsed with a unit (`20us`, `1.5ms`, `1s`), serialised as an integer of nanoseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanoseconds(pub u64);

impl Nanoseconds {
    /// No time, which means "off" for most kernel timeouts.
    pub const ZERO: Self = Self(0);

    /// Creates a span of whole microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros * 1_000)
    }

    /// Creates a span of whole milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// Returns the span in microseconds; `None` if that would round.
    pub const fn exact_micros(self) -> Option<u64> {
        if self.0.is_multiple_of(1_000) { Some(self.0 / 1_000) } else { None }
    }

    /// Returns the span in seconds, rounded to the precision of a double. For rates and reports, never for
    /// settings.
    #[expect(clippy::cast_precision_loss, reason = "spans beyond 2^53 ns (104 days) lose nanoseconds only")]
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Whether the span is zero, which means "off" for most kernel timeouts.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0 => return f.pad("0"),
            n if n >= 1_000_000_000 => (1_000_000_000, "s"),
            n if n >= 1_000_000 => (1_000_000, "ms"),
            n if n >= 1_000 => (1_000, "us"),
            _ => (1, "ns"),
        };
        let (whole, mut fraction) = (self.0 / unit, self.0 % unit);
        if fraction == 0 {
            return f.pad(&format!("{whole}{name}"));
        }
        let mut digits = unit.ilog10() as usize;
        while fraction % 10 == 0 {
            fraction /= 10;
            digits -= 1;
        }
        f.pad(&format!("{whole}.{fraction:0digits$}{name}"))
    }
}

/// The error for text that is not a span of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotASpan(pub String);

impl fmt::Display for NotASpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a span of time: write a number and a unit, as in 20us, 1.5ms or 1s", self.0)
    }
}

impl std::error::Error for NotASpan {}

impl FromStr for Nanoseconds {
    type Err = NotASpan;

    /// Parses `0`, or a decimal number with one of the units `ns`, `us`, `µs`, `ms`, `s`. A fraction of a
    /// nanosecond is an error.
    fn from_str(text: &str) -> Result<Self, NotASpan> {
        let wrong = || NotASpan(text.to_owned());
        let trimmed = text.trim();
        if trimmed == "0" {
            return Ok(Self::ZERO);
        }
        let split = trimmed.find(|c: char| c.is_alphabetic()).ok_or_else(wrong)?;
        let (number, unit) = trimmed.split_at(split);
        let digits_of_unit: u32 = match unit {
            "ns" => 0,
            "us" | "µs" | "μs" => 3,
            "ms" => 6,
            "s" => 9,
            _ => return Err(wrong()),
        };
        let number = number.trim_end();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || number.ends_with('.') {
            return Err(wrong());
        }
        let fraction = fraction.trim_end_matches('0');
        let scale = digits_of_unit
            .checked_sub(u32::try_from(fraction.len()).map_err(|_| wrong())?)
            .ok_or_else(wrong)?;
        let mantissa: u64 = format!("{whole}{fraction}").parse().map_err(|_| wrong())?;
        10_u64.checked_pow(scale).and_then(|s| mantissa.checked_mul(s)).map(Self).ok_or_else(wrong)
    }
}

/// The number of consecutive empty polls before a device's IRQ is re-armed: the unit of
/// `napi_defer_hard_irqs`. 0 disables deferral.
///
/// Kernel: 5.8, `net/core/dev.c` `napi_complete_done()`; range 0..=2147483647 (`napi-set` policy, `s32-max`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct EmptyPolls(pub u32);

impl fmt::Display for EmptyPolls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A kernel release in comparable form, such as `6.18.44`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
pub struct KernelVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number; 0 if the release has none.
    pub patch: u32,
}

impl KernelVersion {
    /// The version of a release that cannot be parsed, which is ordered before all others.
    pub const UNKNOWN: Self = Self::since(0, 0);

    /// Returns the first release of a series: `since(6, 13)` is Linux 6.13.
    pub const fn since(major: u32, minor: u32) -> Self {
        Self { major, minor, patch: 0 }
    }

    /// Parses `uname -r`: up to three numbers, then the distribution's suffix.
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        let major = numbers.next()?.ok()?;
        let minor = numbers.next()?.ok()?;
        let patch = numbers.next().and_then(Result::ok).unwrap_or(0);
        Some(Self { major, minor, patch })
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.patch != 0 {
            write!(f, ".{}", self.patch)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_span_survives_being_written_and_read(n in any::<u64>()) {
            let span = Nanoseconds(n);
            prop_assert_eq!(span.to_string().parse::<Nanoseconds>(), Ok(span));
        }
    }

    #[test]
    fn spans_are_written_in_the_largest_unit_that_fits() {
        for (ns, text) in [
            (0, "0"),
            (999, "999ns"),
            (20_000, "20us"),
            (1_500_000, "1.5ms"),
            (2_000_000_001, "2.000000001s"),
        ] {
            assert_eq!(Nanoseconds(ns).to_string(), text);
        }
    }

    #[test]
    fn a_span_without_a_unit_or_with_too_fine_a_fraction_is_refused() {
        for text in ["20", "us", "", "1.5", "-1us", "1.us", "0.5ns", "20 sec", "99999999999999s", "1e3us"] {
            assert!(text.parse::<Nanoseconds>().is_err(), "{text}");
        }
    }

    #[test]
    fn kernel_versions_compare_by_number() {
        let v = |s| KernelVersion::parse(s).expect(s);
        assert!(v("6.9.1") < v("6.13.0-rc1"));
        assert_eq!(v("7.2-debian"), KernelVersion::since(7, 2));
        assert_eq!(KernelVersion::parse("unknown"), None);
    }
}
