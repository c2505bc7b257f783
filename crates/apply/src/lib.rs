//! Commits a plan as one transaction, and rolls it back.
//!
//! This crate defines the order of operations: old values are recorded before they are changed, steps are
//! undone in reverse, and values that other programs have set since are not changed. The crate does not know
//! what a knob means or how it is accessed: it accesses a host only through the trait [`Knobs`]. This is
//! enforced by its dependencies (`model` is the only other crate), by `forbid(unsafe_code)`, and by its
//! tests, which commit on an in-memory host that fails at every step. The one exception is `undo_script.rs`:
//! the script works without netpolicy, so the module knows every knob by name. The crate opens only the
//! journal's files, and reads no clock: the caller passes a [`Moment`].
//!
//! Read in this order: `knobs.rs` (the host), `undo.rs` (how a setting is restored), `commit.rs` and
//! `held.rs` (a transaction in this process), `record.rs` and `log.rs` (the files), `transaction.rs`,
//! `journal.rs` and `recover.rs` (all transactions: history, rollback, confirmation), `undo_script.rs` (undo
//! without netpolicy), `verdicts.rs` (measured verdicts on a transaction). docs/decisions/0002-journal.md
//! explains what is durable when, and why.
#![forbid(unsafe_code)]

mod commit;
mod compaction;
mod daemon_lock;
mod fate;
mod held;
mod journal;
mod knobs;
mod lock;
mod log;
mod moment;
mod progress;
mod record;
mod recorded;
mod recover;
mod regular;
mod roll_back_error;
mod session_lock;
mod transaction;
mod transaction_name;
mod undo;
mod undo_script;
mod unreadable;
mod verdicts;

pub use commit::{Allow, CommitError, CommitFault, Drift, HostOperation, commit, refuse_early};
pub use compaction::{FOLD_MAX, Knob, Ledger};
pub use fate::Fate;
pub use held::{HeldPlan, KeepError};
pub use journal::{History, Journal};
pub use knobs::{
    Knobs, ObjectCookies, device_address_name, device_cookie_name, device_of_address_name,
    device_of_cookie_name,
};
pub use lock::{LOCK_RETRIES_MAX, LOCK_RETRY_AFTER};
pub use log::{JOURNAL_BYTES_MAX, JournalError};
pub use moment::Moment;
pub use record::{
    Begin, Ending, FORMAT, JournalRecord, LineError, TransactionOrigin, Why, decode_line, encode_line,
};
pub use recorded::{RecordedJournal, RecordedTransaction, RecordedUnreadable};
pub use recover::{ConfirmError, Expiry};
pub use roll_back_error::RollBackError;
pub use session_lock::AtExit;
pub use transaction::{Standing, Transaction};
pub use transaction_name::{NotATransaction, TransactionName};
pub use undo::{UndoState, Undone, UndoneChange, UnrestoredSetting};
pub use undo_script::undo_script;
pub use unreadable::Unreadable;
pub use verdicts::VERDICTS_MAX;
