//! Fuzzes a damaged or hostile journal.
//!
//! - A line that is parsed is written back as the same bytes.
//! - A journal in which bytes, parts or lines were changed or moved is refused, unless its complete lines are
//!   the first ones that were written. Then its undo is that of those lines.
//! - Records in any order, with valid checksums, undo nothing that is not in the plan.

use std::sync::LazyLock;

use apply::{
    Begin, Ending, FORMAT, Fate, JournalRecord, Moment, Transaction, TransactionName, TransactionOrigin, Why,
};
use model::{
    Change, DeviceId, EmptyPolls, IfIndex, Label, Nanoseconds, NapiKnob, NetnsId, Plan, QueueIndex, Reason,
    RxQueue, Setting, Step,
};

const BOOT: &str = "this-boot";

/// The maximum number of edits per input.
const EDITS_MAX: usize = 8;

pub(crate) fn run(bytes: &[u8]) {
    match bytes.split_first() {
        Some((b'~', edits)) => damaged(edits),
        Some((b'+', records)) => hostile(records),
        _ => line(bytes),
    }
}

fn line(bytes: &[u8]) {
    if let Ok((seq, record)) = apply::decode_line(bytes) {
        let line = apply::encode_line(seq, &record);
        let again =
            apply::decode_line(line.strip_suffix(b"\n").expect("a line ends")).expect("our own line is read");
        assert_eq!(again, (seq, record));
    }
    let _ = read(bytes).map(|transaction| state_of(&transaction));
    // The checksum keeps most inputs from the decoder, so fuzz the decoder directly, too.
    let _ = serde_json::from_slice::<JournalRecord>(bytes);
}

/// Edits one of [`JOURNALS`]: the first byte selects the journal, and every four bytes after that are an
/// edit.
fn damaged(edits: &[u8]) {
    let Some((which, edits)) = edits.split_first() else { return };
    let WrittenJournal { bytes: written, states } = &JOURNALS[usize::from(*which) % JOURNALS.len()];
    let mut bytes = written.clone();
    for edit in edits.chunks_exact(4).take(EDITS_MAX) {
        let at = usize::from(u16::from_le_bytes([edit[1], edit[2]]));
        damage(&mut bytes, edit[0], at, edit[3]);
    }
    if let Some(transaction) = read(&bytes) {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        assert!(written.starts_with(&bytes[..whole]), "a changed line is read");
        let lines = bytes[..whole].iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(state_of(&transaction), states[lines - 1], "it reads as what it never was");
    }
}

fn damage(bytes: &mut Vec<u8>, how: u8, at: usize, by: u8) {
    if bytes.is_empty() {
        return;
    }
    let at = at % bytes.len();
    let end = bytes.len().min(at + usize::from(by));
    let lines = || {
        let mut lines: Vec<Vec<u8>> = bytes.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
        let (one, other) = (at % lines.len(), usize::from(by) % lines.len());
        match how % 8 {
            5 => lines.swap(one, other),
            6 => drop(lines.remove(one)),
            _ => lines.insert(one, lines[other].clone()),
        }
        lines.concat()
    };
    match how % 8 {
        0 => bytes[at] = by,
        1 => bytes.insert(at, by),
        2 => drop(bytes.drain(at..end)),
        3 => bytes.truncate(at),
        4 => {
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        _ => *bytes = lines(),
    }
}

/// Turns each line of the input into a record after a valid beginning.
fn hostile(records: &[u8]) {
    let mut bytes = apply::encode_line(0, &begin());
    let records = records.split(|b| *b == b'\n').filter_map(|json| serde_json::from_slice(json).ok());
    for (record, seq) in records.zip(1..) {
        bytes.extend(apply::encode_line(seq, &record));
    }
    if let Some(transaction) = read(&bytes) {
        let planned: Vec<Change> = plan().changes().cloned().collect();
        let State { live, undone, .. } = state_of(&transaction);
        assert!(live.iter().chain(&undone).all(|change| planned.contains(change)));
    }
}

fn read(bytes: &[u8]) -> Option<Transaction> {
    let name: TransactionName = "20261126T180000.000000Z-1a2b".parse().ok()?;
    Transaction::from_journal(name, bytes, BOOT)
}

/// The state of a transaction in a journal, as far as an undo depends on it.
#[derive(Debug, PartialEq, Eq)]
struct State {
    standing: String,
    live: Vec<Change>,
    undone: Vec<Change>,
    fates: Vec<Fate>,
}

fn state_of(transaction: &Transaction) -> State {
    let (undone, fates) =
        transaction.undone().changes.into_iter().map(|undone| (undone.change, undone.fate)).unzip();
    State {
        standing: format!("{:?} {:?}", transaction.standing(), transaction.why_undone()),
        live: transaction.live_changes().cloned().collect(),
        undone,
        fates,
    }
}

/// A journal, and each state that it passed through.
struct WrittenJournal {
    bytes: Vec<u8>,
    states: Vec<State>,
}

impl WrittenJournal {
    fn new(records: &[JournalRecord]) -> Self {
        let (mut bytes, mut states) = (Vec::new(), Vec::new());
        for (record, seq) in records.iter().zip(0..) {
            bytes.extend(apply::encode_line(seq, record));
            states.push(state_of(&read(&bytes).expect("our own journal is read")));
        }
        Self { bytes, states }
    }
}

/// The journals of three transactions: one that was kept, one that was confirmed and rolled back, and one
/// whose undo got stuck.
static JOURNALS: LazyLock<[WrittenJournal; 3]> = LazyLock::new(|| {
    let at = Moment { unix_micros: 1_795_233_900_123_456, since_boot: Nanoseconds(1_000_000_000) };
    let wrote = || {
        let steps = (0..plan().steps.len())
            .flat_map(|step| [JournalRecord::Tried { step }, JournalRecord::Done { step }]);
        std::iter::once(begin()).chain(steps)
    };
    let undone = |step, fate: Fate| JournalRecord::Undone {
        step,
        fates: vec![fate; plan().steps[step].changes().len()],
    };
    let stuck = Fate::Stuck { found: None, written: true, cause: "EBUSY".to_owned() };
    let kept = wrote().chain([JournalRecord::Committed]);
    let rolled_back = wrote().chain([
        JournalRecord::HeldUntil { deadline: Nanoseconds(2_000_000_000) },
        JournalRecord::Confirmed { at },
        JournalRecord::Undoing { why: Why::Asked { at } },
        undone(1, Fate::Restored),
        undone(0, Fate::AlreadyBack),
        JournalRecord::Closed { ending: Ending::RolledBack },
    ]);
    let incomplete = wrote().take(4).chain([
        JournalRecord::Undoing { why: Why::Failed { cause: "EINVAL".to_owned() } },
        undone(1, stuck),
        undone(0, Fate::Gone),
        JournalRecord::Closed { ending: Ending::Incomplete },
        JournalRecord::Undoing { why: Why::NotKept },
    ]);
    [
        WrittenJournal::new(&kept.collect::<Vec<_>>()),
        WrittenJournal::new(&rolled_back.collect::<Vec<_>>()),
        WrittenJournal::new(&incomplete.collect::<Vec<_>>()),
    ]
});

fn begin() -> JournalRecord {
    let at = Moment { unix_micros: 1_795_233_900_000_000, since_boot: Nanoseconds(900_000_000) };
    JournalRecord::Begin(Box::new(Begin {
        format: FORMAT,
        boot_id: BOOT.to_owned(),
        asked: TransactionOrigin {
            at,
            command: "netpolicy set device eth0 latency".to_owned(),
            kernel_release: "6.18.44".to_owned(),
            netpolicy: "0.1.0".to_owned(),
            deadline: None,
        },
        owned_by: None,
        left_in_force: false,
        kept_by_daemon: false,
        replaces: Vec::new(),
        object_cookies: apply::ObjectCookies::default(),
        plan: plan(),
    }))
}

fn plan() -> Plan {
    let device = DeviceId { netns: NetnsId(4_026_531_840), ifindex: IfIndex(2), name: Label::new("eth0") };
    let step = |index| {
        let queue = RxQueue { device, index: QueueIndex(index) };
        let change = |from: NapiKnob, to: NapiKnob| {
            let reason = Reason::new("short response times", "latency");
            Change::new(Setting::Napi(queue, from), Setting::Napi(queue, to), reason)
        };
        let span = |us| NapiKnob::GroFlushTimeout(Nanoseconds::from_micros(us));
        let defer = |polls| NapiKnob::DeferHardIrqs(EmptyPolls(polls));
        Step::new(vec![change(defer(0), defer(100)), change(span(0), span(20))])
    };
    Plan { steps: vec![step(0), step(1)] }
}
