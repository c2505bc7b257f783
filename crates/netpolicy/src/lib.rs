//! The voice of netpolicy: policy files, the command line, and all that is printed.
//!
//! This room knows the operator's words and the order of the cycle. It must not know error numbers, netlink
//! attributes or files of the kernel: those are behind `linux`. It is the only room that prints or exits, and
//! within it only `render` prints.
//!
//! Read in this order: `cycle` (the spine), [`args`] (what can be asked), [`policy_file`] (how it is asked in
//! files), `commands` (one file per command), `render` (what is printed).
#![forbid(unsafe_code)]

pub mod api;
pub mod args;
pub mod attach_service;
mod away;
pub mod bench;
mod clock;
mod commands;
mod context;
mod cycle;
pub mod daemon;
mod exit;
mod fault;
mod fullbusy;
mod idle;
pub mod lab;
pub mod notify;
pub mod policy_file;
mod render;
pub mod scenario_file;
mod services;
mod show;
pub mod sim_args;
mod socket_file;
pub mod sockets_args;
mod staged;
mod state_dir;
pub mod tc_args;
mod top;
mod wake;
pub mod watch;
pub mod wish;
mod wishes;

use std::process::ExitCode;

/// Runs the command line.
pub fn main() -> ExitCode {
    let arguments = args::Arguments::of_this_process();
    let context = context::Context::new(arguments.globals);
    let exit = commands::run(&arguments.command, &context).unwrap_or_else(|fault| {
        context.console.fault(&fault);
        fault.exit
    });
    exit.into()
}
