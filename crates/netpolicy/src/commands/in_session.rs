//! Runs a command as a session of the daemon's API: the same command, with a result that a program can parse.

use apply::TransactionName;
use cli::Context;
use daemon::sessions::{SessionEnd, end_line};
use linux::Signals;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use session::{Exit, Fault, roll_back};

use crate::args::{ApiSession, Command};

/// Runs the command until it ends, its client disconnects, or the daemon exits. The last line of output is
/// the result.
pub(crate) fn run(
    daemon: u32,
    session: &ApiSession,
    command: &Command,
    context: &mut Context,
) -> Result<Exit, Fault> {
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|errno| Fault::failed(format!("prctl(PR_SET_PDEATHSIG): {errno}")))?;
    if getppid().map(|parent| parent.as_raw_nonzero().get().unsigned_abs()) != Some(daemon) {
        return Err(Fault::new(Exit::Usage, "--api-session is for the daemon only, which has exited"));
    }
    if let Some(socket) = &session.api_attach {
        daemon::attach_service::go_through_once_it_answers(socket);
    }
    if let Some(caller) = &session.api_caller {
        context.session.command.clone_from(caller);
    }
    context.console.stream_progress();
    let mut ended = tried(command, context);
    let end = match &mut ended {
        Ok((exit, transactions)) => SessionEnd {
            exit: exit.code(),
            transactions: transactions.iter().map(ToString::to_string).collect(),
            ..SessionEnd::default()
        },
        Err(fault) => {
            let hint = fault.hint.take();
            let words = session::report::words(fault, false);
            let why = words.strip_prefix("error: ").unwrap_or(&words).to_owned();
            SessionEnd { exit: fault.exit.code(), why: Some(why), hint, transactions: Vec::new() }
        }
    };
    context.console.text(&end_line(&end))?;
    Ok(ended.map_or_else(|fault| fault.exit, |(exit, _)| exit))
}

/// Runs the command. Returns the transactions that it leaves in force, newest first.
fn tried(command: &Command, context: &Context) -> Result<(Exit, Vec<TransactionName>), Fault> {
    // `try` without a guard catches no signals.
    let is_trial = matches!(command, Command::Try(arguments) if arguments.guard.is_none());
    let _caught = is_trial.then(Signals::catch).transpose()?;
    let journal = context.session.journal()?;
    let before = journal.newest()?;
    let ran = super::run(command, context);
    let history = journal.history()?;
    let is_new = |one: &&apply::Transaction| {
        Some(one.name()) > before
            && one.standing().is_live()
            && (one.begin().owned_by.is_none() || one.begin().left_in_force)
            && one.begin().asked.command == context.session.command
    };
    let left: Vec<TransactionName> =
        history.transactions.iter().rev().filter(is_new).map(apply::Transaction::name).collect();
    // A session that failed or was cancelled keeps nothing, not even a winner: its client may not receive the
    // reply, and the report of a failure names no transaction.
    if (ran.is_err() || Signals::has_arrived()) && !left.is_empty() {
        for name in &left {
            roll_back(*name, &journal)?;
        }
        let fault = ran.err().unwrap_or_else(|| Fault::failed("cancelled"));
        return Err(fault.leaving(session::HostState::Restored));
    }
    Ok((ran?, left))
}
