//! Defines the command line of `bench judge`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Compare the results of `compare` with the truth on the wire, and count false alarms of guards.
///
/// In a lab, memcached receives requests at fixed times while settings alternate. The results of `compare`
/// are checked against measurements at both ends of the wire for the same pairs. Then guards are replayed on
/// the pairs of `same-short`, each in a different random order.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy bench judge                   all scenarios, 30 s each at most
  netpolicy bench judge --scenario same-short --seconds 120 --record pairs.jsonl
  netpolicy bench judge --replay pairs.jsonl --trials 10000")]
pub struct Judge {
    /// The scenarios to run [default: all].
    #[arg(long, value_name = "SCENARIO,...", value_delimiter = ',')]
    pub scenario: Vec<Scenario>,
    /// Maximum time of a scenario, in seconds.
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(15..=3_600))]
    pub seconds: u64,
    /// How many guards to replay.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub trials: u32,
    /// Requests per second of all clients together.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(100..=20_000))]
    pub rate: u64,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Record the pairs of `same-short` in this file, for `--replay`. The wire is not measured then, so that
    /// pairs follow each other as quickly as those of a guard.
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub record: Option<PathBuf>,
    /// Measure nothing: replay guards on the pairs of this record.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scenario", "seconds", "rate"])]
    pub replay: Option<PathBuf>,
    /// Write the report to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A scenario of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Nothing is changed: both candidates are the unchanged host.
    Same,
    /// Nothing is changed, and the windows are as short as a guard's. Guards are replayed on the pairs of
    /// this scenario.
    SameShort,
    /// With the second candidate, packets wait for up to 50 us.
    Slower,
    /// With the second candidate, packets wait for up to 2 ms.
    MuchSlower,
    /// Nothing is changed, but while the second candidate is measured, other programs use all CPUs.
    Hog,
    /// Nothing is changed, and the load doubles in the middle.
    Step,
    /// Packets wait for up to 2 ms, and the load doubles in the middle.
    SlowerStep,
    /// Nothing is changed, and the load gradually doubles.
    Ramp,
    /// Packets wait for up to 2 ms, and the server is restarted in the middle.
    Restart,
}

impl Scenario {
    /// Returns the settings to compare with the host's current ones.
    pub(crate) const fn candidate(self) -> &'static str {
        match self {
            Self::Same | Self::SameShort | Self::Hog | Self::Step | Self::Ramp => "current",
            Self::Slower => "defer50,gro_flush_timeout=50us",
            Self::MuchSlower | Self::SlowerStep | Self::Restart => "defer50,gro_flush_timeout=2ms",
        }
    }

    /// Returns the factor by which the request rate is multiplied after this share of the time.
    pub(crate) fn load(self, elapsed: f64) -> f64 {
        match self {
            Self::Step | Self::SlowerStep if elapsed >= 0.5 => 2.0,
            Self::Ramp => 1.0 + elapsed.min(1.0),
            _ => 1.0,
        }
    }
}
