//! The records of a journal.
//!
//! A journal is a file of JSON lines. Each line has a sequence number, one record, and the checksum of
//! everything before it on the line:
//!
//! ```json
//! {"seq":2,"record":{"done":{"step":0}},"crc":"dc1c081a"}
//! ```
//!
//! The checksum comes last, at a fixed position, so that it covers the bytes of the line and not a
//! re-serialisation. Any JSON tool can read the file; only this crate writes it.

use std::fmt;

use model::{Nanoseconds, Pid, Plan};
use serde::{Deserialize, Serialize};

use crate::fate::Fate;
use crate::knobs::ObjectCookies;
use crate::moment::Moment;
use crate::transaction_name::TransactionName;

/// The version of the journal's format that this program writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

/// One entry of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum JournalRecord {
    /// The transaction begins: the planned changes with their old values. On disk before the first write.
    Begin(Box<Begin>),
    /// A step is about to be written.
    Tried {
        /// The step's index in the plan, from 0.
        step: usize,
    },
    /// The step was written, and its settings read back as planned.
    Done {
        /// The step's index in the plan, from 0.
        step: usize,
    },
    /// All steps are done and are to be kept.
    Committed,
    /// All steps are done, but are kept only if the transaction is confirmed in time.
    HeldUntil {
        /// The deadline: time since boot.
        deadline: Nanoseconds,
    },
    /// A held transaction was confirmed.
    Confirmed {
        /// The time of the confirmation.
        at: Moment,
    },
    /// The steps are about to be undone, last first.
    Undoing {
        /// The reason.
        why: Why,
    },
    /// The results of undoing a step's changes.
    Undone {
        /// The step's index in the plan, from 0.
        step: usize,
        /// The result of each change, in the step's order.
        fates: Vec<Fate>,
    },
    /// The undo has ended.
    Closed {
        /// How the transaction ended.
        ending: Ending,
    },
}

/// The head of a transaction: everything that is needed to undo it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// The journal's format: [`FORMAT`].
    pub format: u32,
    /// The id of the boot in which the transaction was made: `/proc/sys/kernel/random/boot_id`. Settings do
    /// not survive a reboot.
    pub boot_id: String,
    /// The request: its time, command and kernel.
    pub asked: TransactionOrigin,
    /// The program that owns the transaction until it exits, if any.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "attended_by", alias = "owned_by")]
    pub owned_by: Option<Pid>,
    /// Whether the owning program leaves the transaction in force when it exits. Otherwise it rolls the
    /// transaction back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_in_force: bool,
    /// Whether a daemon made the transaction. The daemon maintains the transaction's settings while it runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept_by_daemon: bool,
    /// The transactions that this one replaces: its plan is their net effect. The replaced transactions are
    /// void, even if their directories still exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<TransactionName>,
    /// Cookies that identify the plan's objects: a later object of the same name has a different cookie.
    /// Empty in journals of versions that recorded none.
    #[serde(default, rename = "landmarks", skip_serializing_if = "ObjectCookies::is_empty")]
    pub object_cookies: ObjectCookies,
    /// Every change, with its old value, new value and reason. Names of devices and processes are included.
    pub plan: Plan,
}

/// The request that led to a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransactionOrigin {
    /// The time of the request.
    pub at: Moment,
    /// The command as typed.
    pub command: String,
    /// The kernel's release: `uname -r`.
    pub kernel_release: String,
    /// The version of netpolicy.
    pub netpolicy: String,
    /// The time since boot by which the transaction must be kept or confirmed. If it is not, it is undone,
    /// even if its program was killed earlier. `None` for a transaction without a deadline.
    pub deadline: Option<Nanoseconds>,
}

/// Why a transaction was undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Why {
    /// A step failed.
    Failed {
        /// The error, as text.
        cause: String,
    },
    /// The program decided not to keep the transaction.
    NotKept,
    /// The program failed before it decided whether to keep the transaction.
    Dropped,
    /// An operator requested the undo.
    Asked {
        /// The time of the request.
        at: Moment,
    },
    /// The transaction was not confirmed in time.
    Expired {
        /// The time at which the missed deadline was noticed.
        at: Moment,
    },
}

/// The result of an undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// Every setting that the transaction changed has its old value again, unless another program has changed
    /// it since, or its object no longer exists.
    RolledBack,
    /// Some settings could not be restored.
    Incomplete,
}

/// Why a line of a journal is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line has no checksum at its end.
    #[error("the line has no checksum at its end")]
    NoCheckSum,
    /// The line's checksum is wrong.
    #[error("checksum mismatch: recorded {found:08x}, computed {computed:08x}")]
    CheckSum {
        /// The checksum in the line.
        found: u32,
        /// The checksum computed from the line's bytes.
        computed: u32,
    },
    /// The checksum is right, but this program does not understand the record.
    #[error("not a record: {0}")]
    NotARecord(String),
    /// The journal has another format.
    #[error("the journal has format {found}; this program reads format {FORMAT}")]
    Format {
        /// The journal's format.
        found: u32,
    },
    /// The line's sequence number is not the successor of the previous line's.
    #[error("the line has number {found}, expected {expected}")]
    Sequence {
        /// The number in the line.
        found: u64,
        /// The expected number.
        expected: u64,
    },
    /// The record is invalid at this position: there is no such step, or a step is recorded as done that was
    /// not begun.
    #[error("record \"{0}\" is not valid at this position")]
    OutOfPlace(&'static str),
}

/// The fixed bytes between a record and its checksum, and those after the checksum.
const CRC_OPENS: &[u8] = b",\"crc\":\"";
const CRC_CLOSES: &[u8] = b"\"}";
const CRC_DIGITS: usize = 8;

#[derive(Serialize)]
struct LineOut<'a> {
    seq: u64,
    record: &'a JournalRecord,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LineIn {
    seq: u64,
    record: JournalRecord,
}

/// The fields that the first line has in every format of the journal.
#[derive(Deserialize)]
struct AnyFormat {
    record: AnyRecord,
}

#[derive(Deserialize)]
struct AnyRecord {
    begin: AnyBegin,
}

#[derive(Deserialize)]
struct AnyBegin {
    format: u32,
}

/// Encodes a record as a line with a trailing newline.
pub fn encode_line(seq: u64, record: &JournalRecord) -> Vec<u8> {
    let mut line = serde_json::to_vec(&LineOut { seq, record }).expect("records serialize to JSON");
    line.pop(); // The closing brace comes after the checksum.
    let crc = crc32fast::hash(&line);
    line.extend_from_slice(CRC_OPENS);
    line.extend_from_slice(format!("{crc:0CRC_DIGITS$x}").as_bytes());
    line.extend_from_slice(CRC_CLOSES);
    line.push(b'\n');
    line
}

/// Parses a line without its newline, and returns its sequence number and record. Any bytes give a result or
/// an error, never a panic.
///
/// # Errors
/// If the bytes are not a line that [`encode_line`] could have written.
pub fn decode_line(line: &[u8]) -> Result<(u64, JournalRecord), LineError> {
    let (head, found) = split_check_sum(line).ok_or(LineError::NoCheckSum)?;
    let computed = crc32fast::hash(head);
    if found != computed {
        return Err(LineError::CheckSum { found, computed });
    }
    let mut json = head.to_vec();
    json.push(b'}');
    match serde_json::from_slice(&json) {
        Ok(AnyFormat { record: AnyRecord { begin: AnyBegin { format } } }) if format != FORMAT => {
            return Err(LineError::Format { found: format });
        }
        Ok(_) | Err(_) => {}
    }
    let LineIn { seq, record } =
        serde_json::from_slice(&json).map_err(|e| LineError::NotARecord(e.to_string()))?;
    Ok((seq, record))
}

fn split_check_sum(line: &[u8]) -> Option<(&[u8], u32)> {
    let rest = line.strip_suffix(CRC_CLOSES)?;
    let (rest, digits) = rest.split_at_checked(rest.len().checked_sub(CRC_DIGITS)?)?;
    let head = rest.strip_suffix(CRC_OPENS)?;
    if !digits.iter().all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let digits = std::str::from_utf8(digits).ok()?;
    Some((head, u32::from_str_radix(digits, 16).ok()?))
}

impl JournalRecord {
    /// Returns the record's name in the journal.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Begin(_) => "begin",
            Self::Tried { .. } => "tried",
            Self::Done { .. } => "done",
            Self::Committed => "committed",
            Self::HeldUntil { .. } => "held-until",
            Self::Confirmed { .. } => "confirmed",
            Self::Undoing { .. } => "undoing",
            Self::Undone { .. } => "undone",
            Self::Closed { .. } => "closed",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { cause } => write!(f, "a step failed: {cause}"),
            Self::NotKept => f.write_str("the plan was not kept"),
            Self::Dropped => f.write_str("the program failed before it kept or undid the change"),
            Self::Asked { at } => write!(f, "an operator requested it at {at}"),
            Self::Expired { at } => write!(f, "the transaction was not confirmed in time, at {at}"),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_is_json_with_its_check_sum_last() {
        let line = encode_line(2, &JournalRecord::Done { step: 0 });
        let text = std::str::from_utf8(&line).expect("text");
        insta::assert_snapshot!(text, @r#"{"seq":2,"record":{"done":{"step":0}},"crc":"dc1c081a"}"#);
        assert!(serde_json::from_str::<serde_json::Value>(text).is_ok());
        assert_eq!(decode_line(&line[..line.len() - 1]), Ok((2, JournalRecord::Done { step: 0 })));
    }

    #[test]
    fn a_single_flipped_bit_anywhere_in_a_line_is_noticed() {
        let line = encode_line(7, &JournalRecord::HeldUntil { deadline: Nanoseconds(60_000_000_000) });
        let line = &line[..line.len() - 1];
        for bit in 0..line.len() * 8 {
            let mut broken = line.to_vec();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_line(&broken).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_journal_of_a_later_format_is_refused_by_its_number() {
        let mut head = br#"{"seq":0,"record":{"begin":{"format":2,"novelty":[1,2]}}"#.to_vec();
        let crc = crc32fast::hash(&head);
        head.extend_from_slice(format!(",\"crc\":\"{crc:08x}\"}}").as_bytes());
        assert_eq!(decode_line(&head), Err(LineError::Format { found: 2 }));
    }

    #[test]
    fn a_record_with_a_right_check_sum_but_an_impossible_plan_is_refused() {
        let mut head = br#"{"seq":0,"record":{"tried":{"step":-1}}"#.to_vec();
        let crc = crc32fast::hash(&head);
        head.extend_from_slice(format!(",\"crc\":\"{crc:08x}\"}}").as_bytes());
        assert!(matches!(decode_line(&head), Err(LineError::NotARecord(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode_line(&bytes).is_err());
        }

        #[test]
        fn any_json_with_a_right_check_sum_gives_an_answer(text in r#"\{"seq":[0-9]{1,25},"record":[ -~]{0,80}"#) {
            let crc = crc32fast::hash(text.as_bytes());
            let _answer = decode_line(format!("{text},\"crc\":\"{crc:08x}\"}}").as_bytes());
        }
    }
}
