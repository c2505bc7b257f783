//! Reports the reasons for the values of settings.

use crate::page::{Page, RecordSchema, Report, Style, record, to_json};
use apply::{Transaction, TransactionName};
use model::{Change, Judgement, Reason, Setting};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

/// The output of `explain`.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct ExplainedReport {
    settings: Vec<Entry>,
    /// Requests of the policy files that do not correspond to single settings.
    #[serde(skip)]
    asked_for: Vec<String>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Entry {
    object: String,
    knob: &'static str,
    /// The desired value.
    value: String,
    /// The value before the change.
    before: String,
    because: Reason,
    /// Whether the value is in force.
    in_force: bool,
    /// The transaction that set the value; `None` if it is only planned, or was already in force.
    transaction: Option<TransactionName>,
    /// The command of that transaction.
    command: Option<String>,
    /// The verdicts of measurements on that transaction, oldest first.
    verdicts: Vec<Judgement>,
}

impl ExplainedReport {
    /// Adds a change that is in force.
    pub fn in_force(&mut self, change: &Change, transaction: &Transaction) {
        let command = transaction.begin().asked.command.clone();
        self.set_by(change, transaction.name(), command, transaction.judgements());
    }

    fn set_by(
        &mut self,
        change: &Change,
        transaction: TransactionName,
        command: String,
        verdicts: &[Judgement],
    ) {
        self.add(change, Some(transaction), Some(command), verdicts);
    }

    /// Adds a change that the policy files request but that is not in force.
    pub fn pending(&mut self, change: &Change) {
        self.add(change, None, None, &[]);
    }

    /// Adds a desired value that was already in force and therefore needed no change.
    pub fn already(&mut self, wanted: &Setting, because: &Reason) {
        self.settings.push(Entry {
            object: wanted.object().to_string(),
            knob: wanted.knob(),
            value: wanted.value(),
            before: wanted.value(),
            because: because.clone(),
            in_force: true,
            transaction: None,
            command: None,
            verdicts: Vec::new(),
        });
    }

    /// Returns whether the report already has an entry for this setting.
    pub fn names(&self, setting: &Setting) -> bool {
        let object = setting.object().to_string();
        self.settings.iter().any(|entry| entry.knob == setting.knob() && entry.object == object)
    }

    fn add(
        &mut self,
        change: &Change,
        transaction: Option<TransactionName>,
        command: Option<String>,
        verdicts: &[Judgement],
    ) {
        self.settings.push(Entry {
            object: change.to().object().to_string(),
            knob: change.to().knob(),
            value: change.to().value(),
            before: change.from().value(),
            because: change.because().clone(),
            in_force: transaction.is_some(),
            transaction,
            command,
            verdicts: verdicts.to_vec(),
        });
    }

    /// Adds a request of the policy files that is not a single setting.
    pub fn asked_for(&mut self, words: String) {
        self.asked_for.push(words);
    }

    /// Returns the requests added by [`ExplainedReport::asked_for`], one per line.
    pub fn asked_at(&self) -> impl Iterator<Item = &str> {
        self.asked_for.iter().map(String::as_str)
    }

    /// Returns whether there is nothing to explain.
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }
}

impl Report for ExplainedReport {
    const KIND: &'static str = "explained";

    fn page(&self, page: &mut Page) {
        // Most queues of a device have the same values for the same reasons, so print these only once.
        let mut groups: Vec<(Vec<&str>, Vec<String>)> = Vec::new();
        for entries in self.settings.chunk_by(|a, b| a.object == b.object) {
            let object = entries[0].object.as_str();
            let words = words(page, entries);
            match groups.last_mut() {
                Some((objects, same)) if *same == words => objects.push(object),
                _ => groups.push((vec![object], words)),
            }
        }
        for (objects, words) in groups {
            page.gap();
            page.styled(Style::Strong, objects.join(", "));
            words.iter().for_each(|line| page.line(line));
        }
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<Entry>("setting", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        self.settings.iter().map(|entry| ("setting", to_json(entry))).collect()
    }
}

/// Formats the settings of one object. If consecutive settings have the same origin, it is printed once,
/// after the last of them.
fn words(page: &Page, entries: &[Entry]) -> Vec<String> {
    let mut lines = Vec::new();
    let how: Vec<Vec<String>> = entries.iter().map(|entry| came_about(page, entry)).collect();
    for (number, entry) in entries.iter().enumerate() {
        let value = page.word(Style::Good, &entry.value);
        lines.push(format!("  {} {value} (before: {})", entry.knob, entry.before));
        lines.push(format!("    because {}", entry.because));
        if how.get(number + 1) != Some(&how[number]) {
            lines.extend(how[number].iter().map(|line| format!("    {line}")));
        }
    }
    lines
}

fn came_about(page: &Page, entry: &Entry) -> Vec<String> {
    match (&entry.transaction, &entry.command) {
        (Some(transaction), Some(command)) => {
            let verdicts = entry.verdicts.iter().map(|verdict| format!("judged on {verdict}"));
            std::iter::once(format!("set by {transaction}: {command}")).chain(verdicts).collect()
        }
        _ if entry.in_force => vec!["in force before".to_owned()],
        _ => vec![page.word(Style::Warning, "not in force yet: `netpolicy apply` sets it")],
    }
}

#[cfg(test)]
mod test {
    use model::{DeviceId, EmptyPolls, IfIndex, Label, Nanoseconds, NapiKnob, NetnsId, QueueIndex, RxQueue};

    use super::*;

    #[test]
    fn what_is_the_same_for_several_queues_is_said_once() {
        let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") };
        let transaction = "20261121T040500.123456Z-1a2b".parse().expect("a name");
        let mut report = ExplainedReport::default();
        for (queue, polls) in [(0, 100), (1, 100), (2, 7)] {
            let queue = RxQueue { device, index: QueueIndex(queue) };
            let because = || Reason::new("the IRQ stays masked", "10-cache.toml:2");
            for (from, to) in [
                (
                    Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(0))),
                    Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(polls))),
                ),
                (
                    Setting::Napi(queue, NapiKnob::GroFlushTimeout(Nanoseconds(0))),
                    Setting::Napi(queue, NapiKnob::GroFlushTimeout(Nanoseconds(20_000))),
                ),
            ] {
                let change = Change::new(from, to, because());
                report.set_by(&change, transaction, "netpolicy apply".to_owned(), &[]);
            }
        }
        let mut page = Page::new(false);
        report.page(&mut page);
        insta::assert_snapshot!(page.into_text());
    }
}
