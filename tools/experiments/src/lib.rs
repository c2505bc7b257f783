//! The experiments: benches of delivery modes and policies, and predictions of the simulator, with their
//! options and reports.
//!
//! This crate runs sessions in its own labs to apply and measure settings. Only the command line depends on
//! it.
//!
//! Read in this order: [`mod@bench`] (stages: one cell of an experiment), [`campaigns`] (whole experiments),
//! [`scenario_file`] and [`simulations`] (predictions instead of measurements), [`reports`].
#![forbid(unsafe_code)]

pub mod bench;
pub mod campaigns;
mod evidence;
pub mod machines;
mod predicted;
pub mod reports;
pub mod scenario_file;
pub mod sim_args;
pub mod simulations;
mod unique;

use cli::Console;
use session::Session;

/// The session and the terminal of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The session.
    pub session: &'a Session,
    /// The console to which the bench reports.
    pub console: &'a Console,
    /// Returns an error if a daemon manages the session's network namespace.
    pub refuse_beside_daemon: fn(&Session) -> Result<(), session::Fault>,
}
