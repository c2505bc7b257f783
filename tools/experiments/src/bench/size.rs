//! Sizes, as written by the operator.

use std::fmt;
use std::str::FromStr;

/// A number of bytes: `1`, `5K`, `1M`, `1G`, in powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

/// The lengths of a request and its answer: `1`, `5K` for both, `1M/1` for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The request.
    pub request: u32,
    /// The answer.
    pub answer: u32,
}

/// The error for a text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotASize(String);

impl fmt::Display for NotASize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a size: write bytes as in 1, 5K, 1M", self.0)
    }
}

impl std::error::Error for NotASize {}

impl FromStr for Bytes {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        let wrong = || NotASize(text.to_owned());
        let units = [("K", 10), ("M", 20), ("G", 30)];
        let (digits, shift) = units
            .into_iter()
            .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))
            .unwrap_or((text, 0));
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(wrong)
    }
}

impl FromStr for Sizes {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        let side = |text: &str| {
            let Bytes(bytes) = text.parse()?;
            u32::try_from(bytes).map_err(|_| NotASize(text.to_owned()))
        };
        let (request, answer) = text.split_once('/').unwrap_or((text, text));
        Ok(Self { request: side(request)?, answer: side(answer)? })
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        f.pad(&match bytes {
            b if b >= 1 << 30 && b % (1 << 30) == 0 => format!("{} GB", b >> 30),
            b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MB", b >> 20),
            b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KB", b >> 10),
            b => format!("{b} B"),
        })
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Bytes(self.request.into()), Bytes(self.answer.into()))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn sizes_are_written_as_the_documents_write_them() {
        for (text, shown) in [("1", "1 B/1 B"), ("5K", "5 KB/5 KB"), ("1M/1", "1 MB/1 B")] {
            assert_eq!(text.parse::<Sizes>().expect(text).to_string(), shown);
        }
        assert_eq!("2G".parse(), Ok(Bytes(2 << 30)));
        for text in ["", "K", "1T", "-1", "5G", "1/2/3", "99999999999G"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }
}
