//! Fuzzes a damaged or hostile recording of `netpolicy record`: it is parsed, redacted, and printed by every
//! command.
//!
//! - Text that is parsed is written and parsed again as the same recording.
//! - A redacted recording is a valid recording.

mod generated;

use std::sync::LazyLock;

use generated::{LARGE, STACK, generated};
use serde_json::Value;
use session::recording::{KEY_BYTES, Pseudonyms, Recording, redacted};

/// A recorded host with a policy in force, as JSON.
static KNOWN: LazyLock<Value> = LazyLock::new(|| {
    let text = include_str!("../../crates/netpolicy/tests/hosts/recording.json");
    serde_json::from_str(text).expect("a recording is JSON")
});

/// The same recording with only one element in each list of objects, which is faster to parse.
static SMALL: LazyLock<Value> = LazyLock::new(|| {
    let mut small = KNOWN.clone();
    shorten(&mut small);
    small
});

/// A generated recording with 257 devices, 500 processes and 1000 sockets.
static NODE: LazyLock<Value> = LazyLock::new(|| generated(&KNOWN, LARGE));

/// A generated recording with one device of each kind.
static STACKED: LazyLock<Value> = LazyLock::new(|| generated(&SMALL, STACK));

/// The number of positions that the two bytes of an edit can name. In larger documents, the edits are spread
/// evenly.
const POSITIONS: usize = 1 << 16;

/// The maximum number of edits per input.
const EDITS_MAX: usize = 16;

pub(crate) fn run(bytes: &[u8]) {
    match bytes.split_first() {
        Some((b'~', edits)) => damaged(&KNOWN, edits),
        Some((b'-', edits)) => damaged(&SMALL, edits),
        Some((b'+', edits)) => damaged(&NODE, edits),
        Some((b'=', edits)) => damaged(&STACKED, edits),
        _ => read(bytes),
    }
}

/// Keeps the first element of each list whose elements are objects with equal keys. Other lists can be tuples.
fn shorten(value: &mut Value) {
    match value {
        Value::Array(list) => {
            let keys =
                |value: &Value| value.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>());
            let first = list.first().and_then(keys);
            if first.is_some() && list.iter().all(|value| keys(value) == first) {
                list.truncate(1);
            }
            list.iter_mut().for_each(shorten);
        }
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        _ => {}
    }
}

/// Edits parts of a recording: every six bytes of the input are an edit.
fn damaged(known: &Value, edits: &[u8]) {
    let mut document = known.clone();
    for edit in edits.chunks_exact(6).take(EDITS_MAX) {
        let (at, parts) = (usize::from(u16::from_le_bytes([edit[0], edit[1]])), parts(&document).max(1));
        let mut left = if parts > POSITIONS { at * parts / POSITIONS } else { at % parts };
        change(&mut document, &mut left, edit[2], u16::from_le_bytes([edit[3], edit[4]]), edit[5]);
    }
    read(document.to_string().as_bytes());
}

/// Returns the number of values in a document.
fn parts(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(parts).sum(),
        Value::Object(fields) => fields.values().map(parts).sum(),
        _ => 0,
    }
}

/// Changes the value that `left` other values precede.
fn change(value: &mut Value, left: &mut usize, how: u8, by: u16, more: u8) {
    if *left > 0 {
        *left -= 1;
        let parts: Vec<&mut Value> = match value {
            Value::Array(list) => list.iter_mut().collect(),
            Value::Object(fields) => fields.values_mut().collect(),
            _ => Vec::new(),
        };
        for part in parts {
            let inside = self::parts(part);
            if *left < inside {
                change(part, left, how, by, more);
                return;
            }
            *left -= inside;
        }
        return;
    }
    let by = usize::from(by);
    match value {
        Value::Null => *value = Value::from(by),
        Value::Bool(is) => *is = !*is,
        Value::Number(number) => {
            let was = number.as_u64().unwrap_or_default();
            *value = match how % 6 {
                0 => Value::from(by),
                1 => Value::from(was ^ 1 << (more % 64)),
                2 => Value::from(u64::MAX >> (more % 64)),
                3 => Value::from(-1),
                4 => Value::from(0),
                _ => Value::from(was.wrapping_add(u64::from(more))),
            };
        }
        Value::String(text) => {
            let at = text.char_indices().map(|(at, _)| at).nth(by % (text.len() + 1)).unwrap_or(text.len());
            match how % 4 {
                0 => text.truncate(at),
                1 => text.insert(at, char::from(more)),
                2 => *text = text.repeat(usize::from(more % 4)),
                _ => *value = Value::Null,
            }
        }
        Value::Array(list) if !list.is_empty() => {
            let (one, other) = (by % list.len(), usize::from(more) % list.len());
            match how % 4 {
                0 => drop(list.remove(one)),
                1 => list.insert(other, list[one].clone()),
                2 => list.swap(one, other),
                _ => list.clear(),
            }
        }
        Value::Array(_) => *value = Value::Null,
        Value::Object(fields) => {
            let name = fields.keys().nth(by % fields.len().max(1)).cloned();
            match (how % 3, name) {
                (0, Some(name)) => drop(fields.remove(&name)),
                (1, Some(name)) => drop(fields.insert(name, Value::Null)),
                _ => drop(fields.insert("unknown".to_owned(), Value::from(by))),
            }
        }
    }
}

fn read(bytes: &[u8]) {
    let Ok(recording) = Recording::parse(bytes) else { return };
    let text = recording.to_text();
    let again = Recording::parse(text.as_bytes()).expect("our own recording is read");
    assert_eq!(again.to_text(), text);
    let _ = redacted(&recording, &mut Pseudonyms::new([1; KEY_BYTES]))
        .map(|redacted| Recording::parse(redacted.to_text().as_bytes()).expect("it is a recording"));
    let _ = netpolicy::recording_texts(&recording);
}

#[cfg(test)]
mod test {
    use super::generated::Size;
    use super::*;

    fn parsed(value: &Value) -> Recording {
        Recording::parse(value.to_string().as_bytes()).expect("a recording")
    }

    #[test]
    fn what_is_edited_is_a_recording() {
        for value in [&*KNOWN, &*SMALL, &*NODE, &*STACKED] {
            assert!(netpolicy::recording_texts(&parsed(value)).expect("texts").len() > 5);
        }
        assert!(SMALL.to_string().len() < KNOWN.to_string().len());
    }

    #[test]
    fn a_node_with_64_queues_and_1000_sockets_takes_less_than_a_megabyte() {
        let host = &NODE["host"];
        let sockets = host["processes"].as_array().into_iter().flatten();
        let sockets: usize = sockets.map(|process| process["sockets"].as_array().map_or(0, Vec::len)).sum();
        assert!(sockets >= 1_000 && host["devices"].as_array().is_some_and(|devices| devices.len() > 200));
        let size = Size { stacks: 1, ..LARGE };
        assert!(generated(&KNOWN, size).to_string().len() < 1_000_000);
    }

    /// Tests that no command lists all objects for each object: its lines would grow with the square.
    fn grows_linearly(small: Size, large: Size) {
        let lines = |size| {
            let texts = netpolicy::recording_texts(&parsed(&generated(&KNOWN, size))).expect("texts");
            texts.into_iter().map(|text| text.lines().count())
        };
        for (few, many) in lines(small).zip(lines(large)) {
            assert!(many <= 10 * few, "{few} {many}");
        }
    }

    #[test]
    fn ten_times_the_processes_print_ten_times_the_lines() {
        let size = |processes| Size { queues: 64, stacks: 1, processes };
        grows_linearly(size(200), size(2_000));
    }

    #[test]
    fn ten_times_the_devices_print_ten_times_the_lines() {
        let size = |stacks| Size { queues: 64, stacks, processes: 10 };
        grows_linearly(size(20), size(200));
    }

    /// A finding on each process must not list each device.
    #[test]
    fn ten_times_the_devices_and_processes_print_ten_times_the_lines() {
        let size = |stacks| Size { queues: 4, stacks, processes: 2 * stacks };
        grows_linearly(size(10), size(100));
    }
}
