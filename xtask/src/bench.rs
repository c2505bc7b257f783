//! The figures of the README.

use crate::shell::{self, Result};

/// Runs the named benchmarks, or all.
pub(crate) fn run(_: &[String]) -> Result {
    Ok(shell::show(&shell::cargo()))
}
