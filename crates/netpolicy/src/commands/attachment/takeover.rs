//! Restores settings that killed attachments left behind.

use std::collections::BTreeSet;

use apply::{Journal, JournalError, Knob, RollBackError, Transaction, TransactionName};
use model::{Pid, ProcessId};
use session::cycle::Planned;
use session::{Fault, clock};

use crate::render::count;
use cli::Context;

/// The knobs that were already checked; the journal is read again only for other knobs.
#[derive(Debug, Default)]
pub(super) struct Takeover {
    looked_at: BTreeSet<Knob>,
}

impl Takeover {
    /// Restores settings that killed programs left on the wanted knobs and on these processes. If a program
    /// has left one of these settings, all of its settings are restored. `own` lists this attachment's
    /// transactions. Returns true if anything may have changed.
    ///
    /// Concurrent calls are safe: each transaction is rolled back once, under the journal's lock, and the
    /// second caller finds that it is done. If this process is killed, the next caller restores the rest.
    pub(super) fn put_back(
        &mut self,
        planned: &Planned,
        processes: &[ProcessId],
        own: &[TransactionName],
        journal: &Journal,
        context: &Context,
    ) -> Result<bool, Fault> {
        let wanted: BTreeSet<Knob> = planned
            .desired
            .wanted
            .iter()
            .map(|wanted| (wanted.setting.object(), wanted.setting.knob()))
            .collect();
        if wanted.is_subset(&self.looked_at) {
            return Ok(false);
        }
        let abandoned = journal.abandoned()?;
        let abandoned: Vec<&Transaction> = abandoned.iter().filter(|t| !own.contains(&t.name())).collect();
        let in_the_way = |transaction: &&&Transaction| {
            transaction.live_changes().any(|change| {
                let object = change.to().object();
                object.process().is_some_and(|process| processes.iter().any(|ours| same(*ours, process)))
                    || wanted.contains(&(object, change.to().knob()))
            })
        };
        let programs: BTreeSet<Pid> =
            abandoned.iter().filter(in_the_way).filter_map(|t| t.begin().owned_by).collect();
        let mut found = false;
        for program in programs {
            let of_program = abandoned.iter().filter(|t| t.begin().owned_by == Some(program));
            found |= put_back(program, of_program.map(|t| t.name()), journal, context)?;
        }
        self.looked_at.extend(wanted);
        Ok(found)
    }
}

/// Rolls back all transactions that a program has left behind, newest first.
fn put_back(
    program: Pid,
    names: impl Iterator<Item = TransactionName>,
    journal: &Journal,
    context: &Context,
) -> Result<bool, Fault> {
    let mut kernel = linux::Kernel::new();
    let (mut settings, mut found) = (0, false);
    for name in names {
        match journal.roll_back(name, &mut kernel, clock::now()) {
            Ok(undone) => {
                found = true;
                settings += undone.changes.len();
                for (change, other) in undone.left_alone() {
                    context.console.say(&format!(
                        "not restored, another program has changed it: {} {} is {}",
                        change.to().object(),
                        change.to().knob(),
                        other.value()
                    ));
                }
            }
            // Another process has already rolled back this transaction.
            Err(
                RollBackError::NothingToUndo { .. }
                | RollBackError::Journal(JournalError::NoSuchTransaction { .. }),
            ) => found = true,
            // A later transaction in force depends on this one, so both stay.
            Err(error @ (RollBackError::Overlaid { .. } | RollBackError::Owned { .. })) => {
                context
                    .console
                    .say(&format!("Settings left by process {program} could not be restored: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if settings > 0 {
        context.console.say(&format!(
            "Restored first: {}, left by process {program}, which was killed.",
            count(settings, "setting")
        ));
    }
    Ok(found)
}

/// Whether both ids are of the same process, even if its name has changed.
fn same(one: ProcessId, other: ProcessId) -> bool {
    one.pid == other.pid && one.started == other.started
}
