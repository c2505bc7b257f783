//! `lab`: creates two hosts on this machine, which exist until a signal or the end of a command.

use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use experiments::bench::{Layout, server_fault};
use linux::lab::{Lab as TwoHosts, LabOptions, Memcached, MemcachedOptions};
use linux::{Processes, Signals, observe};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use session::{Exit, Fault};

use crate::args::LabArgs;
use crate::report::LabReport;
use cli::Context;
use cli::child::{code, forward};

/// The maximum wait for a signal before `lab` checks the server again.
const TURN: Duration = Duration::from_millis(50);

/// Creates the lab, prints how to inspect it, and waits for a signal, the server's exit, or the end of the
/// command.
pub(crate) fn run(arguments: &LabArgs, context: &Context) -> Result<Exit, Fault> {
    let online = observe(&context.session.netns()?, &Processes::None)?.topology.online;
    let mut signals = Signals::catch()?;
    let lab = TwoHosts::new(&LabOptions::with_queues(arguments.queues))?;
    let options = MemcachedOptions {
        threads: arguments.threads,
        napi_ids: (arguments.queues > 1 && arguments.queues == arguments.threads).then_some(arguments.queues),
        cpus: Layout::of(&online).server,
        ..MemcachedOptions::default()
    };
    let mut server = lab.start_memcached(&options).map_err(server_fault)?;
    let report = LabReport::of(&lab, &server);
    match arguments.command.split_first() {
        None => {
            context.console.report(&report)?;
            wait(context, &mut signals, &mut server)
        }
        Some((program, rest)) => {
            // The command owns standard output, so print the introduction to standard error.
            context.console.say(&report.introduction());
            let mut command = Command::new(program);
            lab.place_on_client(command.args(rest))?;
            let mut child = command.spawn().map_err(|error| Fault::file(program, error))?;
            let status = loop {
                while let Some(arrived) = signals.take() {
                    forward(&child, arrived);
                }
                if let Some(status) = child.try_wait().map_err(|error| Fault::file(program, error))? {
                    break status;
                }
                rest_a_little(&signals)?;
            };
            Ok(Exit::Command(code(status)))
        }
    }
}

fn wait(context: &Context, signals: &mut Signals, server: &mut Memcached) -> Result<Exit, Fault> {
    context.console.say("Press Ctrl-C to end the lab and every process in it.");
    loop {
        if signals.take().is_some() {
            return Ok(Exit::Done);
        }
        if let Some(status) = server.ended() {
            return Err(Fault::failed(format!("memcached ended: {status}")));
        }
        rest_a_little(signals)?;
    }
}

/// Waits for a signal for at most `TURN`.
fn rest_a_little(signals: &Signals) -> Result<(), Fault> {
    let turn = Timespec { tv_sec: 0, tv_nsec: TURN.subsec_nanos().into() };
    match poll(&mut [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)], Some(&turn))
        .map_err(std::io::Error::from)
    {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
        Err(error) => Err(Fault::failed(format!("waiting for signals: {error}"))),
    }
}
