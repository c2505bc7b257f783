//! `completions`: prints shell completions.

use clap_complete::env::Shells;
use session::{Exit, Fault};

use crate::args::Completions;
use cli::Context;

/// Prints the completions.
pub(crate) fn run(arguments: &Completions, context: &Context) -> Result<Exit, Fault> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let shell =
        shells.completer(arguments.shell.as_str()).expect("clap_complete supports every listed shell");
    shell
        .write_registration("COMPLETE", "netpolicy", "netpolicy", "netpolicy", &mut script)
        .map_err(|error| Fault::failed(format!("cannot write the completions: {error}")))?;
    context.console.text(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
