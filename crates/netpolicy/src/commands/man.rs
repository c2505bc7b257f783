//! `man`: the manual pages, for packagers.

use clap::CommandFactory;
use session::{Exit, Fault};

use crate::args::{Arguments, Man};
use crate::context::Context;

/// Writes one page per command.
pub(crate) fn run(arguments: &Man, context: &Context) -> Result<Exit, Fault> {
    std::fs::create_dir_all(&arguments.dir).map_err(|error| Fault::file(&arguments.dir, error))?;
    // The pages are generated from the same definitions that parse the command line, so they cannot disagree.
    clap_mangen::generate_to(Arguments::command(), &arguments.dir)
        .map_err(|error| Fault::file(&arguments.dir, error))?;
    context.console.say(&format!("Wrote the manual pages into {}.", arguments.dir.display()));
    Ok(Exit::Done)
}
