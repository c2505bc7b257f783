//! Names the policies, which say what traffic is optimized for.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name of a policy, which says what traffic is optimized for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// Short response times.
    Latency,
    /// Throughput.
    Bulk,
    /// Throughput with the least CPU time.
    Cpu,
    /// Several policies that share a device.
    Mix,
    /// Low power consumption.
    Power,
    /// The kernel's defaults; revokes the request of a less specific section.
    None,
}

impl PolicyName {
    /// All policies, in the order of the documentation.
    pub const ALL: [Self; 6] = [Self::Latency, Self::Bulk, Self::Cpu, Self::Mix, Self::Power, Self::None];

    /// The policy's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bulk => "bulk",
            Self::Cpu => "cpu",
            Self::Mix => "mix",
            Self::Power => "power",
            Self::None => "none",
        }
    }

    /// Describes the purpose of the policy in one line.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Latency => "short response times",
            Self::Bulk => "throughput",
            Self::Cpu => "few CPU cycles per request, at longer response times",
            Self::Mix => "a device shared by services with different policies",
            Self::Power => "little energy: few interrupts, deep sleep",
            Self::None => "nothing is set",
        }
    }

    /// Whether the policy optimizes traffic: `mix` divides a device among other policies, and `none` keeps
    /// the kernel's defaults.
    pub const fn optimizes(self) -> bool {
        !matches!(self, Self::Mix | Self::None)
    }

    /// Iterates over the policies that optimize traffic.
    pub fn optimizing() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|policy| policy.optimizes())
    }

    /// Returns the number by which applications request the policy: the number in the kernel patches of 2016,
    /// with one addition. `include/netpolicy.h` has the same numbers.
    pub const fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Cpu => 1,
            Self::Bulk => 2,
            Self::Latency => 3,
            Self::Mix => 5,
            Self::Power => 6,
        }
    }

    /// Returns the policy with a number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.number() == number)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The error for text that is not a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAPolicy(pub String);

impl fmt::Display for NotAPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a policy: expected {}",
            self.0,
            PolicyName::ALL.map(PolicyName::as_str).join(", ")
        )
    }
}

impl std::error::Error for NotAPolicy {}

impl FromStr for PolicyName {
    type Err = NotAPolicy;

    fn from_str(text: &str) -> Result<Self, NotAPolicy> {
        Self::ALL.into_iter().find(|p| p.as_str() == text).ok_or_else(|| NotAPolicy(text.to_owned()))
    }
}
