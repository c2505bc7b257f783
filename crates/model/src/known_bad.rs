//! Describes known faults of kernels and drivers, as data with sources.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, de};

use crate::host::Host;
use crate::units::KernelVersion;

/// The known faults, by name.
pub type KnownFaults = BTreeMap<String, KnownFault>;

/// A fault of kernels or drivers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct KnownFault {
    /// The releases that have the fault; empty if, as far as is known, every release has it.
    #[serde(default)]
    pub kernels: Vec<ReleaseRange>,
    /// The drivers that have the fault ([`crate::host::Device::kind`]); empty if the fault is in the kernel
    /// itself.
    #[serde(default)]
    pub drivers: Vec<String>,
    /// The condition under which the fault is harmful.
    pub when: When,
    /// The effect of the fault.
    pub what: String,
    /// The remedy. `{device}` stands for the device, and `{cpus}` for the number of CPUs that are not
    /// isolated.
    pub remedy: String,
    /// The upstream commit that fixes the fault, if known.
    #[serde(default)]
    pub fix: Option<String>,
    /// The places where the fault is described.
    pub sources: Vec<String>,
}

/// A condition under which a fault is harmful.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    /// On every host.
    Always,
    /// An epoll prefers busy polling, or a policy requests it.
    BusyPoll,
    /// At least [`BPF_PROGRAMS_MANY`] BPF programs are loaded.
    ManyBpfPrograms,
    /// An interrupt of the device is delivered to an isolated CPU.
    InterruptOnIsolatedCpu,
}

/// On some kernels, removing this many BPF programs or more at the same time is dangerous.
pub const BPF_PROGRAMS_MANY: u32 = 1000;

/// Whether a kernel has a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The kernel has the fault.
    Yes,
    /// It is unknown whether the kernel has the fault, because the distribution backports changes without
    /// changing the release number.
    Unclear,
    /// The kernel does not have the fault.
    No,
}

/// A range of upstream releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRange {
    /// The first release with the fault.
    pub from: Release,
    /// The first release after `from` without the fault.
    pub before: Release,
}

/// An upstream release or release candidate, such as `6.14.4` or `6.15-rc3`. A candidate is ordered before
/// its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// The version.
    pub version: KernelVersion,
    /// The number of the release candidate; [`Release::FINAL`] for a final release.
    candidate: u32,
}

impl Release {
    /// A number that is greater than that of any release candidate.
    const FINAL: u32 = u32::MAX;

    /// Parses `uname -r`: `6.14.4-arch1-1`, `6.15.0-rc3`, `6.15.0-0.rc3.30.fc43.x86_64`,
    /// `6.15.0-061500rc3-generic`.
    pub fn parse(release: &str) -> Option<Self> {
        // In `6.15-rc3`, the 3 belongs to `-rc3`; it is not the third number of the version.
        let numbers = release.split('-').next().unwrap_or_default();
        let version = KernelVersion::parse(numbers)?;
        Some(Self { version, candidate: candidate(release).unwrap_or(Self::FINAL) })
    }

    /// Whether the text of a release hides which fixes the distribution has backported: its third number
    /// stays 0, and a number of the distribution follows, as in `6.14.0-27-generic`, `5.14.0-570.el9` and
    /// `6.1.0-37-amd64`. Fedora uses upstream's numbers.
    fn hides_backports(release: &str) -> bool {
        let Some((numbers, suffix)) = release.split_once('-') else { return false };
        let third = numbers.split('.').nth(2);
        third == Some("0")
            && suffix.starts_with(|c: char| c.is_ascii_digit())
            && candidate(release).is_none()
            && !release.contains(".fc")
    }
}

/// Finds the number after `rc`, unless `rc` is part of a word.
fn candidate(release: &str) -> Option<u32> {
    release.match_indices("rc").find_map(|(at, _)| {
        let before = release.get(..at)?.chars().next_back()?;
        let digits: String = release.get(at + 2..)?.chars().take_while(char::is_ascii_digit).collect();
        if before.is_ascii_alphabetic() { None } else { digits.parse().ok() }
    })
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.version.fmt(f)?;
        if self.candidate == Self::FINAL { Ok(()) } else { write!(f, "-rc{}", self.candidate) }
    }
}

impl<'de> Deserialize<'de> for Release {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom(format!("`{text}` is not a kernel release")))
    }
}

impl KnownFault {
    /// Whether the kernel with this `uname -r` has the fault. For a release that cannot be parsed, only
    /// faults of all releases count.
    pub fn presence(&self, release: &str) -> Presence {
        if self.kernels.is_empty() {
            return Presence::Yes;
        }
        let Some(running) = Release::parse(release) else { return Presence::No };
        let series = |one: Release| (one.version.major, one.version.minor);
        let hides = Release::hides_backports(release);
        let whole = |range: &ReleaseRange| {
            range.from.version.patch == 0
                && range.from.candidate == Release::FINAL
                && series(range.from) <= series(running)
                && series(running) < series(range.before)
        };
        let contains = |range: &ReleaseRange| range.from <= running && running < range.before;
        if self.kernels.iter().any(|range| if hides { whole(range) } else { contains(range) }) {
            Presence::Yes
        } else if hides
            && self
                .kernels
                .iter()
                .any(|range| series(range.from) == series(running) && range.before > running)
        {
            Presence::Unclear
        } else {
            Presence::No
        }
    }

    /// Describes the affected releases and the fix, for display; `None` if every release is affected.
    pub fn affected(&self) -> Option<String> {
        let ranges: Vec<String> =
            self.kernels.iter().map(|range| format!("{} until {}", range.from, range.before)).collect();
        let fix = self.fix.as_ref().map_or_else(String::new, |fix| format!("; fixed by commit {fix}"));
        (!ranges.is_empty()).then(|| format!("affected: Linux {}{fix}", ranges.join(", ")))
    }

    /// Returns the remedy, filled in for this device.
    pub fn remedy_on(&self, device: &str, housekeeping: usize) -> String {
        self.remedy.replace("{device}", device).replace("{cpus}", &housekeeping.max(1).to_string())
    }
}

/// Returns the number of online CPUs that are not isolated.
pub fn housekeeping_cpus(host: &Host) -> usize {
    host.topology.online.difference(&host.topology.isolated).len()
}

#[cfg(test)]
mod test {
    use super::*;

    fn fault(ranges: &[(&str, &str)]) -> KnownFault {
        let release = |text: &str| Release::parse(text).expect("a release");
        KnownFault {
            kernels: ranges
                .iter()
                .map(|(from, before)| ReleaseRange { from: release(from), before: release(before) })
                .collect(),
            drivers: Vec::new(),
            when: When::Always,
            what: String::new(),
            remedy: String::new(),
            fix: None,
            sources: Vec::new(),
        }
    }

    #[test]
    fn candidates_come_before_their_release_however_the_distribution_spells_them() {
        for (release, shown) in [
            ("6.15.0-rc3", "6.15-rc3"),
            ("6.15-rc3-amd64", "6.15-rc3"),
            ("6.15.0-rc3-00012-g0123abcd", "6.15-rc3"),
            ("6.15.0-0.rc3.20250424gita79be02bba5c.31.fc43.x86_64", "6.15-rc3"),
            ("6.15.0-061500rc3-generic", "6.15-rc3"),
            ("6.14.4-arch1-1", "6.14.4"),
            ("6.14.4-march2", "6.14.4"),
            ("6.14.4", "6.14.4"),
        ] {
            assert_eq!(Release::parse(release).expect(release).to_string(), shown, "{release}");
        }
        let at = |text| Release::parse(text).expect("a release");
        assert!(
            at("6.14.99") < at("6.15-rc1")
                && at("6.15-rc1") < at("6.15-rc10")
                && at("6.15-rc10") < at("6.15")
        );
        assert_eq!(Release::parse("next-20250424"), None);
        assert_eq!(Release::parse(""), None);
    }

    #[test]
    fn a_release_has_a_fault_if_upstream_had_it_there_or_perhaps_if_its_number_hides_backports() {
        let epoll = fault(&[("6.14.4", "6.14.8"), ("6.15-rc3", "6.15-rc7")]);
        for (release, presence) in [
            ("6.14.3-arch1-1", Presence::No),
            ("6.14.4", Presence::Yes),
            ("6.14.5-300.fc42.x86_64", Presence::Yes),
            ("6.14.7-1-default", Presence::Yes),
            ("6.14.8-2-pve", Presence::No),
            ("6.14.0", Presence::No),
            ("6.14.0-63.fc42.x86_64", Presence::No),
            ("6.14.0-27-generic", Presence::Unclear),
            ("6.14.0-1018-azure", Presence::Unclear),
            ("6.11.0-26-generic", Presence::No),
            ("5.14.0-570.12.1.el9_6.x86_64", Presence::No),
            ("6.15.0-rc2", Presence::No),
            ("6.15.0-rc3", Presence::Yes),
            ("6.15.0-0.rc6.53.fc43.x86_64", Presence::Yes),
            ("6.15.0-061500rc6-generic", Presence::Yes),
            ("6.15.0-rc7", Presence::No),
            ("6.15.0", Presence::No),
            ("6.15.0-25-generic", Presence::No),
            ("not a release", Presence::No),
        ] {
            assert_eq!(epoll.presence(release), presence, "{release}");
        }
        let series = fault(&[("6.18", "6.19-rc1")]);
        for (release, presence) in [
            ("6.17.9", Presence::No),
            ("6.18.44", Presence::Yes),
            ("6.18.0-5-generic", Presence::Yes),
            ("6.18.0-rc4", Presence::No),
            ("6.19.0-rc1", Presence::No),
            ("6.19.0", Presence::No),
        ] {
            assert_eq!(series.presence(release), presence, "{release}");
        }
        assert_eq!(fault(&[]).presence("6.1.0-37-amd64"), Presence::Yes);
    }
}
