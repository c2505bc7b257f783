//! `daemon`: keeps the policy true for as long as it runs.

use daemon::{Options, Outside, run as run_daemon};
use session::{Exit, Fault};

use super::oracle;
use crate::args::Daemon;
use crate::context::Context;

/// Runs until it is asked to end.
pub(crate) fn run(arguments: &Daemon, context: &Context) -> Result<Exit, Fault> {
    let on_stop = arguments.on_stop.map(daemon::OnStop::from);
    let options = Options::read(
        arguments.config.as_deref(),
        on_stop,
        arguments.allow.into(),
        arguments.allow.allow_inferred,
    )?;
    let log = context.console.clone();
    let outside = Outside { log: Box::new(move |line| log.say(line)), oracle: oracle::of(&context.globals) };
    run_daemon(&context.session, &context.console, options, arguments.sockets.clone().into(), outside)
}
