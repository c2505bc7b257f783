//! The command line of `bench judge`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Compare what `compare` says of changes with the truth on the wire, and count false alarms of guards.
///
/// In a lab of its own, memcached is asked at fixed times while settings alternate. What `compare` says is set against what both ends of the wire
/// show of the same pairs. Then guards are replayed on the pairs of `same-short`, each in a random order of its own.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy bench judge                   all scenarios, 30 s each at most
  netpolicy bench judge --scenario same-short --seconds 120 --trials 10000")]
pub struct Judge {
    /// These scenarios [default: all].
    #[arg(long, value_name = "SCENARIO,...", value_delimiter = ',')]
    pub scenario: Vec<Scenario>,
    /// The longest time of a scenario.
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(15..=3_600))]
    pub seconds: u64,
    /// How many guards are replayed.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub trials: u32,
    /// Requests per second of all clients together.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(100..=20_000))]
    pub rate: u64,
    /// The seed of everything that is drawn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Write the report into this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// What happens in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Nothing: both are the host as it is.
    Same,
    /// The same in windows as short as a guard's: guards are replayed on its pairs.
    SameShort,
    /// Packets wait for up to 50 us.
    Slower,
    /// Packets wait for up to 2 ms.
    MuchSlower,
    /// Nothing is changed, and with the second candidate programs use up all CPUs.
    Hog,
    /// Nothing is changed, and the load doubles in the middle.
    Step,
    /// Packets wait for up to 2 ms, and the load doubles in the middle.
    SlowerStep,
    /// Nothing is changed, and the load grows to twice what it was.
    Ramp,
    /// Packets wait for up to 2 ms, and the server is started again in the middle.
    Restart,
}

impl Scenario {
    /// The settings that are compared with the host's current ones.
    pub(crate) const fn candidate(self) -> &'static str {
        match self {
            Self::Same | Self::SameShort | Self::Hog | Self::Step | Self::Ramp => "current",
            Self::Slower => "defer50,gro_flush_timeout=50us",
            Self::MuchSlower | Self::SlowerStep | Self::Restart => "defer50,gro_flush_timeout=2ms",
        }
    }

    /// The factor on the request rate after this share of the time.
    pub(crate) fn load(self, elapsed: f64) -> f64 {
        match self {
            Self::Step | Self::SlowerStep if elapsed >= 0.5 => 2.0,
            Self::Ramp => 1.0 + elapsed.min(1.0),
            _ => 1.0,
        }
    }
}
