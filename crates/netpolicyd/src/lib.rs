//! The daemon as a program of its own, with the attach service in it.
//!
//! It is `netpolicy daemon` and `netpolicy attach-service` without the rest of the command line: a process that runs as root
//! is not built with an argument parser, a load generator, a simulator and a terminal's screen. Its options are those of the
//! two commands, which a test of `netpolicy` holds it to.
//!
//! Read in this order: [`arguments`] (what can be asked), [`mod@log`] (what is said), [`main`].
#![forbid(unsafe_code)]

pub mod arguments;
pub mod log;

use std::fs::OpenOptions;
use std::io::Write;
use std::process::ExitCode;

use arguments::{Arguments, AttachService, Guard, Request};
use daemon::Options;
use log::Log;
use session::guard_process::READY;
use session::{Exit, Fault, expire, guard_process};

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let words = std::env::args_os().skip(1);
    if std::env::args_os().nth(1).is_some_and(|word| word == daemon::inspector::WORKER) {
        return daemon::inspector::serve().unwrap_or(Exit::Failed).into();
    }
    let request = match arguments::read(words) {
        Ok(request) => request,
        Err(mistake) => {
            let fault = Fault::new(Exit::Usage, mistake).hint("netpolicyd --help lists the options");
            Log::default().fault(&fault);
            return fault.exit.into();
        }
    };
    daemon::inspector::install();
    let (log, ended) = match request {
        Request::Help => (Log::default(), Log::print(&arguments::help()).map(|()| Exit::Done)),
        Request::HelpOfAttachService => {
            (Log::default(), Log::print(&arguments::help_of_attach_service()).map(|()| Exit::Done))
        }
        Request::Version => {
            let version = format!("netpolicyd {}\n", env!("CARGO_PKG_VERSION"));
            (Log::default(), Log::print(&version).map(|()| Exit::Done))
        }
        Request::AttachService(AttachService { socket, quiet }) => {
            let log = Log::quiet(quiet);
            let ended = daemon::attach_service::run(&socket, &log);
            (log, ended)
        }
        Request::Guard(guard) => {
            let Guard { session, watch, attach } = *guard;
            if let Some(socket) = &attach {
                daemon::attach_service::go_through_once_it_answers(socket);
            }
            let log = Log::default();
            let ended = guard_process::run(&watch, &session, &log, announce);
            (log, ended)
        }
        Request::Daemon(arguments) => {
            let log = Log::of(&arguments);
            let ended = keep(*arguments, &log);
            (log, ended)
        }
    };
    let exit = ended.unwrap_or_else(|fault| {
        log.fault(&fault);
        fault.exit
    });
    exit.into()
}

/// Keeps the policy true until it is asked to end.
fn keep(arguments: Arguments, log: &Log) -> Result<Exit, Fault> {
    let Arguments { session, sockets, config, on_stop, allow, inferred, .. } = arguments;
    let expired = expire::roll_back_expired(&session, log, expire::Who::Anybody);
    let said = expired.err().map(|fault| {
        // The daemon may be what puts this right.
        log.fault(&fault);
        fault.cause.to_string()
    });
    let options = Options::read(config.as_deref(), on_stop, allow, inferred)?;
    let of_sockets = log.clone();
    let lines = Box::new(move |line: &str| session::Operator::say(&of_sockets, line));
    match daemon::run(&session, log, options, sockets, lines) {
        // The same is wrong with the daemon, and was said.
        Err(fault) if said == Some(fault.cause.to_string()) => Ok(fault.exit),
        ended => ended,
    }
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
