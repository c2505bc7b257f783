//! Commits a plan as one transaction, and takes it back.
//!
//! This room knows the order of things: what was is noted before it is changed, what was begun is undone in
//! reverse, and what someone else has set since is theirs. It must not know which knob means what, nor how a
//! knob is reached: it sees a host through the trait [`Knobs`]. The wall is held by its dependencies (the model
//! is the only room below), by `forbid(unsafe_code)`, and by its tests, which commit on a host that exists in
//! memory only and fails at every step. The one exception is `undo_script.rs`, which must speak to a host
//! without netpolicy, and so knows every knob by name. Files are opened for the journal alone; clocks are not
//! read: a caller hands in a [`Moment`].
//!
//! Read in this order: `knobs.rs` (the host), `undo.rs` (the one rule by which a setting is put back), `commit.rs`
//! and `held.rs` (a transaction in this process), `record.rs` and `log.rs` (what is on disk), `transaction.rs`,
//! `journal.rs` and `recover.rs` (all transactions: history, roll back, confirm), `undo_script.rs` (the way back
//! without netpolicy). What is durable when, and why, is argued in docs/decisions/0002-journal.md.
#![forbid(unsafe_code)]

mod attendance;
mod commit;
mod crc32;
mod held;
mod journal;
mod keeping;
mod knobs;
mod lock;
mod log;
mod moment;
mod record;
mod recover;
mod regular;
mod transaction;
mod undo;
mod undo_script;
mod unreadable;

pub use attendance::AtTheEnd;
pub use commit::{Allow, CommitError, CommitFault, Doing, Drift, commit};
pub use held::{Held, KeepError};
pub use journal::{History, Journal};
pub use keeping::{FOLD_MAX, Knob, Ledger};
pub use knobs::{Knobs, Landmarks, device_landmark, device_of_landmark};
pub use lock::{LOCK_RETRIES_MAX, LOCK_RETRY_AFTER};
pub use log::{JOURNAL_BYTES_MAX, JournalError};
pub use moment::Moment;
pub use record::{Asked, Begin, Ending, FORMAT, LineError, Record, Why, decode_line, encode_line};
pub use recover::{ConfirmError, Expiry, RollBackError};
pub use transaction::{NotATransaction, Standing, Transaction, TransactionName};
pub use undo::{Fate, HostState, Stuck, Undone, UndoneChange};
pub use undo_script::undo_script;
pub use unreadable::Unreadable;
