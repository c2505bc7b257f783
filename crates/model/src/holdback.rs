//! Limits the share of the time for which netpolicy may withdraw the policy of a service, to measure what the
//! policy achieves.

use std::fmt;
use std::str::FromStr;

/// The share of the time for which a service may run without its policy, in thousandths: [`Holdback::LEAST`]
/// to [`Holdback::MOST`].
///
/// Written in percent: `1%`, `0.5%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holdback(u32);

impl Holdback {
    /// The smallest share: ten seconds without the policy every three hours.
    pub const LEAST: Self = Self(1);

    /// The largest share.
    pub const MOST: Self = Self(100);

    /// Returns the share, such as 0.01 for 1 %.
    pub fn share(self) -> f64 {
        f64::from(self.0) / 1_000.0
    }
}

/// `1%`, `0.5%`.
impl fmt::Display for Holdback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 10 {
            0 => write!(f, "{}%", self.0 / 10),
            tenth => write!(f, "{}.{tenth}%", self.0 / 10),
        }
    }
}

impl FromStr for Holdback {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a share of the time without the policy: write {} to {}, as in 1%",
                Self::LEAST,
                Self::MOST
            )
        };
        let digits = text.strip_suffix('%').ok_or_else(wrong)?;
        let (whole, tenth) = digits.split_once('.').unwrap_or((digits, "0"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(tenth) || tenth.len() > 1 || whole.len() > 3 {
            return Err(wrong());
        }
        let (whole, tenth): (u32, u32) = whole.parse().ok().zip(tenth.parse().ok()).ok_or_else(wrong)?;
        let share = Self(whole * 10 + tenth);
        if (Self::LEAST..=Self::MOST).contains(&share) { Ok(share) } else { Err(wrong()) }
    }
}

crate::as_text! { Holdback: "the share of the time without the policy, as in `1%`" }
