//! Defines the pace of a workload: when its requests are sent and over which connections, independent of
//! their content.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Nanoseconds;

/// When a workload's requests are sent, and over which connections.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pace {
    /// The number of client threads, each with a separate epoll. Range 1 to 256.
    pub threads: u32,
    /// The number of TCP connections of all threads together; the threads' shares differ by at most one.
    /// At least one and at most 16 384 for each thread.
    pub flows: u32,
    /// The maximum number of outstanding requests per connection. Range 1 to 1024.
    pub depth: u32,
    /// The distribution of the gaps between the requests of a connection. In a closed loop there are no gaps.
    pub arrivals: Arrivals,
    /// How long the client sends requests before the window opens.
    pub warmup: Nanoseconds,
    /// The length of the measurement window: requests that are *due* in it count.
    pub window: Nanoseconds,
    /// How long the client waits for answers after the window.
    pub drain: Nanoseconds,
    /// The seed of all random numbers.
    pub seed: u64,
    /// How a client thread waits.
    pub waiting: Waiting,
}

impl Pace {
    /// The maximum number of client threads.
    pub const THREADS_MAX: u32 = 256;
    /// The maximum number of connections of one thread.
    pub const CONNECTIONS_MAX: u32 = 16_384;
    /// The maximum number of outstanding requests per connection.
    pub const DEPTH_MAX: u32 = 1_024;
    /// The maximum length of the window, the warm-up or the drain.
    pub const SPAN_MAX: Nanoseconds = Nanoseconds(3_600_000_000_000);

    /// Returns the number of connections of a thread.
    pub fn flows_of(&self, thread: u32) -> u32 {
        self.flows / self.threads + u32::from(thread < self.flows % self.threads)
    }

    /// Checks that every option is within its range.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that is out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        within("threads", self.threads, 1, Self::THREADS_MAX)?;
        let most = self.threads.saturating_mul(Self::CONNECTIONS_MAX);
        within("flows", self.flows, self.threads, most)?;
        within("depth", self.depth, 1, Self::DEPTH_MAX)?;
        span("warmup", self.warmup, Nanoseconds::ZERO)?;
        span("window", self.window, Nanoseconds::from_millis(1))?;
        span("drain", self.drain, Nanoseconds::ZERO)
    }
}

/// How a client thread waits for answers and for the time at which the next request is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waiting {
    /// Polls without sleeping: the requests are least late, at the cost of a whole CPU.
    #[default]
    Spin,
    /// Sleeps in `epoll_pwait2` until shortly before the next due time, then polls. The time between waking
    /// and the due time follows the recent wake-up delay.
    Sleep,
    /// Sleeps in `epoll_pwait2` until an answer arrives or a request is due, and never polls. Requests are
    /// late by the wake-up time, tens of microseconds, and the client uses as much CPU time as an ordinary
    /// client. Meant for runs that measure the CPU time of the whole machine.
    Block,
}

/// The distribution of the gaps between the requests of a connection; the offered load determines its mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Every gap is the mean.
    Fixed,
    /// A Poisson process.
    Exponential,
    /// Facebook's distribution: generalized Pareto with location 0 and shape 0.154971, scaled to the mean.
    FbIa,
}

impl Arrivals {
    const FB_IA_SHAPE: f64 = 0.154_971;

    /// Returns the gap at quantile `u`, in the unit of `mean`. `u` is in (0, 1].
    pub fn gap(self, mean: f64, u: f64) -> f64 {
        match self {
            Self::Fixed => mean,
            Self::Exponential => -mean * u.ln(),
            // The mean of a generalized Pareto distribution at location 0 is scale / (1 - shape).
            Self::FbIa => GeneralizedPareto {
                location: 0.0,
                scale: mean * (1.0 - Self::FB_IA_SHAPE),
                shape: Self::FB_IA_SHAPE,
            }
            .draw(u),
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fixed => "fixed",
            Self::Exponential => "exponential",
            Self::FbIa => "fb_ia",
        })
    }
}

impl FromStr for Arrivals {
    type Err = NotADistribution;

    fn from_str(text: &str) -> Result<Self, NotADistribution> {
        match text {
            "fixed" => Ok(Self::Fixed),
            "exponential" => Ok(Self::Exponential),
            "fb_ia" => Ok(Self::FbIa),
            _ => Err(NotADistribution { text: text.to_owned(), known: "fixed, exponential, fb_ia" }),
        }
    }
}

crate::as_text! { Arrivals: "how requests arrive" }

/// The error for text that names no distribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotADistribution {
    /// The text.
    pub text: String,
    /// The known names.
    pub known: &'static str,
}

impl fmt::Display for NotADistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a distribution: expected {}", self.text, self.known)
    }
}

impl std::error::Error for NotADistribution {}

/// A generalized Pareto distribution; the shape must not be zero.
pub(crate) struct GeneralizedPareto {
    pub(crate) location: f64,
    pub(crate) scale: f64,
    pub(crate) shape: f64,
}

impl GeneralizedPareto {
    pub(crate) fn draw(&self, u: f64) -> f64 {
        self.location + self.scale * (u.powf(-self.shape) - 1.0) / self.shape
    }
}

/// The error for an option that is out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// The option's name.
    pub option: &'static str,
    /// The requested value.
    pub value: String,
    /// The valid range.
    pub range: String,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} is out of range: {}", self.option, self.value, self.range)
    }
}

impl std::error::Error for OutOfRange {}

/// Checks that a number is within its range.
pub(crate) fn within(option: &'static str, value: u32, min: u32, max: u32) -> Result<(), OutOfRange> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(OutOfRange { option, value: value.to_string(), range: format!("{min}..={max}") })
    }
}

/// Checks that a time span is between `min` and [`Pace::SPAN_MAX`].
pub(crate) fn span(option: &'static str, value: Nanoseconds, min: Nanoseconds) -> Result<(), OutOfRange> {
    if (min..=Pace::SPAN_MAX).contains(&value) {
        Ok(())
    } else {
        let range = format!("{min}..={}", Pace::SPAN_MAX);
        Err(OutOfRange { option, value: value.to_string(), range })
    }
}
