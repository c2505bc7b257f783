//! Runs the guard process of a trial: a hidden command that `try`, `compare` and the daemon start.

use cli::Context;
use cli::guard::GuardArgs;
use daemon::attach_service;
use session::{Exit, Fault};

/// Waits for the deadline, and rolls back the trial unless it was confirmed.
pub(crate) fn run(arguments: &GuardArgs, context: &Context) -> Result<Exit, Fault> {
    if let Some(socket) = &arguments.attach_socket {
        attach_service::go_through_once_it_answers(socket);
    }
    cli::guard::run(arguments, context)
}
