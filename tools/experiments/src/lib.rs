//! The experiments: benches of delivery modes and policies, and predictions of the simulator; with their options
//! and reports.
//!
//! This crate drives sessions in labs of its own to apply and measure settings. It prints nothing: the
//! calling program provides a [`Screen`]. Only the command line depends on it.
//!
//! Read in this order: [`mod@bench`] (stages: one cell of an experiment), [`campaigns`] (whole experiments),
//! [`scenario_file`] and [`simulations`] (the same, predicted), [`reports`].
#![forbid(unsafe_code)]

pub mod bench;
pub mod campaigns;
mod evidence;
mod predicted;
pub mod reports;
pub mod scenario_file;
mod screen;
pub mod sim_args;
pub mod simulations;
mod unique;

pub use screen::{Context, Screen};
