//! `diff`: prints the differences between two recordings.

use std::path::Path;

use model::Finding;
use session::recording::Recording;
use session::{Exit, Fault};

use super::doctor::examine;
use crate::args::{Diff, Which};
use crate::render::{DifferenceReport, count};
use cli::Context;

/// Compares two recordings.
pub(crate) fn run(arguments: &Diff, context: &Context) -> Result<Exit, Fault> {
    let (a, b) = (read(&arguments.a, context)?, read(&arguments.b, context)?);
    if a.0.redacted != b.0.redacted {
        context.console.say("Only one of them has pseudonyms: names and addresses differ.");
    }
    let report = DifferenceReport::of((&a.0, &a.1), (&b.0, &b.1));
    context.console.report(&report)?;
    context.console.say(&format!("{}.", count(report.count(), "difference")));
    Ok(if report.count() == 0 { Exit::Done } else { Exit::Pending })
}

/// Reads a recording, and evaluates `doctor`'s rules on it.
fn read(path: &Path, context: &Context) -> Result<(Recording, Vec<Finding>), Fault> {
    let recording = Recording::read(path)?;
    let of_recording = Context::of_recording(context.globals.clone(), recording.clone())?;
    let examined = examine(&(&Which::All).into(), 0, &of_recording)?;
    Ok((recording, examined.findings))
}
