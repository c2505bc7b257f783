//! A recorded journal: the part of a host's recording that can be read like the host's journal.

use std::io::Read;
use std::path::{Path, PathBuf};

use model::{Judgement, Pid};
use serde::{Deserialize, Serialize};

use crate::journal::{History, Journal, remove_replaced_from};
use crate::log::{JOURNAL, JOURNAL_BYTES_MAX, JournalError, io_error};
use crate::record::{JournalRecord, decode_line, encode_line};
use crate::regular;
use crate::transaction::Transaction;
use crate::transaction_name::TransactionName;
use crate::unreadable::Unreadable;

/// A recorded journal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedJournal {
    /// The journal's directory on its host. It is only displayed.
    pub directory: PathBuf,
    /// The readable transactions, oldest first.
    pub transactions: Vec<RecordedTransaction>,
    /// The unreadable transactions, oldest first.
    pub unreadable: Vec<RecordedUnreadable>,
    /// The programs that were running and owned transactions when the journal was recorded.
    pub running: Vec<Pid>,
    /// The daemon that used the journal when it was recorded, if any.
    pub daemon: Option<Pid>,
}

/// A recorded transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedTransaction {
    /// The transaction's name.
    pub name: TransactionName,
    /// The records of the transaction's journal, without the cookies of objects, which only an undo needs.
    pub records: Vec<JournalRecord>,
    /// The measured verdicts, oldest first.
    pub verdicts: Vec<Judgement>,
    /// Why the verdicts could not be read; `None` if they were read.
    pub unread_verdicts: Option<String>,
}

/// A recorded transaction that was unreadable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedUnreadable {
    /// The transaction's name.
    pub name: TransactionName,
    /// The error, as text.
    pub error: String,
    /// The undo script, if it was a regular file.
    pub script: Option<PathBuf>,
    /// Whether the transaction may be in force.
    pub may_be_in_force: bool,
}

impl Journal {
    /// Reads the whole journal for a recording.
    ///
    /// # Errors
    /// As for [`Journal::history`].
    pub fn to_recorded(&self) -> Result<RecordedJournal, JournalError> {
        let History { transactions, unreadable } = self.history()?;
        let mut recorded = RecordedJournal {
            directory: self.directory().to_owned(),
            daemon: self.daemon(),
            ..RecordedJournal::default()
        };
        for transaction in &transactions {
            recorded.running.extend(self.owner(transaction));
            recorded.transactions.push(RecordedTransaction {
                name: transaction.name(),
                records: records(transaction.directory())?,
                verdicts: transaction.judgements().to_vec(),
                unread_verdicts: transaction.unread_judgements().map(str::to_owned),
            });
        }
        recorded.unreadable = unreadable
            .iter()
            .map(|unreadable| RecordedUnreadable {
                name: unreadable.name,
                error: unreadable.to_string(),
                script: unreadable.undo_script().map(Path::to_owned),
                may_be_in_force: unreadable.may_be_in_force(),
            })
            .collect();
        recorded.running.sort_unstable();
        recorded.running.dedup();
        Ok(recorded)
    }
}

impl RecordedJournal {
    /// All transactions, as the journal's host would read them during the boot with this id.
    pub(crate) fn history(&self, boot_id: &str) -> History {
        let mut history = History::default();
        for recorded in &self.transactions {
            match Transaction::from_recorded(recorded, &self.directory, boot_id) {
                Some(transaction) => history.transactions.push(transaction),
                None => history.unreadable.push(Unreadable::recorded(&RecordedUnreadable {
                    name: recorded.name,
                    error: "the recording has no valid journal of this transaction".to_owned(),
                    script: None,
                    may_be_in_force: true,
                })),
            }
        }
        history.unreadable.extend(self.unreadable.iter().map(Unreadable::recorded));
        remove_replaced_from(&mut history.transactions);
        history
    }
}

impl RecordedTransaction {
    /// The bytes of the journal with these records.
    pub(crate) fn journal(&self) -> Vec<u8> {
        self.records.iter().zip(0..).flat_map(|(record, seq)| encode_line(seq, record)).collect()
    }
}

/// The records in a transaction's directory. A truncated last line is left out.
fn records(directory: &Path) -> Result<Vec<JournalRecord>, JournalError> {
    let path = directory.join(JOURNAL);
    let file = regular::open_to_read(&path).map_err(io_error(&path, "open"))?;
    let mut bytes = Vec::new();
    file.take(JOURNAL_BYTES_MAX).read_to_end(&mut bytes).map_err(io_error(&path, "read"))?;
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let mut records = Vec::new();
    for (line, number) in bytes[..whole].split_inclusive(|&byte| byte == b'\n').zip(1..) {
        let (_, mut record) = decode_line(line.strip_suffix(b"\n").unwrap_or(line))
            .map_err(|why| JournalError::Corrupt { file: path.clone(), line: number, why })?;
        if let JournalRecord::Begin(begin) = &mut record {
            begin.object_cookies.clear();
        }
        records.push(record);
    }
    Ok(records)
}
