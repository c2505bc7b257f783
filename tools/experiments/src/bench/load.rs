//! The offered load.

use std::fmt;
use std::str::FromStr;

use model::OfferedLoad;

/// A load, as written by the operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// A percentage of the capacity of the kernel's default delivery mode on this machine.
    Share(u32),
    /// An absolute load.
    Offered(OfferedLoad),
}

impl Load {
    /// Closed loop.
    pub const MAX: Self = Self::Offered(OfferedLoad::Max);

    /// Returns whether the load depends on the machine's capacity.
    pub const fn is_share(self) -> bool {
        matches!(self, Self::Share(_))
    }

    /// Returns the load on a machine with this capacity. Shares are rounded to hundreds of requests per
    /// second, because they are displayed and a user may want to enter them again.
    pub fn on(self, requests_per_second: f64) -> OfferedLoad {
        match self {
            Self::Offered(load) => load,
            Self::Share(percent) => {
                let rate = requests_per_second * f64::from(percent) / 100.0;
                OfferedLoad::PerSecond(((rate / 100.0).round() * 100.0).max(100.0))
            }
        }
    }
}

/// The error for a text that is not a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotALoad(String);

impl fmt::Display for NotALoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a load: write requests per second as in 50K, a share of base's capacity as in 40% (1% to 200%), or max",
            self.0
        )
    }
}

impl std::error::Error for NotALoad {}

impl FromStr for Load {
    type Err = NotALoad;

    fn from_str(text: &str) -> Result<Self, NotALoad> {
        let wrong = || NotALoad(text.to_owned());
        match text.trim().strip_suffix('%') {
            Some(percent) => match percent.parse() {
                Ok(percent @ 1..=200) => Ok(Self::Share(percent)),
                _ => Err(wrong()),
            },
            None => text.parse().map(Self::Offered).map_err(|_| wrong()),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_share_is_of_what_the_machine_bears() {
        let load: Load = "40%".parse().expect("a share");
        assert_eq!(load.on(123_456.0), OfferedLoad::PerSecond(49_400.0));
        assert_eq!("max".parse::<Load>().expect("max").on(1.0), OfferedLoad::Max);
        assert_eq!("50K".parse::<Load>().expect("a rate").on(1.0), OfferedLoad::PerSecond(50_000.0));
        assert_eq!(Load::Share(1).on(10.0), OfferedLoad::PerSecond(100.0), "never nothing");
    }

    #[test]
    fn what_is_no_load_is_refused_with_examples() {
        for text in ["", "%", "0%", "201%", "fast", "-5"] {
            let error = text.parse::<Load>().expect_err(text);
            assert!(error.to_string().contains("as in 40%"), "{error}");
        }
    }
}
