//! The command line of `sim`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use model::Nanoseconds;

/// Predict response times, throughput and CPU use with a model of the receive path. Touches no host.
#[derive(Debug, Args)]
pub struct Sim {
    /// The `sim` subcommand to run.
    #[command(subcommand)]
    pub command: SimCommand,
}

/// The subcommands of the simulator.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "see the help of each command")]
pub enum SimCommand {
    Run(SimRun),
    Calibrate(SimCalibrate),
    Validate(SimValidate),
}

/// The maximum of `--seed`. Further runs use the seeds that follow it.
const SEED_MAX: u64 = u64::MAX / 2;

/// The extent of the simulation.
#[derive(Clone, Copy, Debug, Args)]
pub struct SimEffort {
    /// Number of seeds for each point.
    #[arg(long, value_name = "N", default_value_t = 5, allow_hyphen_values = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// The first seed.
    #[arg(long, value_name = "N", default_value_t = 1, allow_hyphen_values = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=SEED_MAX))]
    pub seed: u64,
    /// How many of the scenario's other parameter sets to simulate, too, for the intervals.
    #[arg(long, value_name = "N", default_value_t = 4, allow_hyphen_values = true)]
    pub samples: usize,
    /// How much simulated time to measure.
    #[arg(long, value_name = "SPAN", default_value = "400ms", allow_hyphen_values = true, value_parser = window)]
    pub window: Nanoseconds,
    /// How much time to simulate before measuring.
    #[arg(long, value_name = "SPAN", default_value = "300ms", allow_hyphen_values = true, value_parser = span)]
    pub warmup: Nanoseconds,
    /// Do not simulate a higher load to check whether a point is at the knee.
    #[arg(long)]
    pub no_probe: bool,
}

/// Parses a span of simulated time.
fn span(text: &str) -> Result<Nanoseconds, String> {
    let span: Nanoseconds = text.parse().map_err(|error| format!("{error}"))?;
    match span <= sim::scenario::SPAN_MAX {
        true => Ok(span),
        false => Err(format!("at most {} can be simulated", sim::scenario::SPAN_MAX)),
    }
}

/// Parses the span of a measured window.
fn window(text: &str) -> Result<Nanoseconds, String> {
    match span(text)? {
        Nanoseconds::ZERO => Err("must be longer than 0".to_owned()),
        span => Ok(span),
    }
}

/// Predict a scenario, or a sweep over one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy sim run irq-suspension --set delivery.mode=suspend20 --set clients.load=600K
  netpolicy sim run irq-suspension --sweep delivery.mode=interrupt,defer20,suspend20 \\
      --sweep clients.load=200K,600K,max
  netpolicy sim run my-server.toml --set costs.request=12
  netpolicy -o json sim run lab          with the evidence of a run, as written by `bench`")]
pub struct SimRun {
    /// A scenario file (- for standard input), or the name of a shipped one: irq-suspension, threaded-napi,
    /// epoll, net-policy, lab.
    #[arg(value_name = "SCENARIO")]
    pub scenario: PathBuf,
    /// Change a value of the scenario. May be given more than once.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Predict once for each of these values; quote values with commas: `layout.irq-cpus="0,2","1,3"`. May be
    /// given more than once: every combination is predicted.
    #[arg(long, value_name = "KEY=A,B,...")]
    pub sweep: Vec<String>,
    /// Fitted parameters, as written by `sim calibrate --write`, to use instead of the scenario's.
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// First run each point with checks: packets are conserved, masked interrupts do not fire, budgets are
    /// kept, and all time is accounted for.
    #[arg(long)]
    pub check: bool,
    /// How much to simulate.
    #[command(flatten)]
    pub effort: SimEffort,
}

/// Fit up to fourteen physical parameters to measured rows.
///
/// Only the rows to fit are read. The report lists the parameters that the rows do not determine.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy sim calibrate irq-suspension --write costs.toml
  netpolicy sim calibrate my-server.toml --measured rows.tsv --rows suspend20@50K,suspend20@MAX \\
      --parameters request,packet
  netpolicy bench memcached --matrix --short --json runs.json
  netpolicy sim calibrate lab --measured runs.json --rows base@20.6K,suspend20@20.6K,base@MAX \\
      --parameters client-rtt,packet,request --write costs.toml
  netpolicy sim validate lab --measured runs.json --costs costs.toml")]
pub struct SimCalibrate {
    /// A scenario file, or the name of a shipped one.
    #[arg(value_name = "SCENARIO")]
    pub scenario: PathBuf,
    /// A table of measured rows, or the evidence of `bench memcached`, to use instead of the scenario's rows.
    #[arg(long, value_name = "FILE")]
    pub measured: Option<PathBuf>,
    /// Start with the parameters from an earlier fit instead of the scenario's; they are included in the
    /// output.
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// The rows to fit, instead of the scenario's; quote names with commas.
    #[arg(long, value_name = "ROW,...")]
    pub rows: Vec<String>,
    /// The parameters to fit, instead of the scenario's.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub parameters: Vec<String>,
    /// Maximum number of parameter sets to try, each in one run of every row.
    #[arg(long, value_name = "N", default_value_t = 800, value_parser = evaluations, allow_hyphen_values = true)]
    pub evaluations: usize,
    /// The seed of the search and of its first run; those of the other runs follow.
    #[arg(long, value_name = "N", default_value_t = 1, allow_hyphen_values = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=SEED_MAX))]
    pub seed: u64,
    /// Write the fitted parameters to this file, as sections of a scenario.
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
}

fn evaluations(text: &str) -> Result<usize, String> {
    const MOST: usize = 1_000_000;
    text.parse()
        .ok()
        .filter(|n| (1..=MOST).contains(n))
        .ok_or_else(|| format!("`{text}` is not a number from 1 to {MOST}"))
}

/// Compare predictions with measured rows, and report the errors.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy sim validate                         the IRQ-suspension document's 66 rows
  netpolicy sim validate threaded-napi --html report.html")]
pub struct SimValidate {
    /// A scenario file, or the name of a shipped one.
    #[arg(value_name = "SCENARIO", default_value = "irq-suspension")]
    pub scenario: PathBuf,
    /// A table of measured rows, or the evidence of `bench memcached`, to use instead of the scenario's rows.
    #[arg(long, value_name = "FILE")]
    pub measured: Option<PathBuf>,
    /// Fitted parameters, as written by `sim calibrate --write`, to use instead of the scenario's.
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// Also write curves and tables to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// How much to simulate.
    #[command(flatten)]
    pub effort: SimEffort,
}
