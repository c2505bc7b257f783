//! `daemon`: keeps the policy in force while it runs.

use daemon::{DaemonOptions, run as run_daemon};
use session::{Exit, Fault};

use crate::args::DaemonArgs;
use cli::Context;

/// Runs the daemon until it is terminated.
pub(crate) fn run(arguments: &DaemonArgs, context: &Context) -> Result<Exit, Fault> {
    let on_stop = arguments.on_stop.map(daemon::OnStop::from);
    let options = DaemonOptions::read(
        arguments.config.as_deref(),
        on_stop,
        arguments.allow.into(),
        arguments.allow.allow_inferred,
    )?;
    let log = context.console.clone();
    let log = Box::new(move |line: &str| log.say(line));
    run_daemon(&context.session, &context.console, options, arguments.sockets.clone().into(), log)
}
