//! A recording of `netpolicy record`, damaged or hostile: parsed, redacted, planned for, judged and explained.
//!
//! - Text that is read is written and read again as the same recording.
//! - A redacted recording is a recording.

use std::sync::Arc;

use linux::Processes;
use model::Host;
use plan::doctor::HostContext;
use serde_json::Value;
use session::recording::{KEY_BYTES, Pseudonyms, Recording, redacted};
use session::{Session, Silent, app_requests, cycle, explain, verify};

/// A recorded host with a policy in force, as JSON.
const KNOWN: &str = include_str!("../../crates/netpolicy/tests/hosts/recording.json");

/// The maximum number of edits per input.
const EDITS_MAX: usize = 16;

pub(crate) fn run(bytes: &[u8]) {
    match bytes.split_first() {
        Some((b'~', edits)) => damaged(edits),
        _ => read(bytes),
    }
}

/// Edits parts of a known recording: every six bytes are an edit.
fn damaged(edits: &[u8]) {
    let mut document: Value = serde_json::from_str(KNOWN).expect("a recording is JSON");
    for edit in edits.chunks_exact(6).take(EDITS_MAX) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
        let mut left = at % parts(&document).max(1);
        change(&mut document, &mut left, edit[2], u16::from_le_bytes([edit[3], edit[4]]), edit[5]);
    }
    read(document.to_string().as_bytes());
}

/// The number of values in a document.
fn parts(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(parts).sum(),
        Value::Object(fields) => fields.values().map(parts).sum(),
        _ => 0,
    }
}

/// Changes the value before which this many are left.
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
    let again = Recording::parse(recording.to_text().as_bytes()).expect("our own recording is read");
    assert_eq!(again.to_text(), recording.to_text());
    let _ = redacted(&recording, &mut Pseudonyms::new([1; KEY_BYTES]))
        .map(|redacted| Recording::parse(redacted.to_text().as_bytes()).expect("it is a recording"));
    used(recording);
}

/// Does what the commands do with a recording.
fn used(recording: Recording) {
    let facts = recording.doctor.clone();
    let session = Session::of_recording(Arc::new(recording));
    let Ok(source) = session.source() else { return };
    if let Ok(mut host) = source.observe(&Processes::Networking) {
        app_requests::add_to(&mut host, &*source, &session.app_requests());
        judged(&host, &facts, &session);
    }
    let _ = session.whole_policy(&*source, &Silent).and_then(|policy| cycle::plan(&policy, &*source));
    let _ = explain::explained("", &session, &Silent);
    let _ = session.evidence();
    let Ok(journal) = session.journal() else { return };
    let _ = verify::compared(&journal, session.recording.as_deref());
    if let Ok(history) = journal.history() {
        for transaction in &history.transactions {
            let _ = (journal.owner(transaction), journal.is_abandoned(transaction), transaction.undone());
        }
    }
}

fn judged(host: &Host, facts: &session::recording::DoctorFacts, session: &Session) {
    let context = HostContext {
        recipes: session.recipes().unwrap_or_default(),
        command_prefix: session.command_prefix(),
        idle: facts.idle.clone(),
        watched: facts.watched,
        cpu_waits: facts.cpu_waits.clone(),
        batches: facts.batches.iter().map(|(pid, of, counts)| ((*pid, *of), *counts)).collect(),
        others: facts.others.clone(),
        peers: facts.peers.iter().cloned().map(Into::into).collect(),
        proposes: true,
        ..HostContext::default()
    };
    let findings = plan::doctor_with(host, facts.delivered.as_ref(), &[], &context);
    assert!(findings.iter().all(|finding| !finding.rule.is_empty()));
    let _ = plan::doctor::not_known(host, facts.delivered.as_ref(), &context);
}
