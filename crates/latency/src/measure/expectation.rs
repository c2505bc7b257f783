//! Predicts the effect of a policy on a service that has none, from recorded comparisons of services with a
//! similar load.
//!
//! The middle of a range is the median of the [`NEIGHBOURS`] most similar records. Its width is the error of
//! this method on the records, where each record is estimated without the records of its own server
//! (leave-one-out). So a range contains the effect on a new server in nine of ten cases, if the server
//! resembles the recorded ones. Services on overcommitted machines ([`Load::is_unsteady`]) are estimated only
//! from records of such services.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use model::PolicyName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::measure::statistics::{Interval, median};

/// The table of recorded comparisons, written by `bench/servers/live.py --table`.
const RECORDED: &str = include_str!("expectation/recorded.tsv");

/// The number of most similar records, whose median is the middle of a range.
const NEIGHBOURS: usize = 5;

/// The share of new cases that a range should contain.
pub const HOLDS: f64 = 0.9;

/// The maximum distance of the nearest record, in factors of e. If even the nearest record is farther away,
/// nothing is predicted.
const DISTANCE_MAX: f64 = 2.0;

/// The kind of the devices on which the comparisons were recorded.
pub const RECORDED_ON: &str = "veth";

/// The load of a service without a policy, as measured by `watch`.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Requests per second.
    pub rate: f64,
    /// The number of connections with an event in a window.
    pub connections: u64,
    /// The number of packets per poll of the service's NAPIs; `None` if there were no polls.
    pub packets_per_poll: Option<f64>,
    /// The number of context switches of the service's threads per request; `None` if they were not counted.
    pub switches: Option<f64>,
    /// The share of softirqs and NAPI threads in a request's CPU time; `None` if it was not counted.
    pub delivery_share: Option<f64>,
    /// The 90th percentile of response times, divided by the median; `None` if one of them is unknown.
    pub spread: Option<f64>,
}

impl Load {
    /// Whether response times vary as much as on an overcommitted machine. On such a machine, the wait for
    /// CPUs outweighs the savings of a policy.
    pub fn is_unsteady(&self) -> bool {
        self.spread.is_some_and(|spread| spread > SPREAD_MAX)
    }

    /// Returns the distance to another load: the absolute logarithms of the factors between request rates and
    /// between connections, in a weighted sum.
    fn distance(&self, other: &Self) -> f64 {
        let factor = |one: f64, other: f64| (one.max(1e-9) / other.max(1e-9)).ln().abs();
        let connections = factor(count(self.connections.max(1)), count(other.connections.max(1)));
        factor(self.rate, other.rate) + WEIGHT_OF_CONNECTIONS * connections
    }
}

/// The largest spread on a machine with spare CPU time. The recorded spreads are 1.1 to 4.2 on an idle
/// machine, and up to 52 while compilers were running.
const SPREAD_MAX: f64 = 6.0;

/// The weight of the factor between numbers of connections, relative to that between request rates.
const WEIGHT_OF_CONNECTIONS: f64 = 0.3;

/// A recorded comparison of a policy with the host without it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The server.
    pub server: String,
    /// Its load.
    pub load: Load,
    /// The policy.
    pub policy: PolicyName,
    /// The change of CPU time per request, as a share.
    pub cpu: f64,
    /// The change of the median response time, as a share.
    pub p50: f64,
}

impl Recorded {
    /// All recorded comparisons.
    pub fn all() -> &'static [Self] {
        static ALL: LazyLock<Vec<Recorded>> =
            LazyLock::new(|| RECORDED.lines().skip(1).filter_map(Recorded::parse).collect());
        &ALL
    }

    /// Parses a line of the table. Returns `None` if the line is malformed.
    pub fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [server, rate, connections, packets_per_poll, switches, delivery_share, spread, policy, cpu, p50] =
            fields[..]
        else {
            return None;
        };
        let known = |text: &str| (text != "-").then(|| text.parse().ok()).flatten();
        let load = Load {
            rate: rate.parse().ok()?,
            connections: connections.parse().ok()?,
            packets_per_poll: known(packets_per_poll),
            switches: known(switches),
            delivery_share: known(delivery_share),
            spread: known(spread),
        };
        let policy = policy.parse().ok()?;
        Some(Self { server: server.to_owned(), load, policy, cpu: cpu.parse().ok()?, p50: p50.parse().ok()? })
    }
}

/// The expected effects of a policy.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The policy.
    pub policy: PolicyName,
    /// The expected change of the CPU time per request, as a share. Nine of ten new cases are in the range.
    pub cpu: Interval,
    /// The expected change of the median response time, as a share. Nine of ten new cases are in the range.
    pub p50: Interval,
    /// The number of records on which the ranges are based.
    pub records: usize,
    /// The distance of the most similar record, expressed as a factor of the request rate: 1 is an equal
    /// load.
    pub nearest: f64,
}

impl Expected {
    /// Whether even the worst case in the range saves CPU time.
    pub fn is_gain(&self) -> bool {
        self.cpu.high < 0.0
    }
}

/// Recorded comparisons by policy, and the errors that estimates from them have for a new server.
#[derive(Clone, Debug)]
pub struct Experience {
    policies: BTreeMap<(PolicyName, bool), OfPolicy>,
}

/// The records of one policy, on steady or on unsteady services.
#[derive(Clone, Debug)]
struct OfPolicy {
    records: Vec<Recorded>,
    /// The range that contains nine of ten errors of estimates, as logarithms of ratios: first for CPU time,
    /// then for the median response time.
    errors: [(f64, f64); 2],
}

/// The quantities that are estimated, in the order of [`OfPolicy::errors`].
const QUANTITIES: [fn(&Recorded) -> f64; 2] = [|one| one.cpu, |one| one.p50];

impl Experience {
    /// Creates the expectations from these comparisons. Omits policies that were recorded with fewer than two
    /// servers.
    pub fn of(recorded: &[Recorded]) -> Self {
        let mut policies: BTreeMap<(PolicyName, bool), Vec<Recorded>> = BTreeMap::new();
        for one in recorded {
            policies.entry((one.policy, one.load.is_unsteady())).or_default().push(one.clone());
        }
        let of_policy = |(key, records): ((PolicyName, bool), Vec<Recorded>)| {
            let [cpu, p50] = QUANTITIES.map(|of| errors(&records, of));
            Some((key, OfPolicy { errors: [cpu?, p50?], records }))
        };
        Self { policies: policies.into_iter().filter_map(of_policy).collect() }
    }

    /// Returns the expectations from the comparisons that netpolicy ships.
    pub fn recorded() -> &'static Self {
        static RECORDED: LazyLock<Experience> = LazyLock::new(|| Experience::of(Recorded::all()));
        &RECORDED
    }

    /// Returns the expected effects of each policy on a service with this load, the largest saving first.
    /// Empty if no record is similar enough.
    pub fn expected(&self, load: &Load) -> Vec<Expected> {
        let alike = self.policies.iter().filter(|((_, is_unsteady), _)| *is_unsteady == load.is_unsteady());
        let mut found: Vec<Expected> =
            alike.filter_map(|((policy, _), of)| of.expected(*policy, load)).collect();
        found.sort_by(|one, other| one.cpu.estimate.total_cmp(&other.cpu.estimate));
        found
    }
}

impl OfPolicy {
    fn expected(&self, policy: PolicyName, load: &Load) -> Option<Expected> {
        let nearest = self.records.iter().map(|one| one.load.distance(load)).min_by(f64::total_cmp)?;
        if nearest > DISTANCE_MAX {
            return None;
        }
        let records: Vec<&Recorded> = self.records.iter().collect();
        let range = |at: usize| {
            let middle = centre(load, &records, QUANTITIES[at])?;
            let (low, high) = self.errors[at];
            let share = |log: f64| log.exp() - 1.0;
            Some(Interval { estimate: share(middle), low: share(middle + low), high: share(middle + high) })
        };
        Some(Expected {
            policy,
            cpu: range(0)?,
            p50: range(1)?,
            records: records.len(),
            nearest: nearest.exp(),
        })
    }
}

/// Returns the range that contains nine of ten errors of estimates. Each estimate excludes the records of the
/// server that is estimated.
fn errors(records: &[Recorded], of: fn(&Recorded) -> f64) -> Option<(f64, f64)> {
    let mut errors: Vec<f64> = records
        .iter()
        .filter_map(|one| {
            let others: Vec<&Recorded> = records.iter().filter(|other| other.server != one.server).collect();
            Some(log(of(one)) - centre(&one.load, &others, of)?)
        })
        .collect();
    errors.sort_by(f64::total_cmp);
    let out = (1.0 - HOLDS) / 2.0;
    Some((rank(&errors, out)?, rank(&errors, 1.0 - out)?))
}

/// Returns the median change in the most similar records, as the logarithm of a ratio.
fn centre(load: &Load, records: &[&Recorded], of: fn(&Recorded) -> f64) -> Option<f64> {
    let mut near: Vec<(f64, f64)> =
        records.iter().map(|one| (one.load.distance(load), log(of(one)))).collect();
    near.sort_by(|one, other| one.0.total_cmp(&other.0));
    near.truncate(NEIGHBOURS);
    median(&near.into_iter().map(|(_, change)| change).collect::<Vec<_>>())
}

/// Converts a change to the logarithm of a ratio.
fn log(change: f64) -> f64 {
    (1.0 + change).max(1e-3).ln()
}

/// Returns the value below which this share of new values is expected. It is rounded outwards, so that few
/// values give a wide range.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "ranks of a few hundred records"
)]
fn rank(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share * (sorted.len() + 1) as f64;
    let place = if share < 0.5 { place.floor() } else { place.ceil() };
    let last = sorted.len().checked_sub(1)?;
    sorted.get((place.max(1.0) as usize - 1).min(last)).copied()
}

#[expect(clippy::cast_precision_loss, reason = "connections of a service, below 2^53")]
const fn count(number: u64) -> f64 {
    number as f64
}
