//! `completions`: what a shell needs to complete our command line.

use clap::CommandFactory;
use session::{Exit, Fault};

use crate::args::{Arguments, Completions};
use crate::context::Context;

/// Prints the completions.
pub(crate) fn run(arguments: &Completions, context: &Context) -> Result<Exit, Fault> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "netpolicy", &mut script);
    context.console.text(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
