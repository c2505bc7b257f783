//! How far the host is from what was applied.

use std::collections::BTreeSet;

use apply::TransactionName;
use model::{Change, Object, Setting};
use page::{Cell, Kind, Page, Report, Style, Table, record, to_json};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

use crate::count::count;

/// `verify`'s data: one entry per setting that was applied and is not as it was applied.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct DriftReport {
    /// How many settings are as they were applied.
    as_applied: usize,
    drifted: Vec<Line>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Line {
    transaction: TransactionName,
    object: String,
    knob: &'static str,
    applied: String,
    /// The value in force; `None` where it cannot be read.
    found: Option<String>,
    note: &'static str,
    cause: Option<String>,
    /// The device or process whose object it is; in JSON, each object names it.
    #[serde(skip)]
    subject: Subject,
}

/// Whose objects go together when they go.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Device(String),
    Process(String),
    #[default]
    Object,
}

impl Subject {
    fn of(object: Object) -> Self {
        match (object.device(), object.process()) {
            (Some(device), _) => Self::Device(device.to_string()),
            (None, Some(process)) => Self::Process(process.to_string()),
            (None, None) => Self::Object,
        }
    }

    /// The name, and where it went.
    fn gone(&self) -> Option<(&str, &'static str)> {
        match self {
            Self::Device(name) => Some((name, "it left this network namespace or was removed")),
            Self::Process(name) => Some((name, "it ended, or closed them")),
            Self::Object => None,
        }
    }
}

/// Why a setting that was applied cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// Its object is gone, and its settings with it.
    Gone,
    /// Its device is gone, and another one has its name now, without the settings.
    Recreated,
    /// The kernel does not report it.
    Unreadable,
}

impl Unread {
    const fn word(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Recreated => "recreated",
            Self::Unreadable => "unreadable",
        }
    }
}

impl DriftReport {
    /// Notes a setting that is as it was applied.
    pub fn holds(&mut self) {
        self.as_applied += 1;
    }

    /// Notes a setting that has another value now.
    pub fn drifted(&mut self, transaction: TransactionName, change: &Change, found: &Setting) {
        self.line(transaction, change, Some(found.value()), "drifted", None);
    }

    /// Notes a setting that cannot be read any more.
    pub fn unreadable(
        &mut self,
        transaction: TransactionName,
        change: &Change,
        state: Unread,
        cause: String,
    ) {
        self.line(transaction, change, None, state.word(), Some(cause));
    }

    fn line(
        &mut self,
        transaction: TransactionName,
        change: &Change,
        found: Option<String>,
        note: &'static str,
        cause: Option<String>,
    ) {
        let (object, knob, applied) =
            (change.to().object().to_string(), change.to().knob(), change.to().value());
        let subject = Subject::of(change.to().object());
        self.drifted.push(Line { transaction, object, knob, applied, found, note, cause, subject });
    }

    /// How many settings are as they were applied.
    pub const fn held(&self) -> usize {
        self.as_applied
    }

    /// Whether something has another value than it was given, or is there without it. What is gone altogether is no drift.
    pub fn is_drift(&self) -> bool {
        self.drifted.iter().any(|line| line.note != Unread::Gone.word())
    }
}

impl Report for DriftReport {
    const KIND: &'static str = "drift";

    fn page(&self, page: &mut Page) {
        let mut table = Table::new(&["OBJECT", "SETTING", "APPLIED", "FOUND", "", "TRANSACTION", "NOTE"]);
        let mut folded = BTreeSet::new();
        for line in &self.drifted {
            let gone = line.subject.gone().filter(|_| line.note == Unread::Gone.word());
            if let Some((subject, went)) = gone {
                let together = (line.transaction, &line.subject);
                if !folded.insert(together) {
                    continue;
                }
                let is_one = |other: &&Line| {
                    other.note == line.note && (other.transaction, &other.subject) == together
                };
                let settings = self.drifted.iter().filter(is_one).count();
                table.row([
                    Cell::new(subject),
                    Cell::new(count(settings, "setting")),
                    Cell::new(""),
                    Cell::new(""),
                    Cell::new(line.note).style(Style::Faint),
                    Cell::new(line.transaction.to_string()),
                    Cell::new(went),
                ]);
                continue;
            }
            let style = if line.note == Unread::Gone.word() { Style::Faint } else { Style::Bad };
            table.row([
                Cell::new(line.object.as_str()),
                Cell::new(line.knob),
                Cell::new(line.applied.as_str()),
                Cell::optional(line.found.as_ref()),
                Cell::new(line.note).style(style),
                Cell::new(line.transaction.to_string()),
                Cell::new(line.cause.clone().unwrap_or_default()),
            ]);
        }
        if !table.is_empty() {
            page.table(&table);
        }
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<Kind> {
        vec![record::<Line>("drift", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        self.drifted.iter().map(|line| ("drift", to_json(line))).collect()
    }
}

#[cfg(test)]
mod test {
    use model::{
        DeviceId, EmptyPolls, IfIndex, Label, NapiKnob, NetnsId, QueueIndex, Reason, RxQueue, Setting,
    };

    use super::*;

    #[test]
    fn what_went_with_a_device_is_one_line_and_says_where_it_may_be() {
        let change = |name: &str, ifindex: u32, queue: u32| {
            let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(ifindex), name: Label::new(name) };
            let queue = RxQueue { device, index: QueueIndex(queue) };
            let value = |polls| Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(polls)));
            Change::new(value(0), value(100), Reason::new("a test", "here"))
        };
        let name: TransactionName = "20261122T030000.000000Z-0c01".parse().expect("a name");
        let mut report = DriftReport::default();
        for queue in 0..12 {
            report.unreadable(name, &change("lxc12", 9, queue), Unread::Gone, "no such device".to_owned());
        }
        report.unreadable(name, &change("eth0", 2, 0), Unread::Unreadable, "EPERM".to_owned());
        let mut page = Page::new(false);
        report.page(&mut page);
        let page = page.into_text();
        let rows: Vec<&str> = page.lines().collect();
        assert_eq!(rows.len(), 3, "{page}");
        assert!(rows[1].contains("lxc12") && rows[1].contains("12 settings"), "{page}");
        assert!(rows[1].contains("it left this network namespace or was removed"), "{page}");
        assert!(rows[2].contains("eth0") && rows[2].contains("EPERM"), "{page}");
        assert_eq!(report.lines().len(), 13, "programs get each");
    }
}
