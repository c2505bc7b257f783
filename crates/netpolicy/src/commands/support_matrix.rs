//! `support-matrix`: lists the mechanisms that can be used on this host, and why others cannot.

use crate::support::SupportMatrix;
use session::{Exit, Fault};

use cli::Context;

/// Prints all mechanisms.
pub(crate) fn run(context: &Context) -> Result<Exit, Fault> {
    let netns = context.session.netns()?;
    context.console.report(&SupportMatrix::here(&netns)?)?;
    Ok(Exit::Done)
}
