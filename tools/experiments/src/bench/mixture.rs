//! Determines how many workloads of each kind run at the same time: the numbers and mixes of the NET-policy
//! document, scaled to this machine.

use std::fmt;
use std::str::FromStr;

/// The numbers of concurrent workloads in the document.
pub const AT_ONCE: [u32; 5] = [1, 12, 24, 48, 96];

/// The number of CPUs of the document's machine. The document names two Xeon E5 v2 but states neither the
/// number of cores nor whether hyper-threading was on. Like the shipped scenario, this assumes that the
/// number equals the document's third number of workloads.
pub const DOCUMENT_CPUS: u32 = 24;

/// The maximum number of concurrent workloads. Each workload is a client thread.
pub const AT_ONCE_MAX: u32 = 256;

/// The ratio of throughput-first to latency-first workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// The part of throughput-first workloads in the ratio.
    pub throughput: u32,
    /// The part of latency-first workloads in the ratio.
    pub latency: u32,
}

impl Mix {
    /// The five mixes of the document.
    pub const ALL: [Self; 5] = [
        Self { throughput: 1, latency: 0 },
        Self { throughput: 0, latency: 1 },
        Self { throughput: 2, latency: 1 },
        Self { throughput: 1, latency: 2 },
        Self { throughput: 1, latency: 1 },
    ];

    /// Splits `at_once` workloads in this ratio, rounded, with at least one of each kind that has a part.
    /// Returns `None` if there are fewer workloads than kinds.
    pub fn of(self, at_once: u32) -> Option<Mixture> {
        let (throughput, latency) = (u64::from(self.throughput), u64::from(self.latency));
        let parts = throughput + latency;
        let whole = u64::from(at_once);
        let rounded = (whole * throughput * 2 + parts).checked_div(parts * 2)?;
        let least = u64::from(throughput > 0);
        let most = whole.checked_sub(u64::from(latency > 0)).filter(|most| *most >= least)?;
        let throughput = u32::try_from(rounded.clamp(least, most)).ok()?;
        Some(Mixture { throughput, latency: at_once - throughput })
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.throughput, self.latency)
    }
}

/// The error for a text that is not a mix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a mix: write parts of throughput-first and of latency-first workloads, each 0 to {PARTS_MAX}, as in 2:1"
)]
pub struct NotAMix(String);

/// The maximum part of a kind of workload in the ratio.
const PARTS_MAX: u32 = 1000;

impl FromStr for Mix {
    type Err = NotAMix;

    fn from_str(text: &str) -> Result<Self, NotAMix> {
        let part = |text: &str| text.parse().ok().filter(|part| *part <= PARTS_MAX);
        let parts = text.split_once(':').and_then(|(t, l)| Some((part(t)?, part(l)?)));
        match parts {
            Some((throughput, latency)) if throughput + latency > 0 => Ok(Self { throughput, latency }),
            _ => Err(NotAMix(text.to_owned())),
        }
    }
}

/// The number of concurrent workloads of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mixture {
    /// Throughput-first workloads.
    pub throughput: u32,
    /// Latency-first workloads.
    pub latency: u32,
}

impl Mixture {
    /// Returns the total number of workloads.
    pub const fn at_once(self) -> u32 {
        self.throughput + self.latency
    }

    /// Returns whether the mixture contains both kinds.
    pub const fn is_mixed(self) -> bool {
        self.throughput > 0 && self.latency > 0
    }

    /// Formats both kinds for a title: `8 at once: 5 throughput-first, 3 latency-first`.
    fn titled(self, first: &str, second: &str) -> String {
        match self.is_mixed() {
            true => format!("{} at once: {first} (alongside {second})", self.at_once()),
            false => format!("{} at once: {first}", self.at_once()),
        }
    }

    /// Returns the title of the mixture's throughput-first workloads.
    pub fn of_throughput(self) -> String {
        self.titled(
            &format!("{} throughput-first", self.throughput),
            &format!("{} latency-first", self.latency),
        )
    }

    /// Returns the title of the mixture's latency-first workloads.
    pub fn of_latency(self) -> String {
        self.titled(
            &format!("{} latency-first", self.latency),
            &format!("{} throughput-first", self.throughput),
        )
    }
}

/// Scales a number of workloads that is meant for `meant_for` CPUs to `cpus` CPUs. Rounds the result, but to
/// at least one.
pub fn scaled(at_once: u32, meant_for: u32, cpus: u32) -> u32 {
    let (at_once, meant_for, cpus) = (u64::from(at_once), u64::from(meant_for.max(1)), u64::from(cpus));
    u32::try_from((at_once * cpus * 2 + meant_for) / (meant_for * 2))
        .unwrap_or(u32::MAX)
        .clamp(1, AT_ONCE_MAX)
}

/// Returns every mix of every number, without duplicates: first the mixtures of a single kind, then the mixed
/// ones, ordered by number.
pub fn mixtures(at_once: &[u32], mixes: &[Mix]) -> Vec<Mixture> {
    let mut mixtures: Vec<Mixture> = Vec::new();
    for mix in mixes {
        for mixture in at_once.iter().filter_map(|number| mix.of(*number)) {
            if !mixtures.contains(&mixture) {
                mixtures.push(mixture);
            }
        }
    }
    let kind = |mixture: &Mixture| (mixture.is_mixed(), mixture.throughput == 0);
    mixtures.sort_by_key(|mixture| (kind(mixture), mixture.at_once(), std::cmp::Reverse(mixture.throughput)));
    mixtures
}

#[cfg(test)]
mod test {
    use super::*;

    fn pairs(mixtures: &[Mixture]) -> Vec<(u32, u32)> {
        mixtures.iter().map(|mixture| (mixture.throughput, mixture.latency)).collect()
    }

    #[test]
    fn the_documents_numbers_shrink_and_grow_with_the_machine() {
        assert_eq!(AT_ONCE.map(|number| scaled(number, DOCUMENT_CPUS, 2)), [1, 1, 2, 4, 8]);
        assert_eq!(AT_ONCE.map(|number| scaled(number, DOCUMENT_CPUS, 24)), AT_ONCE);
        assert_eq!(AT_ONCE.map(|number| scaled(number, DOCUMENT_CPUS, 48)), [2, 24, 48, 96, 192]);
        assert_eq!(
            scaled(96, DOCUMENT_CPUS, 4096),
            AT_ONCE_MAX,
            "not even a large machine makes the number unbounded"
        );
        assert_eq!(scaled(1, 0, 1), 1, "a machine without CPUs does not cause a division by zero");
    }

    #[test]
    fn on_two_cpus_the_matrix_has_each_mixture_once() {
        let all = mixtures(&[1, 1, 2, 4, 8], &Mix::ALL);
        let expected = [
            [(1, 0), (2, 0), (4, 0), (8, 0)].as_slice(),
            &[(0, 1), (0, 2), (0, 4), (0, 8)],
            &[(1, 1), (3, 1), (2, 2), (1, 3), (5, 3), (4, 4), (3, 5)],
        ];
        assert_eq!(pairs(&all), expected.concat());
    }

    #[test]
    fn at_the_documents_scale_the_mixes_are_the_documents() {
        assert_eq!(pairs(&mixtures(&[96], &Mix::ALL[2..])), [(64, 32), (48, 48), (32, 64)]);
        assert_eq!(mixtures(&AT_ONCE, &Mix::ALL).len(), 5 + 5 + 4 * 3, "one workload cannot be mixed");
    }

    #[test]
    fn a_kind_that_has_a_part_is_never_rounded_away() {
        let mostly = Mix { throughput: 1000, latency: 1 };
        assert_eq!(mostly.of(3), Some(Mixture { throughput: 2, latency: 1 }));
        assert_eq!(mostly.of(1), None);
        assert_eq!(Mix { throughput: 1, latency: 0 }.of(1), Some(Mixture { throughput: 1, latency: 0 }));
    }

    #[test]
    fn mixes_are_written_as_parts_and_what_is_none_is_refused_with_an_example() {
        for mix in Mix::ALL {
            assert_eq!(mix.to_string().parse(), Ok(mix));
        }
        for text in ["", "1", "0:0", "1:", "1:2:3", "-1:2", "1001:1", "4294967295:4294967295"] {
            let error = text.parse::<Mix>().expect_err(text).to_string();
            assert!(error.contains("as in 2:1"), "{error}");
        }
    }

    #[test]
    fn titles_say_what_runs_beside() {
        let mixture = Mixture { throughput: 5, latency: 3 };
        assert_eq!(mixture.of_throughput(), "8 at once: 5 throughput-first (alongside 3 latency-first)");
        assert_eq!(mixture.of_latency(), "8 at once: 3 latency-first (alongside 5 throughput-first)");
        assert_eq!(Mixture { throughput: 4, latency: 0 }.of_throughput(), "4 at once: 4 throughput-first");
    }
}
