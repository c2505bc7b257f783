//! What a journal says, line by line.
//!
//! A journal is a file of JSON lines. Each has its number, one record, and the check sum of all that stands
//! before it on the line:
//!
//! ```json
//! {"seq":2,"record":{"done":{"step":0}},"crc":"dc1c081a"}
//! ```
//!
//! The check sum stands last, at a fixed place, so that it covers the bytes as they are and not some way of
//! writing them again. Any JSON tool can read the file; nothing but this room writes it.

use std::fmt;

use model::{Nanoseconds, Pid, Plan};
use serde::{Deserialize, Serialize};

use crate::fate::Fate;
use crate::knobs::ObjectCookies;
use crate::moment::Moment;
use crate::transaction_name::TransactionName;

/// The version of the journal's format that this program writes, and the only one it reads.
pub const FORMAT: u32 = 1;

/// One entry of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Record {
    /// What will be done, and what was before. Durable before the first write.
    Begin(Box<Begin>),
    /// A step is about to be written.
    Tried {
        /// Its place in the plan, counted from 0.
        step: usize,
    },
    /// The step was written and reads back as wanted.
    Done {
        /// Its place in the plan, counted from 0.
        step: usize,
    },
    /// All steps are done and shall stay.
    Committed,
    /// All steps are done and shall stay only if they are confirmed in time.
    HeldUntil {
        /// The deadline: time since boot.
        deadline: Nanoseconds,
    },
    /// A held transaction shall stay.
    Confirmed {
        /// When that was said.
        at: Moment,
    },
    /// The steps are about to be undone, the last first.
    Undoing {
        /// For what cause.
        why: Why,
    },
    /// What became of a step's changes when they were undone.
    Undone {
        /// The step's place in the plan, counted from 0.
        step: usize,
        /// The fate of each change, in the step's order.
        fates: Vec<Fate>,
    },
    /// The undo has come to its end.
    Closed {
        /// Which.
        ending: Ending,
    },
}

/// The head of a transaction: all that it takes to undo it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// The journal's format: [`FORMAT`].
    pub format: u32,
    /// The boot that the transaction belongs to: `/proc/sys/kernel/random/boot_id`. Settings do not outlive it.
    pub boot_id: String,
    /// Who asked, when, and for what.
    pub asked: Asked,
    /// The program that owns the transaction until it exits, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "attended_by", alias = "owned_by")]
    pub owned_by: Option<Pid>,
    /// Whether that program leaves the transaction in force when it exits. Otherwise it rolls it back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_in_force: bool,
    /// Whether a daemon made it, and maintains its settings while it runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept_by_daemon: bool,
    /// The transactions that this one replaces: its plan is their net effect. They are void, even if their directories
    /// still exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<TransactionName>,
    /// Identities of the plan's objects, which later objects of the same name do not have. Empty in journals of versions
    /// that recorded none.
    #[serde(default, rename = "landmarks", skip_serializing_if = "ObjectCookies::is_empty")]
    pub object_cookies: ObjectCookies,
    /// Every change: its value before, its value after, and why. Names of devices and processes are in it.
    pub plan: Plan,
}

/// Who asked for a transaction, when, and for what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// When.
    pub at: Moment,
    /// The command, as the operator typed it.
    pub command: String,
    /// The kernel: `uname -r`.
    pub kernel_release: String,
    /// The version of netpolicy.
    pub netpolicy: String,
    /// The time since boot by which the transaction must be kept or confirmed, or else it is undone, even if
    /// its program is killed before that. `None` for a transaction without a deadline.
    pub deadline: Option<Nanoseconds>,
}

/// Why a transaction was undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Why {
    /// A step failed.
    Failed {
        /// What went wrong, in words.
        cause: String,
    },
    /// Its program decided against it.
    NotKept,
    /// Its program failed before it decided.
    Dropped,
    /// An operator requested it.
    Asked {
        /// When.
        at: Moment,
    },
    /// It was not confirmed in time.
    Expired {
        /// When that was noticed.
        at: Moment,
    },
}

/// How an undo came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// Everything that was ours is as it was.
    RolledBack,
    /// Some settings could not be put back.
    Incomplete,
}

/// Why some bytes are not a journal line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line does not end in a check sum.
    #[error("the line has no checksum at its end")]
    NoCheckSum,
    /// The check sum is not that of the line.
    #[error("the checksum is {found:08x}, and the line's is {computed:08x}")]
    CheckSum {
        /// What the line says.
        found: u32,
        /// What it should say.
        computed: u32,
    },
    /// The check sum is right, but this program does not understand the record.
    #[error("not a record: {0}")]
    NotARecord(String),
    /// The journal is of another format.
    #[error("the journal is of format {found}, this program reads format {FORMAT}")]
    Format {
        /// The format that it says it has.
        found: u32,
    },
    /// The line's number does not follow that of the line before.
    #[error("the line has number {found} where {expected} should stand")]
    Sequence {
        /// What the line says.
        found: u64,
        /// What it should say.
        expected: u64,
    },
    /// The record cannot stand here: no such step, or a step done that was not tried.
    #[error("record \"{0}\" is not valid at this position")]
    OutOfPlace(&'static str),
}

/// The text between a record and its check sum, and the text after it.
const CRC_OPENS: &[u8] = b",\"crc\":\"";
const CRC_CLOSES: &[u8] = b"\"}";
const CRC_DIGITS: usize = 8;

#[derive(Serialize)]
struct LineOut<'a> {
    seq: u64,
    record: &'a Record,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LineIn {
    seq: u64,
    record: Record,
}

/// What every format of the journal must have in its first line.
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

/// A record as a line, with its closing newline.
pub fn encode_line(seq: u64, record: &Record) -> Vec<u8> {
    let mut line = serde_json::to_vec(&LineOut { seq, record }).expect("a record has no map with odd keys");
    line.pop(); // The closing brace comes after the check sum.
    let crc = crc32fast::hash(&line);
    line.extend_from_slice(CRC_OPENS);
    line.extend_from_slice(format!("{crc:0CRC_DIGITS$x}").as_bytes());
    line.extend_from_slice(CRC_CLOSES);
    line.push(b'\n');
    line
}

/// Reads a line, without its newline: its number and its record. Total: any bytes give an answer.
///
/// # Errors
/// If the bytes are not a line that [`encode_line`] could have written.
pub fn decode_line(line: &[u8]) -> Result<(u64, Record), LineError> {
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

impl Record {
    /// The record's name, as it stands in the journal.
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
            Self::NotKept => f.write_str("it was not kept"),
            Self::Dropped => f.write_str("its program failed before it decided"),
            Self::Asked { at } => write!(f, "an operator requested it at {at}"),
            Self::Expired { at } => write!(f, "it was not confirmed in time, at {at}"),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_is_json_with_its_check_sum_last() {
        let line = encode_line(2, &Record::Done { step: 0 });
        let text = std::str::from_utf8(&line).expect("text");
        insta::assert_snapshot!(text, @r#"{"seq":2,"record":{"done":{"step":0}},"crc":"dc1c081a"}"#);
        assert!(serde_json::from_str::<serde_json::Value>(text).is_ok());
        assert_eq!(decode_line(&line[..line.len() - 1]), Ok((2, Record::Done { step: 0 })));
    }

    #[test]
    fn a_single_flipped_bit_anywhere_in_a_line_is_noticed() {
        let line = encode_line(7, &Record::HeldUntil { deadline: Nanoseconds(60_000_000_000) });
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
