//! The output of `diff`: the differences between two recordings.

use std::collections::{BTreeMap, BTreeSet};

use model::host::{Device, Irq, Napi, PortRange, Process};
use model::{Finding, Host, IrqNumber, NapiId};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;
use session::page::{Cell, Page, Report, Style, Table, record, to_json};
use session::recording::{AppliedValue, Recording};

/// The output of `diff`: each fact that only one recording has, or whose values differ.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct DifferenceReport {
    differences: Vec<Difference>,
}

/// A fact with its values in both recordings.
#[derive(Debug, JsonSchema, Serialize)]
struct Difference {
    /// The object of the fact: the device, queue, process, request or transaction; `host` for the host
    /// itself.
    object: String,
    fact: String,
    /// The value in the first recording; `None` if that recording does not have the fact.
    a: Option<String>,
    /// The value in the second recording; `None` if that recording does not have the fact.
    b: Option<String>,
}

/// The facts of a recording, by object and by name.
type Facts = BTreeMap<(String, String), String>;

impl DifferenceReport {
    /// Compares two recordings, each with the findings of `doctor`.
    pub(crate) fn of(a: (&Recording, &[Finding]), b: (&Recording, &[Finding])) -> Self {
        let (a, b) = (facts(a.0, a.1), facts(b.0, b.1));
        let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
        let differing = keys.into_iter().filter(|key| a.get(*key) != b.get(*key));
        let differences = differing.map(|key| Difference {
            object: key.0.clone(),
            fact: key.1.clone(),
            a: a.get(key).cloned(),
            b: b.get(key).cloned(),
        });
        Self { differences: differences.collect() }
    }

    /// Returns the number of differences.
    pub(crate) const fn count(&self) -> usize {
        self.differences.len()
    }
}

impl Report for DifferenceReport {
    const KIND: &'static str = "difference";

    fn page(&self, page: &mut Page) {
        let mut table = Table::new(&["OBJECT", "FACT", "A", "B"]);
        for Difference { object, fact, a, b } in &self.differences {
            let cell = |value: &Option<String>| match value {
                Some(value) => Cell::new(value.as_str()),
                None => Cell::new("-").style(Style::Faint),
            };
            table.row([Cell::new(object.as_str()), Cell::new(fact.as_str()), cell(a), cell(b)]);
        }
        if !table.is_empty() {
            page.table(&table);
        }
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<session::page::RecordSchema> {
        vec![record::<Difference>("difference", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        self.differences.iter().map(|one| ("difference", to_json(one))).collect()
    }
}

fn facts(recording: &Recording, findings: &[Finding]) -> Facts {
    let Recording { host, made, .. } = recording;
    let mut facts = Facts::new();
    let ports = |range: &PortRange| Value::from(format!("{}-{}", range.first, range.last));
    let own: [(&str, Value); 12] = [
        ("netpolicy", made.netpolicy.as_str().into()),
        ("kernel", host.release.as_str().into()),
        ("capabilities", to_json(&host.capabilities)),
        ("cpus", to_json(&host.topology.online)),
        ("isolated cpus", to_json(&host.topology.isolated)),
        ("sched_ext", to_json(&host.topology.sched_ext)),
        ("sysctls", to_json(&host.sysctls)),
        ("rps_default_mask", to_json(&host.rps_default_mask)),
        ("local ports", ports(&host.local_ports)),
        ("reserved ports", host.reserved_ports.iter().map(ports).collect()),
        ("rt-throttling", to_json(&host.rt_throttling)),
        ("irqbalance", Value::from(host.irqbalance.is_some())),
    ];
    own.iter().for_each(|(name, value)| flatten("host", name, value, &mut facts));
    let irqs = host.irqs.iter().rev().map(|irq| (irq.number, irq)).collect();
    host.devices.iter().for_each(|device| of_device(device, &irqs, &mut facts));
    of_processes(host, &mut facts);
    match &recording.policy {
        Ok(policy) => {
            for intent in &policy.intents {
                let object = intent.target.to_string();
                flatten(&object, "", &without(to_json(intent), &["target", "origin"]), &mut facts);
            }
        }
        Err(fault) => drop(facts.insert(key("policy files", "refused"), fault.causes.join(": "))),
    }
    for applied in &recording.applied {
        let found = match &applied.value {
            AppliedValue::Found(found) => found.first().unwrap_or(&applied.setting).value(),
            AppliedValue::Unread { why, .. } => why.clone(),
        };
        let fact = format!("{} as applied", applied.setting.knob());
        let value = if found == applied.setting.value() {
            found
        } else {
            format!("{} ({found} now)", applied.setting.value())
        };
        facts.insert((applied.setting.object().to_string(), fact), value);
    }
    if let Ok(journal) = recording.journal()
        && let Ok(history) = journal.history()
    {
        for transaction in &history.transactions {
            let object = format!("transaction {}", transaction.name());
            facts.insert((object, "standing".to_owned()), transaction.standing().to_string());
        }
    }
    for finding in findings {
        let fact = format!("finding {}", finding.rule);
        facts.insert(
            (finding.object.clone(), fact),
            to_json(&finding.severity).as_str().unwrap_or_default().to_owned(),
        );
    }
    facts
}

fn key(object: &str, fact: &str) -> (String, String) {
    (object.to_owned(), fact.to_owned())
}

/// Collects the facts of a device and its queues. Numbers that change with each boot are omitted: NAPI ids,
/// interrupts, pids.
fn of_device(device: &Device, irqs: &BTreeMap<IrqNumber, &Irq>, facts: &mut Facts) {
    let name = device.id.name.to_string();
    let whole = ["id", "rx_queues", "tx_queues", "napis", "holders", "peer", "rss"];
    flatten(&name, "", &without(to_json(device), &whole), facts);
    if let Some(rss) = &device.rss {
        flatten(&name, "rss table", &to_json(&rss.table), facts);
    }
    flatten(&name, "tx queues", &Value::from(device.tx_queues.len()), facts);
    for holder in &device.holders {
        facts.insert((format!("{name} {}", holder.queues()), "held".to_owned()), holder.kind.to_string());
    }
    let napis: BTreeMap<NapiId, &Napi> = device.napis.iter().rev().map(|napi| (napi.id, napi)).collect();
    for queue in &device.rx_queues {
        let object = queue.id.to_string();
        flatten(&object, "", &without(to_json(queue), &["id", "napi"]), facts);
        let Some(napi) = queue.napi.and_then(|edge| napis.get(&edge.napi)) else { continue };
        flatten(&object, "", &without(to_json(napi), &["id", "kthread", "irq"]), facts);
        if let Some(irq) = napi.irq.and_then(|edge| irqs.get(&edge.irq)) {
            flatten(&object, "irq affinity", &to_json(&irq.affinity), facts);
        }
    }
    for queue in &device.tx_queues {
        let object = format!("{name} tx-{}", queue.index);
        flatten(&object, "", &without(to_json(queue), &["index", "napi"]), facts);
    }
}

/// Collects the facts of processes by name. The second process with the same name is called, for example,
/// `nginx (2)`.
fn of_processes(host: &Host, facts: &mut Facts) {
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for process in &host.processes {
        let name = process.id.comm.to_string();
        let nth = known.entry(name.clone()).or_default();
        *nth += 1;
        let name = if *nth == 1 { name } else { format!("{name} ({nth})") };
        let Process { uid, exe, container, cpuset, threads, epolls, sockets, rings, .. } = process;
        let counted: [(&str, Value); 7] = [
            ("uid", (*uid).into()),
            ("exe", exe.as_str().into()),
            ("container", to_json(container)),
            ("cpuset", to_json(cpuset)),
            ("threads", threads.len().into()),
            ("sockets", sockets.len().into()),
            ("io_urings", rings.len().into()),
        ];
        counted.iter().for_each(|(fact, value)| flatten(&name, fact, value, facts));
        for (epoll, nth) in epolls.iter().zip(1..) {
            flatten(&format!("{name} epoll {nth} of {}", epolls.len()), "", &to_json(&epoll.params), facts);
        }
    }
}

/// Removes these fields from an object.
fn without(mut value: Value, fields: &[&str]) -> Value {
    if let Value::Object(all) = &mut value {
        fields.iter().for_each(|field| drop(all.remove(*field)));
    }
    value
}

/// Adds a value to the facts: one fact for each field of an object, one fact for a whole list, and none for
/// null and empty values.
fn flatten(object: &str, name: &str, value: &Value, facts: &mut Facts) {
    let scalar = |value: &Value| match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    match value {
        Value::Null => {}
        Value::String(text) if text.is_empty() => {}
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
                flatten(object, &name, value, facts);
            }
        }
        Value::Array(list) if list.is_empty() => {}
        Value::Array(list) => {
            let list: Vec<String> = list.iter().map(scalar).collect();
            facts.insert(key(object, name), list.join(" "));
        }
        value => drop(facts.insert(key(object, name), scalar(value))),
    }
}
