//! `sim`: predictions from the model of the receive path.

mod calibrate;
mod evidence;
mod list;
mod orderings;
mod points;
mod prediction;
mod run;
mod runs;
mod soundness;
mod source;
mod validate;

pub(crate) use evidence::evidence;
pub(crate) use orderings::orderings;
pub(crate) use points::{Job, run_all};
pub(crate) use source::scenario;

use session::{Exit, Fault};

use crate::Context;
use crate::sim_args::{Sim, SimCommand};

/// Runs a subcommand.
pub fn run(arguments: &Sim, context: &Context<'_>) -> Result<Exit, Fault> {
    match &arguments.command {
        SimCommand::Run(arguments) => run::run(arguments, context),
        SimCommand::Calibrate(arguments) => calibrate::run(arguments, context),
        SimCommand::Validate(arguments) => validate::run(arguments, context),
    }
}
