//! The experiments: benches of delivery modes and policies, predictions of the simulator, and rule-loading
//! speed; with their options and reports.
//!
//! This crate drives sessions in labs of its own to apply and measure settings. It prints nothing: the
//! calling program provides a [`Screen`]. Only the command line depends on it.
//!
//! Read in this order: [`mod@bench`] (stages: one cell of an experiment), [`campaigns`] (whole experiments),
//! [`scenario_file`] and [`simulations`] (the same, predicted), [`rule_loading`] (`tc bench`), [`reports`].
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
