//! The command line of `tune`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::ArgValueCandidates;
use latency::judge::Candidate;
use latency::measure::switchback::Metric;
use model::{Limits, Nanoseconds};

use crate::compare_args::{guard, margin, window};
use crate::completing;
use crate::watch_args::ServiceChoice;

/// The limits that apply without `--guard`.
pub(crate) const USUAL_LIMITS: &str = "p50=+15%,p90=+15%,p99=+15%,cpu=+25%";

/// Find the best setting for a service, on its live traffic.
///
/// Policies and delivery modes alternate, as with `compare`. After each round, candidates are dropped that
/// are clearly worse, exceed a limit or cannot be the best. The best candidate is tried with other timeouts
/// and interrupt moderation. Then new pairs compare it with the current settings and the runner-up.
/// Afterwards the host is restored, even if this command is killed: docs/reference/compare.md.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy tune memcached --goal p99 --dry-run       what would be tried
  netpolicy tune memcached --goal p99                 the shortest p99
  netpolicy tune nginx --goal cpu --guard p99=+5%     less CPU, unless p99 grows by more than 5 %
  netpolicy tune --port 6379 --goal p50 --write redis.toml
  netpolicy tune redis --goal cpu --candidate cpu --candidate power --only")]
pub struct Tune {
    /// The service whose requests are measured.
    #[command(flatten)]
    pub service: ServiceChoice,
    /// The metric to improve: p50, p90, p99, cpu, requests.
    #[arg(long, value_name = "METRIC")]
    pub goal: Metric,
    /// How much the other metrics may grow with the winner: p50, p90, p99, cpu.
    #[arg(long, value_name = "LIMITS", default_value = USUAL_LIMITS)]
    pub guard: Limits,
    /// Another candidate, as for `compare`. May be given more than once.
    #[arg(long, value_name = "CANDIDATE", add = ArgValueCandidates::new(completing::candidates))]
    pub candidate: Vec<Candidate>,
    /// Try only the candidates that `--candidate` names, without other timeouts.
    #[arg(long, requires = "candidate")]
    pub only: bool,
    /// The length of a window, 1s to 60s.
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = window)]
    pub window: Nanoseconds,
    /// The pause between a switch and the next window, 10ms to 10s, so that outstanding requests end before
    /// the window.
    #[arg(long, value_name = "SPAN", default_value = "100ms", value_parser = guard)]
    pub guard_time: Nanoseconds,
    /// The maximum duration, in seconds.
    #[arg(long, alias = "max-seconds", value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u64).range(30..=86_400))]
    pub seconds: u64,
    /// Changes of less than this, in percent, count as no difference.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = margin)]
    pub margin: f64,
    /// The seed of the random order, to repeat a tuning in the same order [default: from the clock].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// List the candidates in the order in which they would be tried, and exit.
    #[arg(long)]
    pub dry_run: bool,
    /// Continue a search that was killed or interrupted, with the windows that it has measured. It must have
    /// ended within a day, and have the same service, kernel, devices, load, goal and options.
    #[arg(long)]
    pub resume: bool,
    /// Try all candidates again, in the usual order: ignore the results of earlier searches for this service.
    #[arg(long)]
    pub afresh: bool,
    /// Write the winner to this policy file, with the evidence. Existing files are not overwritten.
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Draw the candidates in this file, as an HTML page: p99 against CPU time per request.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Leave the winner in force, if there is one.
    #[arg(long)]
    pub keep_winner: bool,
}
