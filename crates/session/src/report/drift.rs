//! Reports drift: applied settings whose values on the host have changed.

use std::collections::BTreeMap;

use crate::page::{Cell, Page, RecordSchema, Report, Style, Table, record, to_json};
use apply::TransactionName;
use model::{Change, Object, Setting};
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::count::count;

/// The output of `verify`: the applied settings that have changed.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct DriftReport {
    /// The number of settings that have not changed.
    as_applied: usize,
    drifted: Vec<Line>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Line {
    transaction: TransactionName,
    object: String,
    knob: &'static str,
    applied: String,
    /// The value in force; `None` if it cannot be read.
    found: Option<String>,
    note: &'static str,
    cause: Option<String>,
    /// The device or process that the object belongs to. JSON omits it, because objects name it.
    #[serde(skip)]
    subject: Subject,
}

/// The owner of an object. The object disappears together with its owner.
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

    /// Returns the owner's name, and a likely reason for its disappearance.
    fn owner(&self) -> Option<(&str, &'static str)> {
        match self {
            Self::Device(name) => Some((name, "it was moved to another network namespace, or removed")),
            Self::Process(name) => Some((name, "the process exited, or closed its descriptors")),
            Self::Object => None,
        }
    }
}

/// Why an applied setting cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnreadCause {
    /// The object, and therefore the setting, no longer exists.
    Gone,
    /// The device was removed, and another device without the settings now has its name.
    Recreated,
    /// The kernel does not report the setting.
    Unreadable,
}

impl UnreadCause {
    const fn word(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Recreated => "recreated",
            Self::Unreadable => "unreadable",
        }
    }
}

impl DriftReport {
    /// Counts one more unchanged setting.
    pub fn holds(&mut self) {
        self.as_applied += 1;
    }

    /// Adds a setting whose value has changed.
    pub fn drifted(&mut self, transaction: TransactionName, change: &Change, found: &Setting) {
        self.line(transaction, change, Some(found.value()), "drifted", None);
    }

    /// Adds a setting that can no longer be read.
    pub fn unreadable(
        &mut self,
        transaction: TransactionName,
        change: &Change,
        state: UnreadCause,
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

    /// Returns the number of unchanged settings.
    pub const fn held(&self) -> usize {
        self.as_applied
    }

    /// Returns the changed settings: for each, the object, the setting, and `drifted`, `gone`, `recreated` or
    /// `unreadable`.
    pub fn changed(&self) -> impl Iterator<Item = (&str, &'static str, &'static str)> {
        self.drifted.iter().map(|line| (line.object.as_str(), line.knob, line.note))
    }

    /// Returns whether any setting of an existing object has changed or was lost. A setting that has
    /// disappeared with its object is no drift.
    pub fn is_drift(&self) -> bool {
        self.drifted.iter().any(|line| line.note != UnreadCause::Gone.word())
    }
}

impl Report for DriftReport {
    const KIND: &'static str = "drift";

    fn page(&self, page: &mut Page) {
        let mut table = Table::new(&["OBJECT", "SETTING", "APPLIED", "FOUND", "", "TRANSACTION", "NOTE"]);
        // Settings share a row if they disappeared with the same owner, or cannot be read for the same
        // reason.
        let gone = UnreadCause::Gone.word();
        let kind = |line: &Line| {
            (
                line.transaction,
                line.subject.clone(),
                line.note,
                line.cause.clone().filter(|_| line.note != gone),
            )
        };
        let mut alike = BTreeMap::new();
        for line in &self.drifted {
            *alike.entry(kind(line)).or_insert(0) += 1;
        }
        for line in &self.drifted {
            let count_alike = alike.get(&kind(line)).copied();
            let folds =
                line.note == gone || line.note == UnreadCause::Unreadable.word() && count_alike != Some(1);
            if let Some((subject, went)) = line.subject.owner().filter(|_| folds) {
                // The row of the first such setting represents all of them.
                let Some(settings) = alike.remove(&kind(line)) else { continue };
                let (why, style) = match line.note == gone {
                    true => (went, Style::Faint),
                    false => (line.cause.as_deref().unwrap_or_default(), Style::Bad),
                };
                table.row([
                    Cell::new(subject),
                    Cell::new(count(settings, "setting")),
                    Cell::new(""),
                    Cell::new(""),
                    Cell::new(line.note).style(style),
                    Cell::new(line.transaction.to_string()),
                    Cell::new(why),
                ]);
                continue;
            }
            let style = if line.note == gone { Style::Faint } else { Style::Bad };
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

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
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
            report.unreadable(
                name,
                &change("lxc12", 9, queue),
                UnreadCause::Gone,
                "no such device".to_owned(),
            );
        }
        report.unreadable(name, &change("eth0", 2, 0), UnreadCause::Unreadable, "EPERM".to_owned());
        for queue in 0..4 {
            report.unreadable(
                name,
                &change("eth1", 3, queue),
                UnreadCause::Unreadable,
                "it is down".to_owned(),
            );
        }
        let mut page = Page::new(false);
        report.page(&mut page);
        let page = page.into_text();
        let rows: Vec<&str> = page.lines().collect();
        assert_eq!(rows.len(), 4, "{page}");
        assert!(rows[1].contains("lxc12") && rows[1].contains("12 settings"), "{page}");
        assert!(rows[1].contains("it was moved to another network namespace, or removed"), "{page}");
        assert!(rows[2].contains("eth0") && rows[2].contains("EPERM"), "{page}");
        assert!(rows[3].contains("eth1") && rows[3].contains("4 settings"), "{page}");
        assert!(rows[3].contains("unreadable") && rows[3].contains("it is down"), "{page}");
        assert_eq!(report.lines().len(), 17, "programs get each");
    }
}
