//! `attach`: gives a running process and its queues a policy.

use apply::AtExit;
use latency::live::ServiceSelection;
use linux::Signals;
use model::{Intent, Pid, Policy, ProcessId, Target};
use session::{Exit, Fault, fullbusy, wake};

use super::attachment::{Attachment, EventOutput};
use crate::args::{AttachArgs, Attached};
use cli::Context;

/// Attaches the policy to the process, and waits for a signal or the exit of the process.
pub(crate) fn run(arguments: &AttachArgs, context: &Context) -> Result<Exit, Fault> {
    let pid = pid_of(arguments, context)?;
    let process = another_process(pid)?;
    let netns = context.session.netns_of(pid)?;
    let kthread = arguments.kthread.request();
    let intent = Intent {
        kthread,
        ..arguments.asked.word().intent(Target::Task(pid), "netpolicy attach", arguments.cost.budget())
    };
    plan::allowed_class(&intent).map_err(Fault::refused_early)?;
    fullbusy::refuse_from_outside(&Policy { intents: vec![intent.clone()], ..Policy::default() })?;
    // The CPU latency request is held until this function returns.
    let _held = wake::hold(arguments.cpu_dma_latency, &intent, &context.session, &context.console)?;
    // From this point on, a signal ends the attachment and restores the settings instead of killing this
    // process.
    let signals = Signals::catch()?;
    let at_the_end = if arguments.keep || arguments.once { AtExit::Leave } else { AtExit::RollBack };
    let mut attachment = Attachment::begin(context, EventOutput::Stdout, netns, process, intent, at_the_end)?;
    let ended = match stay(arguments, context, signals, &mut attachment) {
        Ok(ended) => ended,
        Err(fault) => return Err(attachment.failed(fault)),
    };
    if ended {
        context.console.say(&format!("{process} has ended."));
    }
    if arguments.keep || arguments.once {
        return leave(context, attachment);
    }
    attachment.end()?;
    Ok(Exit::Done)
}

/// Returns the process that the command line selects.
///
/// # Errors
/// If no process matches, or if several match: `attach` follows only one.
fn pid_of(arguments: &AttachArgs, context: &Context) -> Result<Pid, Fault> {
    let word = match (&arguments.process, arguments.port) {
        (Some(Attached::Pid(pid)), _) => return Ok(Pid(*pid)),
        (Some(Attached::Service(name)), _) => name.clone(),
        (None, port) => port.unwrap_or_default().to_string(),
    };
    let (_, found) = ServiceSelection::conditions(&word, &context.session, &context.console)?;
    match found.as_slice() {
        [process] => Ok(process.pid),
        several => {
            let names: Vec<String> = several.iter().take(NAMED_MAX).map(ToString::to_string).collect();
            let more = several.len().saturating_sub(NAMED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let words =
                format!("{word} has several processes: {}{more}; attach handles one", names.join(", "));
            Err(Fault::new(Exit::Usage, words)
                .hint(format!("name its pid, or: netpolicy set service {word} POLICY")))
        }
    }
}

/// The maximum number of processes that an error names.
const NAMED_MAX: usize = 4;

/// Identifies a process to which a policy can be given: any process except this one, which exits with the
/// command.
///
/// # Errors
/// If the process is this one, or no process has this pid.
pub(super) fn another_process(pid: Pid) -> Result<ProcessId, Fault> {
    if pid.0 == std::process::id() {
        let words = format!("process {pid} is this netpolicy command itself");
        return Err(Fault::new(Exit::Usage, words).hint("name the process that receives the packets"));
    }
    Ok(linux::process::identify(pid)?)
}

/// Waits for a signal or the exit of the process. Returns which of the two happened.
fn stay(
    arguments: &AttachArgs,
    context: &Context,
    mut signals: Signals,
    attachment: &mut Attachment<'_>,
) -> Result<bool, Fault> {
    attachment.first_look()?;
    if arguments.once {
        return Ok(false);
    }
    context.console.say("Attached. Press Ctrl-C to detach.");
    if !attachment.has_set() {
        context.console.say(
            "Nothing to set: the settings were already in force, and stay (`netpolicy history` shows who set them).",
        );
    }
    loop {
        if signals.take().is_some() {
            return Ok(false);
        }
        if !attachment.turn()? {
            return Ok(true);
        }
    }
}

fn leave(context: &Context, attachment: Attachment<'_>) -> Result<Exit, Fault> {
    let transactions = attachment.keep();
    let undo: Vec<String> =
        transactions.iter().rev().map(|name| format!("netpolicy rollback {name}")).collect();
    context.console.say(&match undo.is_empty() {
        true => "Nothing to set.".to_owned(),
        false => format!("Left in force. To undo it: {}", undo.join(" && ")),
    });
    Ok(Exit::Done)
}
