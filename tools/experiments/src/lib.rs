//! The experiments: benches of delivery modes and of policies, predictions of the simulator, and how fast rules are loaded;
//! with what can be asked of them, and their reports.
//!
//! This room sets and measures what a session is for, in labs of its own. It prints nothing: the program that runs it
//! provides a [`Screen`]. Only the command line depends on it.
//!
//! Read in this order: [`mod@bench`] (stages: one cell of an experiment), [`campaigns`] (whole experiments), [`scenario_file`] and
//! [`simulations`] (the same, predicted), [`rule_loading`] (`tc bench`), [`reports`].
#![forbid(unsafe_code)]

pub mod bench;
pub mod campaigns;
mod evidence;
mod own_files;
mod predicted;
pub mod reports;
pub mod rule_loading;
pub mod scenario_file;
mod screen;
pub mod sim_args;
pub mod simulations;
mod unique;

pub use screen::{Context, Screen};
