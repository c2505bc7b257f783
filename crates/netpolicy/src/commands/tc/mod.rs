//! `tc`: filter rules in bulk.

mod atomic;
mod by_tc;
mod diff;
mod dump;
mod file;
mod load;
mod progress;
mod reading;
mod rule_options;
mod survey;
mod swap;

use session::{Exit, Fault};

use self::file::BatchFile;
use crate::args::{Tc, TcCommand};
use crate::context::Context;

/// Runs one of the commands about rules.
pub(crate) fn run(arguments: &Tc, context: &Context) -> Result<Exit, Fault> {
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
        TcCommand::Bench(arguments) => experiments::rule_loading::run(arguments, &context.experiments()),
        TcCommand::Guard => atomic::guard(context),
    }
}
