//! Selects devices for a section of a policy file that does not name a single device: `[device."eth*"]`, or
//! `match = { … }`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::glob::{Glob, Patterns};
use crate::host::Device;

/// The conditions for the devices to which a request applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSelector {
    /// The conditions that a device must all meet.
    #[serde(rename = "match")]
    pub meets: Vec<DeviceCondition>,
    /// The conditions of which each excludes a device that meets it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not: Vec<DeviceCondition>,
    /// Whether the devices are selected by the name of the section.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_name: bool,
}

/// One condition on a device.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceCondition {
    /// The name.
    Name(Patterns),
    /// The driver, or the kind of a virtual device, such as `mlx5_core` or `veth`.
    Driver(Patterns),
    /// The address of the PCI device to which the device belongs, such as `0000:3b:00.*`.
    Pci(Patterns),
    /// The MAC address, in lower case.
    Mac(Patterns),
    /// The traffic that the device carries.
    Carries(Carries),
    /// The link speed.
    Speed(SpeedBound),
}

impl DeviceCondition {
    /// Returns the condition's key in a policy file, without its table.
    pub const fn key(&self) -> &'static str {
        match self {
            Self::Name(_) => "name",
            Self::Driver(_) => "driver",
            Self::Pci(_) => "pci",
            Self::Mac(_) => "mac",
            Self::Carries(_) => "carries",
            Self::Speed(_) => "speed",
        }
    }

    /// Whether a device meets the condition. An unknown property meets no condition.
    pub fn is_met_by(&self, device: &Device) -> bool {
        match self {
            Self::Name(names) => names.meet(device.id.name.as_str()),
            Self::Driver(drivers) => drivers.meet(&device.kind),
            Self::Pci(addresses) => device.link.pci.as_deref().is_some_and(|pci| addresses.meet(pci)),
            Self::Mac(addresses) => device.link.mac.as_deref().is_some_and(|mac| addresses.meet(mac)),
            Self::Carries(Carries::DefaultRoute) => device.link.default_route,
            Self::Speed(bound) => device.link.speed_mbps.is_some_and(|speed| bound.allows(speed)),
        }
    }
}

impl fmt::Display for DeviceCondition {
    /// `driver mlx5_core`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.key())?;
        match self {
            Self::Name(patterns) | Self::Driver(patterns) | Self::Pci(patterns) | Self::Mac(patterns) => {
                patterns.fmt(f)
            }
            Self::Carries(what) => what.fmt(f),
            Self::Speed(bound) => bound.fmt(f),
        }
    }
}

impl DeviceSelector {
    /// Selects the devices whose names match a pattern.
    pub fn by_name(glob: Glob) -> Self {
        Self { meets: vec![DeviceCondition::Name(glob.into())], not: Vec::new(), by_name: true }
    }

    /// Whether the selector matches this device. The loopback device matches no pattern: a section must name it.
    pub fn selects(&self, device: &Device) -> bool {
        device.id.name.as_str() != LOOPBACK
            && self.meets.iter().all(|condition| condition.is_met_by(device))
            && !self.not.iter().any(|condition| condition.is_met_by(device))
    }

    /// Returns the precedence of the section.
    pub fn precedence(&self) -> Precedence {
        if self.by_name {
            let literals = |condition: &DeviceCondition| match condition {
                DeviceCondition::Name(names) => names.iter().map(Glob::literals).max(),
                _ => None,
            };
            return Precedence::Pattern { literals: self.meets.iter().find_map(literals).unwrap_or(0) };
        }
        let conditions = u32::try_from(self.meets.len() + self.not.len()).unwrap_or(u32::MAX);
        Precedence::Match { conditions }
    }
}

impl fmt::Display for DeviceSelector {
    /// Formats the conditions, such as `driver mlx5_core, speed >=25G, not pci 0000:3b:00.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meets = self.meets.iter().map(ToString::to_string);
        let not = self.not.iter().map(|condition| format!("not {condition}"));
        f.write_str(&meets.chain(not).collect::<Vec<_>>().join(", "))
    }
}

/// The name of the loopback device, which no pattern matches. Kernel: `drivers/net/loopback.c`
/// `loopback_net_init()`.
const LOOPBACK: &str = "lo";

/// How specific a section is. Of several matching sections, the most specific one applies as a whole; equally
/// specific sections are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precedence {
    /// A section with a pattern for names, as in `[device."eth*"]`: the more literal characters it has, the
    /// more specific it is.
    Pattern {
        /// The number of literal characters in the pattern.
        literals: u32,
    },
    /// A section with `match = { … }`: the more conditions it has, the more specific it is.
    Match {
        /// The number of conditions, including those in `not`.
        conditions: u32,
    },
    /// A section with the device's exact name.
    Name,
}

impl fmt::Display for Precedence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern { literals } => write!(f, "a pattern with {literals} literal character(s)"),
            Self::Match { conditions } => write!(f, "a match with {conditions} condition(s)"),
            Self::Name => f.write_str("its own name"),
        }
    }
}

/// The traffic that a device carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carries {
    /// The traffic of the main table's default route, IPv4 or IPv6, even if the route uses a device on top of
    /// this one.
    DefaultRoute,
}

impl Carries {
    /// All values.
    pub const ALL: [Self; 1] = [Self::DefaultRoute];

    /// Returns the word that policy files use for the traffic.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DefaultRoute => "default-route",
        }
    }
}

impl fmt::Display for Carries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A bound on the link speed, such as `25G`, `>=25G` or `<1000M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeedBound {
    relation: Relation,
    mbps: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Equal,
    AtLeast,
    AtMost,
    Above,
    Below,
}

/// The relations by their spelling, longer ones first, so that `>` does not match the beginning of `>=`.
const RELATIONS: [(&str, Relation); 5] = [
    (">=", Relation::AtLeast),
    ("<=", Relation::AtMost),
    (">", Relation::Above),
    ("<", Relation::Below),
    ("=", Relation::Equal),
];

impl SpeedBound {
    /// Whether this link speed, in megabits per second, meets the bound.
    pub const fn allows(self, mbps: u32) -> bool {
        match self.relation {
            Relation::Equal => mbps == self.mbps,
            Relation::AtLeast => mbps >= self.mbps,
            Relation::AtMost => mbps <= self.mbps,
            Relation::Above => mbps > self.mbps,
            Relation::Below => mbps < self.mbps,
        }
    }
}

/// The error for text that is not a bound on the link speed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotASpeed(pub String);

impl fmt::Display for NotASpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a link speed: write `25G`, `>=25G` or `<1000M`", self.0.escape_debug())
    }
}

impl std::error::Error for NotASpeed {}

impl FromStr for SpeedBound {
    type Err = NotASpeed;

    fn from_str(text: &str) -> Result<Self, NotASpeed> {
        let wrong = || NotASpeed(text.chars().take(32).collect());
        let found = RELATIONS.iter().find_map(|(word, relation)| Some((text.strip_prefix(word)?, *relation)));
        let (rest, relation) = found.unwrap_or((text, Relation::Equal));
        let rest = rest.trim();
        let (number, factor) = match rest.strip_suffix('G') {
            Some(number) => (number, 1000),
            None => (rest.strip_suffix('M').ok_or_else(wrong)?, 1),
        };
        let number: u32 = number.parse().map_err(|_| wrong())?;
        let mbps = number.checked_mul(factor).filter(|mbps| *mbps > 0).ok_or_else(wrong)?;
        Ok(Self { relation, mbps })
    }
}

impl fmt::Display for SpeedBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relation = match self.relation {
            Relation::Equal => "",
            _ => RELATIONS.iter().find(|(_, r)| *r == self.relation).map_or("", |(word, _)| word),
        };
        match self.mbps {
            mbps if mbps.is_multiple_of(1000) => write!(f, "{relation}{}G", mbps / 1000),
            mbps => write!(f, "{relation}{mbps}M"),
        }
    }
}

crate::as_text! {
    SpeedBound: "a link speed or a bound on it: `25G`, `>=25G`, `<1000M`",
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn speeds_are_compared_in_megabits() {
        for (text, mbps, allows) in [
            (">=25G", 25_000, true),
            (">=25G", 10_000, false),
            ("<1G", 100, true),
            ("100M", 100, true),
            ("=10G", 10_000, true),
            ("> 10G", 10_000, false),
            ("<=2500M", 2500, true),
        ] {
            let bound: SpeedBound = text.parse().expect(text);
            assert_eq!(bound.allows(mbps), allows, "{text} {mbps}");
            assert_eq!(bound.to_string().parse(), Ok(bound), "{text}");
        }
        for text in ["", "25", "fast", ">=", "0G", "5000000G", "-1G"] {
            assert!(text.parse::<SpeedBound>().is_err(), "{text}");
        }
    }

    fn precedence() -> impl Strategy<Value = Precedence> {
        prop_oneof![
            (0_u32..20).prop_map(|literals| Precedence::Pattern { literals }),
            (0_u32..8).prop_map(|conditions| Precedence::Match { conditions }),
            Just(Precedence::Name),
        ]
    }

    proptest! {
        #[test]
        fn of_two_precedences_one_is_greater_unless_they_are_the_same(a in precedence(), b in precedence(), c in precedence()) {
            prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
            prop_assert_eq!(a.cmp(&b).is_eq(), a == b);
            if a <= b && b <= c {
                prop_assert!(a <= c);
            }
        }
    }
}
