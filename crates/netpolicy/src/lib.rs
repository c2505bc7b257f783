//! The command line: arguments, commands, and what they print. The only crate that prints or exits. Policy
//! files are read by `policy-file`, and the cycle is `session::cycle`.
//!
//! Read in this order: [`session::cycle`] (the spine), [`args`] (what can be asked), [`::policy_file`] (how it is asked in
//! files), `commands` (one file per command), `render` (what is printed).
#![forbid(unsafe_code)]

pub mod allow_args;
pub mod api_args;
pub mod args;
mod commands;
mod compare_args;
mod completing;
mod context;
pub mod daemon_args;
pub mod globals;
pub mod help;
mod init_args;
pub mod lab;
mod limits;
mod render;
pub mod request_args;
pub mod schema_args;
mod show;
pub mod sockets_args;
pub mod tc_args;
mod top;
mod usage;
mod watch_args;

use std::process::ExitCode;

use clap::CommandFactory;

/// Runs the command line.
pub fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == ::daemon::inspector::WORKER) {
        return ::daemon::inspector::serve().unwrap_or(session::Exit::Failed).into();
    }
    // A shell asks for values. It ends the process then.
    clap_complete::CompleteEnv::with_factory(args::Arguments::command).complete();
    let arguments = args::Arguments::of_this_process();
    let context = context::Context::new(arguments.globals);
    ::daemon::inspector::install();
    let exit = commands::run(&arguments.command, &context).unwrap_or_else(|fault| {
        context.console.fault(&fault);
        fault.exit
    });
    exit.into()
}
