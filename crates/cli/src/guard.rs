//! The guard process of a trial: a hidden command, with which the program that tries settings starts itself
//! again.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use model::{Nanoseconds, Pid};
use session::guard_process::{GuardParams, READY};
use session::{Exit, Fault, guard_process};

use crate::Context;

/// Wait for the deadline of a trial, and roll the trial back if it is not confirmed by then. `try` starts
/// this command.
#[derive(Debug, Args)]
pub struct GuardArgs {
    /// The deadline, in nanoseconds since boot.
    #[arg(long, value_name = "NS")]
    pub deadline: u64,
    /// An inherited descriptor of a network namespace that the trial changes.
    #[arg(long, value_name = "FD")]
    pub holding: Vec<i32>,
    /// An inherited descriptor that closes when the guarded program exits. The program's settings are then
    /// rolled back.
    #[arg(long, value_name = "FD", requires = "program")]
    pub until_closed: Option<i32>,
    /// The guarded program.
    #[arg(long, value_name = "PID")]
    pub program: Option<u32>,
    /// Socket of the attach service, which inspects processes where the daemon lacks CAP_SYS_PTRACE.
    #[arg(long, value_name = "PATH")]
    pub attach_socket: Option<PathBuf>,
}

/// Waits for the deadline, and then rolls back the trial if it is not confirmed.
///
/// # Errors
/// If settings cannot be restored. The error lists these settings.
pub fn run(arguments: &GuardArgs, context: &Context) -> Result<Exit, Fault> {
    let watch = GuardParams {
        deadline: Nanoseconds(arguments.deadline),
        holding: arguments.holding.clone(),
        until_closed: arguments.until_closed.zip(arguments.program.map(Pid)),
    };
    guard_process::run(&watch, &context.session, &context.console, announce)
}

/// Reports to the parent that this process is now independent. Then closes the pipe, because the parent reads
/// the pipe to its end.
fn announce() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(READY)?;
    out.flush()?;
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}
