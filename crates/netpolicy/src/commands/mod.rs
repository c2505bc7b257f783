//! The commands, one file each.

mod apply;
mod attach;
mod attachment;
mod audit;
mod by_daemon;
mod cat;
mod compare;
mod completions;
mod confirm;
mod daemon;
mod diff;
mod doctor;
mod explain;
mod guard;
mod guarded;
mod history;
mod in_session;
mod init;
mod man;
mod plan;
mod prospects;
pub(crate) mod record;
mod report;
pub(crate) mod rollback;
mod run;
mod schema;
mod set;
mod show;
mod sockets;
mod status;
mod support_matrix;
mod top;
mod try_out;
mod tune;
mod verify;
mod watch;

pub(crate) use in_session::run as run_in_session;
use std::path::Path;

use session::recording::Recording;
use session::{Exit, Fault, expire};

use crate::args::{Command, FromArgs};
use crate::limits;
use cli::programs::Tool;
use cli::{Context, missing_privileges, say_if_denied};

/// Runs a command.
pub(crate) fn run(command: &Command, context: &Context) -> Result<Exit, Fault> {
    if let Some(path) = recording_of(command) {
        let context = Context::of_recording(context.globals.clone(), Recording::read(path)?)?;
        // The console of this context adds the recording's options to the commands that messages suggest.
        return dispatch(command, &context).or_else(|fault| {
            context.console.fault(&fault);
            Ok(fault.exit)
        });
    }
    let mut missing = missing_privileges();
    if looks_at_host(command) || measures(command) {
        limits::admit_open_files()?;
    }
    // Report a missing privilege before running these commands; other commands report it if they fail because
    // of it. `set` may work without the privilege: the daemon makes the change for a member of its group.
    let begins_with_it = looks_at_host(command) && !matches!(command, Command::Set(_)) || measures(command);
    if missing.is_some()
        && (begins_with_it || matches!(command, Command::Set(_)) && !set::has_daemon(context))
        && let Some(words) = missing.take()
    {
        context.console.say(words);
    }
    let mut said = None;
    if looks_at_host(command)
        && let Err(fault) =
            expire::roll_back_expired(&context.session, &context.console, expire::Who::Anybody)
    {
        // Continue, because the command may be the one that fixes this problem.
        context.console.fault(&fault);
        said = Some(fault.cause.to_string());
    }
    if looks_at_journal_alone(command) && context.session.netns.is_some() {
        // The command needs no namespace, but without this check a misspelt one would look like a namespace
        // without settings.
        context.session.netns()?;
    }
    let exit = match dispatch(command, context) {
        // The command failed with the error that was already reported, so do not report it again.
        Err(fault) if said == Some(fault.cause.to_string()) => return Ok(fault.exit),
        ended => {
            say_if_denied(missing, &ended, context);
            ended?
        }
    };
    if commits(command) {
        context.session.forget_old_transactions(&context.console);
    }
    Ok(exit)
}

/// Returns the recording that a command reads instead of the host.
fn recording_of(command: &Command) -> Option<&Path> {
    let FromArgs { from } = match command {
        Command::Show(arguments) => &arguments.from,
        Command::Doctor(arguments) => &arguments.from,
        Command::Plan(arguments) => &arguments.from,
        Command::Explain(arguments) => &arguments.from,
        Command::History(arguments) => &arguments.from,
        Command::Verify(arguments) => &arguments.from,
        _ => return None,
    };
    from.as_deref()
}

fn dispatch(command: &Command, context: &Context) -> Result<Exit, Fault> {
    match command {
        Command::Show(arguments) => show::run(arguments, context),
        Command::Doctor(arguments) => doctor::run(arguments, context),
        Command::Report(arguments) => report::run(arguments, context),
        Command::Audit(arguments) => audit::run(arguments, context),
        Command::Record(arguments) => record::run(arguments, context),
        Command::Diff(arguments) => diff::run(arguments, context),
        Command::Init(arguments) => init::run(arguments, context),
        Command::SupportMatrix(_) => support_matrix::run(context),
        Command::Plan(_) => plan::run(context),
        Command::Apply(arguments) => apply::run(arguments, context),
        Command::Try(arguments) => try_out::run(arguments, context),
        Command::Confirm(arguments) => confirm::run(arguments, context),
        Command::Verify(_) => verify::run(context),
        Command::Rollback(arguments) => rollback::run(arguments, context),
        Command::History(arguments) => history::run(arguments, context),
        Command::Explain(arguments) => explain::run(arguments, context),
        Command::Set(arguments) => set::run(arguments, context),
        Command::Unset(arguments) => by_daemon::unset(arguments, context),
        Command::Status(arguments) => status::run(arguments, context),
        Command::AttachService(arguments) if arguments.alive => {
            ::daemon::attach_service::check(&arguments.socket)
        }
        Command::AttachService(arguments) => {
            ::daemon::attach_service::run(&arguments.socket, &context.console)
        }
        Command::Attach(arguments) => attach::run(arguments, context),
        Command::Run(arguments) => run::run(arguments, context),
        Command::Daemon(arguments) => daemon::run(arguments, context),
        Command::Bench(_) => Tool::exec_command("bench"),
        Command::Sim(_) => Tool::exec_command("sim"),
        Command::Lab(_) => Tool::exec_command("lab"),
        Command::SocketPolicies(arguments) => sockets::run(arguments, context),
        Command::Cat(arguments) => cat::run(arguments, context),
        Command::Tc(_) => Tool::exec_command("tc"),
        Command::Top(arguments) => top::run(arguments, context),
        Command::Watch(arguments) => watch::run(arguments, context),
        Command::Compare(arguments) => compare::run(arguments, context),
        Command::Tune(arguments) => tune::run(arguments, context),
        Command::Schema(arguments) => schema::run(arguments, context),
        Command::Completions(arguments) => completions::run(arguments, context),
        Command::Man(arguments) => man::run(arguments, context),
        Command::Guard(arguments) => guard::run(arguments, context),
    }
}

/// Whether a command uses only the journal of all namespaces. A rollback also uses it, and works even if a
/// namespace no longer exists.
fn looks_at_journal_alone(command: &Command) -> bool {
    matches!(command, Command::Verify(_) | Command::History(_) | Command::SocketPolicies(_))
}

/// Whether a command reads or changes the settings of the host.
fn looks_at_host(command: &Command) -> bool {
    match command {
        Command::Show(_)
        | Command::Doctor(_)
        | Command::Report(_)
        | Command::Record(_)
        | Command::Top(_)
        | Command::Plan(_)
        | Command::Apply(_)
        | Command::Try(_)
        | Command::Confirm(_)
        | Command::Verify(_)
        | Command::Rollback(_)
        | Command::History(_)
        | Command::Explain(_)
        | Command::Set(_)
        | Command::Attach(_)
        | Command::Run(_)
        | Command::Compare(_)
        | Command::Tune(_)
        | Command::Daemon(_) => true,
        Command::SocketPolicies(_)
        | Command::Audit(_)
        | Command::Diff(_)
        | Command::Init(_)
        | Command::SupportMatrix(_)
        | Command::Watch(_)
        | Command::Bench(_)
        | Command::Lab(_)
        | Command::Cat(_)
        | Command::Unset(_)
        | Command::Status(_)
        | Command::AttachService(_)
        | Command::Tc(_)
        | Command::Schema(_)
        | Command::Sim(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Guard(_) => false,
    }
}

/// Whether a command observes services without changing settings.
const fn measures(command: &Command) -> bool {
    matches!(command, Command::Watch(_) | Command::Init(_))
}

/// Whether a command may have added to the journal.
fn commits(command: &Command) -> bool {
    matches!(
        command,
        Command::Apply(_)
            | Command::Try(_)
            | Command::Set(_)
            | Command::Attach(_)
            | Command::Run(_)
            | Command::Compare(_)
            | Command::Tune(_)
    )
}
