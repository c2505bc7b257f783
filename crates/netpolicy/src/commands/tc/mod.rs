//! `tc`: filter rules in bulk.

mod atomic;
mod bench;
mod diff;
mod dump;
mod file;
mod load;
mod progress;
mod reading;
mod survey;
mod swap;
mod wish;

use rules::NoPercpu;

use crate::args::{Tc, TcCommand};
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;

/// Runs one of the commands about rules.
pub(crate) fn run(arguments: &Tc, context: &Context) -> Result<Exit, Fault> {
    match &arguments.command {
        TcCommand::Load(arguments) if arguments.check => {
            diff::run(&arguments.file, arguments.swap, wish::percpu(arguments), context)
        }
        TcCommand::Load(arguments) => load::run(arguments, context),
        TcCommand::Diff(arguments) => {
            diff::run(&arguments.file, arguments.swap, NoPercpu::AsWritten, context)
        }
        TcCommand::Dump(arguments) => dump::run(arguments, context),
        TcCommand::Bench(arguments) => bench::run(arguments, context),
        TcCommand::Guard => atomic::guard(context),
    }
}
