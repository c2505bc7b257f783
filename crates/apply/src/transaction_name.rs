//! The name of a transaction, which is also the name of its directory.

use std::fmt;
use std::str::FromStr;

use crate::moment::{Moment, UNIX_MICROS_MAX, Utc};

/// The name of a transaction and of its directory: `20261121T040500.123456Z-1a2b`.
///
/// Names sort in the order of the transactions. The first part is the time of the transaction (UTC). If the
/// clock was set back, it is one microsecond after the previous transaction. The second part identifies the
/// program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionName {
    unix_micros: u64,
    tag: u16,
}

impl TransactionName {
    /// Returns the part of the name that identifies the program.
    pub(crate) const fn tag(self) -> u16 {
        self.tag
    }

    /// Whether both names have the same tag, which suggests that the same run of a program created them.
    pub const fn is_of_same_program(self, other: Self) -> bool {
        self.tag == other.tag
    }

    /// Creates the name of a transaction that begins at this moment. The name sorts after all existing ones,
    /// of which `newest` is the last.
    pub(crate) fn after(newest: Option<Self>, at: Moment, tag: u16) -> Self {
        let earliest = newest.map_or(0, |n| n.unix_micros + 1);
        Self { unix_micros: at.unix_micros.max(earliest).min(UNIX_MICROS_MAX), tag }
    }
}

impl fmt::Display for TransactionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Utc { year, month, day, hour, minute, second, micro } = Utc::from_unix_micros(self.unix_micros);
        let tag = self.tag;
        f.pad(&format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{micro:06}Z-{tag:04x}"))
    }
}

/// The error for text that is not the name of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the name of a transaction, such as 20261121T040500.123456Z-1a2b")]
pub struct NotATransaction(pub String);

impl FromStr for TransactionName {
    type Err = NotATransaction;

    fn from_str(text: &str) -> Result<Self, NotATransaction> {
        let wrong = || NotATransaction(text.to_owned());
        let number = |from: usize, to: usize| -> Result<u64, NotATransaction> {
            let digits =
                text.get(from..to).filter(|d| d.bytes().all(|b| b.is_ascii_digit())).ok_or_else(wrong)?;
            digits.parse().map_err(|_| wrong())
        };
        let utc = Utc {
            year: number(0, 4)?,
            month: number(4, 6)?,
            day: number(6, 8)?,
            hour: number(9, 11)?,
            minute: number(11, 13)?,
            second: number(13, 15)?,
            micro: number(16, 22)?,
        };
        let unix_micros = utc.to_unix_micros().ok_or_else(wrong)?;
        let tag = text.get(24..).and_then(|t| u16::from_str_radix(t, 16).ok()).ok_or_else(wrong)?;
        let name = Self { unix_micros, tag };
        // Compare the text with the formatted name: this also checks the characters between the numbers.
        if name.to_string() == text { Ok(name) } else { Err(wrong()) }
    }
}

model::as_text! { TransactionName: "the name of a transaction: when it began, and a number" }

#[cfg(test)]
mod test {
    use model::Nanoseconds;

    use super::*;

    #[test]
    fn a_name_sorts_by_time_and_survives_being_written_and_read() {
        let at = |unix_micros| Moment { unix_micros, since_boot: Nanoseconds::ZERO };
        let first = TransactionName::after(None, at(1_795_233_900_123_456), 0x1a2b);
        assert_eq!(first.to_string(), "20261121T040500.123456Z-1a2b");
        assert_eq!(first.to_string().parse(), Ok(first));
        let set_back = TransactionName::after(Some(first), at(1_000), 0x0001);
        assert_eq!(set_back.to_string(), "20261121T040500.123457Z-0001");
        assert!(set_back > first && set_back.to_string() > first.to_string());
    }

    #[test]
    fn a_text_that_is_no_name_is_refused_before_it_becomes_a_path() {
        for text in [
            "",
            "..",
            "../../etc/passwd",
            "20261121T040500.123456Z-1A2B",
            "20261121T040500.123456Z-1a2b/",
            "20261121t040500.123456Z-1a2b",
            "20261321T040500.123456Z-1a2b",
            "20261121T040500.123456Z-+a2b",
            "20261121T040500.123456Z-ä2b",
            "2026112äT040500.123456Z-1a2b",
        ] {
            assert_eq!(text.parse::<TransactionName>(), Err(NotATransaction(text.to_owned())));
        }
    }
}
