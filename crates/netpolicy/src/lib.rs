//! The command line of netpolicy: arguments, commands, and their output.
//!
//! `policy-file` parses policy files, and `session::cycle` is the main sequence. The commands `bench`, `sim`,
//! `lab` and `tc` are separate programs ([`cli::programs`]).
//!
//! Read in this order: [`session::cycle`] (the main sequence), [`args`] (arguments), [`::policy_file`]
//! (policy files), `commands` (one file per command), `render` (output).
#![forbid(unsafe_code)]

pub mod allow_args;
pub mod api_args;
pub mod args;
mod commands;
mod compare_args;
mod completing;
pub mod daemon_args;
pub mod fleet;
mod fleet_args;
pub mod help;
pub mod init;
mod init_args;
mod limits;
pub mod record_args;
mod render;
pub mod request_args;
pub mod schema_args;
mod show;
pub mod sockets_args;
pub mod support;
mod top;
mod tune_args;
mod watch_args;

use std::process::ExitCode;

pub use commands::record::recording_texts;

use clap::CommandFactory;
use cli::programs::Tool;
use cli::{Context, Globals};

/// Runs the command that the command line names.
pub fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == ::daemon::inspector::WORKER) {
        return ::daemon::inspector::serve().unwrap_or(session::Exit::Failed).into();
    }
    if let Some(tool) = Tool::of_this_process() {
        return Context::new(Globals::default()).end(Err(tool.exec()));
    }
    // Answers a shell's completion request and exits.
    clap_complete::CompleteEnv::with_factory(args::Arguments::command).complete();
    let arguments = args::Arguments::of_this_process();
    let mut context = Context::new(arguments.globals);
    ::daemon::inspector::install();
    let ended = match arguments.session.api_session {
        Some(daemon) => {
            commands::run_in_session(daemon, &arguments.session, &arguments.command, &mut context)
        }
        None => commands::run(&arguments.command, &context),
    };
    context.end(ended)
}
