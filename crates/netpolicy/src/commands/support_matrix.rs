//! `support-matrix`: which mechanisms can be used on this host, and why the others cannot.

use crate::support::SupportMatrix;
use session::{Exit, Fault};

use cli::Context;

/// Prints all mechanisms.
pub(crate) fn run(context: &Context) -> Result<Exit, Fault> {
    let netns = context.session.netns()?;
    context.console.report(&SupportMatrix::here(&netns)?)?;
    Ok(Exit::Done)
}
