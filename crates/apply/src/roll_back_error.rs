//! Why a transaction was not, or not completely, rolled back.

use std::path::PathBuf;

use model::{Change, Pid};

use crate::log::JournalError;
use crate::transaction::Standing;
use crate::transaction_name::TransactionName;
use crate::undo::Undone;

/// Why a transaction was not, or not completely, rolled back.
#[derive(Debug, thiserror::Error)]
pub enum RollBackError {
    /// Some settings could not be restored; all others were.
    #[error("{undone}\nTo undo the rest by hand: {}", undo_script.display())]
    Incomplete {
        /// The transaction.
        name: TransactionName,
        /// The result of the undo.
        undone: Undone,
        /// The script that undoes the transaction without netpolicy.
        undo_script: PathBuf,
    },
    /// A newer transaction has changed the same knob, and must be undone first.
    #[error(
        "{name} cannot be rolled back on its own: {newer} has since changed {} of {}. Roll {newer} back first. Nothing was changed.",
        .knob.to().knob(), .knob.to().object()
    )]
    Overlaid {
        /// The transaction.
        name: TransactionName,
        /// The newer transaction.
        newer: TransactionName,
        /// How the newer transaction changed the knob.
        knob: Box<Change>,
    },
    /// A running program owns the transaction, and rolls it back on exit.
    #[error("{name} belongs to process {by}, which rolls it back on exit")]
    Owned {
        /// The transaction.
        name: TransactionName,
        /// The program.
        by: Pid,
    },
    /// Nothing of the transaction is in force, so there is nothing to undo.
    #[error("nothing to undo: {name} is {standing}")]
    NothingToUndo {
        /// The transaction.
        name: TransactionName,
        /// The standing.
        standing: Standing,
    },
    /// The journal could not be read or written, or another process holds its lock.
    #[error(transparent)]
    Journal(#[from] JournalError),
}
