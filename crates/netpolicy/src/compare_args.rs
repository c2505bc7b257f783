//! The command line of `compare`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::ArgValueCandidates;
use latency::judge::Candidate;
use latency::measure::switchback::{Limit, Metric};
use model::Nanoseconds;

use crate::completing;
use crate::watch_args::ServiceChoice;

/// Compare settings on the live traffic of a service: better, worse, or no difference.
///
/// The candidates alternate in random order, for a window each, and the service's requests are measured from
/// outside, like `watch`. Each switch is a transaction. The comparison ends with a verdict, which is valid at
/// any time (anytime-valid). Afterwards the host is restored, even if this command is killed:
/// docs/reference/compare.md.
#[derive(Debug, Args)]
#[command(after_help = "\
Candidates:
  current                          the unchanged host
  latency                          a policy for the service
  suspend20                        a delivery mode
  defer50,gro_flush_timeout=80us   a delivery mode with other timeouts
  rx-usecs=8, eth0:rx-usecs=8      one NIC setting, all others unchanged
  ./cache.toml                     a policy file

Examples:
  netpolicy compare memcached --b latency
  netpolicy compare --port 6379 --a latency --b cpu --margin 10
  netpolicy compare nginx --b defer50 --b defer200 --b suspend20 --keep-winner
  netpolicy compare redis --b cpu --b power --metric cpu --at-most p99=2ms --keep-winner
  netpolicy compare memcached --b latency --record compare.jsonl
  netpolicy compare memcached --b rx-channels=4 --disruptive
  netpolicy bench report compare.jsonl --report compare.html")]
pub struct Compare {
    /// The service whose requests are measured.
    #[command(flatten)]
    pub service: ServiceChoice,
    /// The first candidate, with which all others are compared.
    #[arg(long, value_name = "CANDIDATE", default_value = "current", add = ArgValueCandidates::new(completing::candidates))]
    pub a: Candidate,
    /// Another candidate. May be given more than once: then all of them alternate.
    #[arg(long, value_name = "CANDIDATE", required = true, add = ArgValueCandidates::new(completing::candidates))]
    pub b: Vec<Candidate>,
    /// The length of a window, 1s to 60s.
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = window)]
    pub window: Nanoseconds,
    /// The pause between a switch and the next window, 10ms to 10s, so that outstanding requests end before
    /// the window.
    #[arg(long, value_name = "SPAN", default_value = "100ms", value_parser = guard)]
    pub guard_time: Nanoseconds,
    /// The maximum duration, in seconds.
    #[arg(long = "seconds", alias = "max-seconds", value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(5..=86_400))]
    pub seconds: u64,
    /// Changes of less than this, in percent, count as no difference.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = margin)]
    pub margin: f64,
    /// The metrics that decide: p50, p90, p99, cpu, requests.
    #[arg(long, value_name = "METRIC,...", value_delimiter = ',', default_value = "p50,p90")]
    pub metric: Vec<Metric>,
    /// The maximum response time that a winner may have, as in p99=1ms. May be given more than once.
    #[arg(long, value_name = "PERCENTILE=SPAN", value_parser = limit)]
    pub at_most: Vec<Limit>,
    /// The seed of the random order, to repeat a comparison in the same order [default: from the clock].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Record every window in this file, as JSON lines; `bench report` draws it.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Draw the result in this file, as an HTML page: p99 against CPU time per request.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Also compare a candidate that stops a queue or takes the link down: it is applied once and rolled
    /// back, and windows before, with and after it are compared.
    #[arg(long)]
    pub disruptive: bool,
    /// Change nothing: show how soon the comparison would detect a change at the present noise.
    #[arg(long, conflicts_with_all = ["disruptive", "record", "report", "keep_winner"])]
    pub dry_run: bool,
    /// Leave the winner in force, if there is one.
    #[arg(long)]
    pub keep_winner: bool,
}

fn span(text: &str, least: Nanoseconds, most: Nanoseconds) -> Result<Nanoseconds, String> {
    let span: Nanoseconds = text.parse().map_err(|error| format!("{error}"))?;
    if (least..=most).contains(&span) { Ok(span) } else { Err(format!("expected {least} to {most}")) }
}

fn limit(text: &str) -> Result<Limit, String> {
    let expected = || "expected p50, p90 or p99 and a span, as in p99=1ms".to_owned();
    let (metric, most) = text.split_once('=').ok_or_else(expected)?;
    let metric = [Metric::P50, Metric::P90, Metric::P99].into_iter().find(|known| known.as_str() == metric);
    let most: Nanoseconds = most.parse().map_err(|error| format!("{error}"))?;
    Ok(Limit { metric: metric.ok_or_else(expected)?, most: most.as_secs_f64() * 1e9 })
}

pub(crate) fn window(text: &str) -> Result<Nanoseconds, String> {
    span(text, Nanoseconds::from_millis(1_000), Nanoseconds::from_millis(60_000))
}

pub(crate) fn guard(text: &str) -> Result<Nanoseconds, String> {
    span(text, Nanoseconds::from_millis(10), Nanoseconds::from_millis(10_000))
}

/// Parses the margin. Its range excludes margins that are too small to decide or too large to be useful.
pub(crate) fn margin(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches(['%', ' ']).parse().ok();
    percent
        .filter(|percent| (0.5..=100.0).contains(percent))
        .ok_or_else(|| "expected percent, 0.5 to 100".to_owned())
}
