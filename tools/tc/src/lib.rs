//! `netpolicy tc`: filter rules in bulk. The rules themselves are read and sent by `tc_rules`.
//!
//! Read in this order: [`args`], `load` (the modes of a load), `atomic` and `swap` (all of it or nothing),
//! `diff`, `dump`, [`mod@bench`].
#![forbid(unsafe_code)]

pub mod args;
mod atomic;
pub mod bench;
mod by_tc;
mod diff;
mod dump;
mod file;
mod load;
mod place;
mod progress;
mod reading;
mod report;
mod rule_options;
mod survey;
mod swap;

use std::process::ExitCode;

use cli::Context;
use cli::schema::part;
use session::{Exit, Fault};

use self::args::{Commands, TcCommand};
use self::file::BatchFile;

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    cli::tool::main::<Commands>(&[("tc", schema)], run)
}

/// The commands of this program.
#[must_use]
pub fn commands() -> Vec<clap::Command> {
    cli::tool::commands::<Commands>()
}

/// The schema of `tc`'s output.
fn schema() -> serde_json::Value {
    cli::schema::of_command(
        "tc",
        &[
            part::<report::LoadReport>,
            part::<report::SurveyReport>,
            part::<report::DiffReport>,
            part::<report::DumpReport>,
            part::<bench::RuleBenchReport>,
        ],
    )
}

/// Runs the requested subcommand of `tc`.
fn run(Commands::Tc(arguments): &Commands, context: &Context) -> Result<Exit, Fault> {
    match &arguments.command {
        TcCommand::Load(arguments) if arguments.check => {
            let file = BatchFile::named(&arguments.file)?.with_tc(arguments.with_tc);
            diff::run(&file, arguments.swap, rule_options::percpu(arguments.no_percpu), context)
        }
        TcCommand::Load(arguments) => load::run(arguments, context),
        TcCommand::Diff(arguments) => {
            let file = BatchFile::named(&arguments.file)?.with_tc(arguments.with_tc);
            diff::run(&file, arguments.swap, rule_options::percpu(arguments.no_percpu), context)
        }
        TcCommand::Dump(arguments) => dump::run(arguments, context),
        TcCommand::Bench(arguments) => bench::run(arguments, context),
        TcCommand::Guard => atomic::guard(context),
    }
}
