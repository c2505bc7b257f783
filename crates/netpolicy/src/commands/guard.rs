//! The guard process of a trial, as a command that `try`, `compare` and the daemon start.

use std::fs::OpenOptions;
use std::io::Write;

use daemon::attach_service;
use model::{Nanoseconds, Pid};
use session::guard_process::{READY, Watch};
use session::{Exit, Fault, guard_process};

use crate::args::Guard;
use cli::Context;

/// Waits for the deadline, and rolls back what is unconfirmed by then.
pub(crate) fn run(arguments: &Guard, context: &Context) -> Result<Exit, Fault> {
    let watch = Watch {
        deadline: Nanoseconds(arguments.deadline),
        holding: arguments.holding.clone(),
        until_closed: arguments.until_closed.zip(arguments.program.map(Pid)),
    };
    if let Some(socket) = &arguments.attach_socket {
        attach_service::go_through_once_it_answers(socket);
    }
    guard_process::run(&watch, &context.session, &context.console, announce)
}

/// Says that this process stands on its own, and releases the pipe: who started it reads to its end.
fn announce() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(READY)?;
    out.flush()?;
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}
