//! Ends trials that were not confirmed by their deadline, or whose program was killed, if their guard process
//! has not ended them.

use apply::{Expiry, Journal, Knobs, RollBackError, Transaction};
use linux::Kernel;

use crate::clock;
use crate::fault::Fault;
use crate::operator::Operator;
use crate::session::Session;

/// The kind of caller that looks for expired trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Any other program, possibly run by a user without access to the journal.
    Anybody,
    /// The guard process of a trial.
    Guard,
}

/// Rolls back every trial that has expired or whose program has exited, and reports each rollback. Every
/// command that reads or changes the host calls this first, so that a trial ends even if its guard process
/// was killed.
///
/// # Errors
/// If the journal cannot be read, unless the reason is that this user lacks the permission. Otherwise, the
/// error of the first trial that cannot be rolled back; the other trials are rolled back nevertheless.
pub fn roll_back_expired(session: &Session, operator: &dyn Operator, who: Who) -> Result<(), Fault> {
    roll_back_expired_by(&mut Kernel::new(), session, operator, who)
}

/// Like [`roll_back_expired`], but with the caller's kernel handle, which may hold the last references to
/// namespaces.
///
/// # Errors
/// As for [`roll_back_expired`].
pub fn roll_back_expired_by<K: Knobs>(
    kernel: &mut K,
    session: &Session,
    operator: &dyn Operator,
    who: Who,
) -> Result<(), Fault> {
    let journal = session.journal()?;
    let history = match journal.history() {
        Ok(history) => history,
        // A user who may not read the journal has no trial in it.
        Err(error) if who == Who::Anybody && error.is_denied() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if who == Who::Guard {
        for unreadable in &history.unreadable {
            operator.say(&format!("cannot check whether {} is on trial: {unreadable}", unreadable.name));
        }
    }
    let mut failed = None;
    let is_over = |one: &&Transaction| one.expired(clock::now()) || is_left_on_trial(&journal, one, who);
    for transaction in history.transactions.iter().rev().filter(is_over) {
        let name = transaction.name();
        if is_left_on_trial(&journal, transaction, who) {
            match journal.roll_back(name, kernel, clock::now()) {
                Ok(undone) => operator
                    .say(&format!("{name} was on trial, and its program exited: rolled back. {undone}")),
                // The transaction's guard process has already confirmed or undone it.
                Err(RollBackError::NothingToUndo { .. }) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
            continue;
        }
        match journal.roll_back_if_unconfirmed(name, kernel, clock::now()) {
            Ok(Expiry::RolledBack(undone)) => operator
                .say(&format!("{name} was on trial and was not confirmed in time: rolled back. {undone}")),
            Ok(Expiry::NotYet { .. } | Expiry::Settled(_)) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Returns whether the program of this trial exited before it confirmed or rolled back the trial. A guard
/// process also resumes a partial rollback, because it retries.
fn is_left_on_trial(journal: &Journal, transaction: &Transaction, who: Who) -> bool {
    let deadline = match who {
        Who::Anybody => transaction.deadline(),
        Who::Guard => transaction.begin().asked.deadline,
    };
    deadline.is_some() && journal.is_abandoned(transaction)
}
