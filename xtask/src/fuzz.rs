//! The fuzz targets: every parser of bytes that we did not write.

use crate::shell::{self, Result};

/// Runs each target for some seconds, from its committed corpus.
pub(crate) fn run(_: &[String]) -> Result {
    Ok(shell::show(&shell::cargo()))
}
