//! `run`: starts a command under a policy.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use apply::AtExit;
use cli::child::{code, forward};
use linux::process::preload;
use linux::{Netns, Signals};
use model::{Intent, Pid, Target};
use session::{Exit, Fault, HostState, fullbusy, wake};

use super::attachment::{Attachment, EventOutput, TURN};
use crate::args::RunArgs;
use cli::Context;

/// The directory for the library that caps `epoll_wait`.
const LIBRARY_DIR: &str = "/run/netpolicy";

/// The message if netpolicy set nothing for the command.
const NOTHING_SET: &str =
    "Nothing was set for the command: it never had an epoll, or a connection on a queue.";

/// Starts the command, follows it until it exits, and restores everything.
pub(crate) fn run(arguments: &RunArgs, context: &Context) -> Result<Exit, Fault> {
    let kthread = arguments.kthread.request();
    let intent = Intent {
        kthread,
        ..arguments.asked.word().intent(Target::Task(Pid(0)), "netpolicy run", arguments.cost.budget())
    };
    plan::allowed_class(&intent).map_err(Fault::refused_early)?;
    let mut command = command(arguments, &intent)?;
    // The CPU latency request is held as long as the command runs.
    let _held = wake::hold(arguments.cpu_dma_latency, &intent, &context.session, &context.console)?;
    let netns = context.session.netns()?;
    let mut signals = Signals::catch()?;
    let mut child = netns.run(|| command.spawn())?.map_err(|error| not_started(arguments, error))?;
    match followed(&mut child, context, netns, &intent, &mut signals) {
        Ok(status) => Ok(Exit::Command(code(status))),
        Err(fault) => match child.try_wait() {
            // The command's exit caused this failure, so report its exit status instead.
            Ok(Some(status)) if fault.is_passing() => {
                if fault.host == HostState::Unchanged {
                    context.console.say(NOTHING_SET);
                }
                Ok(Exit::Command(code(status)))
            }
            // Do not let the command run without its policy.
            _ => {
                stop(&mut child);
                Err(fault)
            }
        },
    }
}

/// Follows the command until it exits, and restores everything.
fn followed(
    child: &mut Child,
    context: &Context,
    netns: Netns,
    intent: &Intent,
    signals: &mut Signals,
) -> Result<ExitStatus, Fault> {
    let process = linux::process::identify(Pid(child.id()))?;
    let mut attachment =
        Attachment::begin(context, EventOutput::Stderr, netns, process, intent.clone(), AtExit::RollBack)?;
    match to_its_end(child, signals, &mut attachment) {
        Ok(status) => {
            for left in attachment.followed().filter(|left| *left != process) {
                let pid = left.pid;
                context.console.say(&format!(
                    "{left} is still running, now without the policy; `netpolicy attach {pid}` gives it one"
                ));
            }
            if !attachment.has_found_something() {
                context.console.say(NOTHING_SET);
            }
            attachment.end().map(|()| status)
        }
        Err(fault) => Err(attachment.failed(fault)),
    }
}

fn to_its_end(
    child: &mut Child,
    signals: &mut Signals,
    attachment: &mut Attachment<'_>,
) -> Result<ExitStatus, Fault> {
    attachment.look()?;
    loop {
        while let Some(arrived) = signals.take() {
            forward(child, arrived);
        }
        if let Some(status) = child.try_wait().map_err(|error| Fault::file("the command", error))? {
            return Ok(status);
        }
        if !attachment.turn()? {
            std::thread::sleep(TURN);
        }
    }
}

/// Returns the command, with the library that caps its `epoll_wait` if the delivery mode needs the library.
fn command(arguments: &RunArgs, intent: &Intent) -> Result<Command, Fault> {
    let (name, rest) = arguments
        .command
        .split_first()
        .ok_or_else(|| Fault::new(Exit::Usage, "there is no command to run"))?;
    if name.is_empty() {
        return Err(Fault::new(Exit::Usage, "the name of the command to run is empty"));
    }
    let mut command = Command::new(name);
    command.args(rest);
    if let (Some(cap), Some(mode)) = (fullbusy::epoll_wait_cap(intent), intent.delivery) {
        let program = found(Path::new(name))
            .ok_or_else(|| not_started(arguments, std::io::ErrorKind::NotFound.into()))?;
        if let Some(why) = preload::refusal(&program)? {
            return Err(Fault::new(
                Exit::Unsupported,
                format!(
                    "{mode} needs a preloaded library in the program, whose epoll_wait then {}, and {why}",
                    fullbusy::sleeps(cap)
                ),
            )
            .hint("suspend20 needs nothing inside the program: netpolicy run --delivery suspend20 -- …"));
        }
        let library = preload::install(preload::Library::Cap, Path::new(LIBRARY_DIR))?;
        let preloaded = std::env::var_os(preload::PRELOAD_VARIABLE);
        command.envs(preload::environment(&library, cap, preloaded.as_deref()));
    }
    Ok(command)
}

/// Finds the program's file as execvp(3) does.
fn found(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return Some(name.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

fn not_started(arguments: &RunArgs, error: std::io::Error) -> Fault {
    let name = arguments.command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Fault::file(name, error)
}

fn stop(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
