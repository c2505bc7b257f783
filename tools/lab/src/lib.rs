//! `netpolicy bench`, `sim` and `lab`: experiments on this machine, their predictions, and two hosts to try
//! things out.
//!
//! The experiments are in the crate `experiments`. What is here is the command line, and `lab` itself
//! ([`mod@hosts`]).
#![forbid(unsafe_code)]

pub mod args;
mod hosts;
mod report;

use std::process::ExitCode;

use clap::Subcommand;
use cli::Context;
use cli::schema::{of_command, part};
use daemon::running_daemon;
use experiments::bench::args::Bench;
use experiments::reports::{
    BenchReport, CalibrationReport, GridReport, LiveBenchReport, LiveCostReport, OrderingsReport,
    PredictionReport, SelfcheckReport, ValidationReport,
};
use experiments::sim_args::Sim;
use latency::judge::JudgeBenchReport;
use latency::reports::{CompareReport, WatchReport};
use serde_json::Value;
use session::{Exit, Fault};

use self::args::LabArgs;

/// The commands of this program.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "see the help of each command")]
pub enum Commands {
    Bench(Bench),
    Sim(Sim),
    Lab(LabArgs),
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == daemon::inspector::WORKER) {
        return daemon::inspector::serve().unwrap_or(Exit::Failed).into();
    }
    cli::tool::main::<Commands>(&[("lab", of_lab), ("bench", of_bench), ("sim", of_sim)], run)
}

/// The commands of this program.
#[must_use]
pub fn commands() -> Vec<clap::Command> {
    cli::tool::commands::<Commands>()
}

fn run(command: &Commands, context: &Context) -> Result<Exit, Fault> {
    daemon::inspector::install();
    let experiment = experiments::Context {
        session: &context.session,
        console: &context.console,
        refuse_beside_daemon: |session| running_daemon::refuse_beside_any(session, &session.netns()?),
    };
    match command {
        Commands::Bench(arguments) => experiments::campaigns::run(arguments, &experiment),
        Commands::Sim(arguments) => experiments::simulations::run(arguments, &experiment),
        Commands::Lab(arguments) => hosts::run(arguments, context),
    }
}

/// The schema of `lab`'s output.
fn of_lab() -> Value {
    of_command("lab", &[part::<report::LabReport>])
}

/// The schema of `bench`'s output.
fn of_bench() -> Value {
    of_command(
        "bench",
        &[
            part::<BenchReport<'_>>,
            part::<GridReport<'_>>,
            part::<OrderingsReport>,
            part::<LiveBenchReport<'_>>,
            part::<LiveCostReport>,
            part::<JudgeBenchReport>,
            part::<SelfcheckReport>,
            part::<WatchReport<'_>>,
            part::<CompareReport>,
        ],
    )
}

/// The schema of `sim`'s output.
fn of_sim() -> Value {
    of_command("sim", &[part::<PredictionReport>, part::<ValidationReport>, part::<CalibrationReport>])
}
