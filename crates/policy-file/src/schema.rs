//! The JSON Schema of policy files, for editors.

use std::sync::LazyLock;

use model::{Carries, CpuSet, DeliveryMode, OnMissed, OnReversed, Patterns, PolicyName, QdiscKind};
use serde_json::{Map, Value as Json, json};

use crate::key::{KEYS, KeyType, PolicyKey, SectionKind};

/// The pattern of a delivery mode, with the time span of modes that have one.
pub(crate) static DELIVERY: LazyLock<String> = LazyLock::new(|| {
    let (timed, plain): (Vec<_>, Vec<_>) =
        DeliveryMode::EACH.into_iter().partition(|mode| mode.time().is_some());
    let names = |modes: Vec<DeliveryMode>| {
        let names = modes.into_iter().map(DeliveryMode::name).flat_map(|name| {
            let other = (name == DeliveryMode::Interrupt.name()).then_some(DeliveryMode::BASE);
            std::iter::once(name).chain(other)
        });
        names.collect::<Vec<_>>().join("|")
    };
    format!("^({}|({})([0-9]+|:[0-9.]+ *(ns|us|µs|ms|s))?)$", names(plain), names(timed))
});

/// The pattern of a time span.
pub(crate) const SPAN: &str = "^(0|[0-9]+(\\.[0-9]+)? *(ns|us|µs|ms|s))$";

/// The pattern of how much of each second to measure.
pub(crate) const SAMPLE: &str = "^(0|off|[0-9]+(\\.[0-9]+)? *(ns|us|µs|ms|s))$";

/// The pattern of a list of CPUs.
pub(crate) const CPUS: &str = "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$";

/// The pattern of a layout of queues, interrupts and CPUs.
pub(crate) const LAYOUT: &str = "^(one-to-one|rx-per-core|local-numa|shared:[0-9]+|rx [0-9].*)$";

/// Returns the JSON Schema of policy files.
pub fn json_schema() -> Json {
    let mut kinds: Map<String, Json> = SectionKind::OF_TRAFFIC
        .into_iter()
        .map(|kind| {
            let sections = json!({ "type": "object", "additionalProperties": section(kind) });
            (kind.word().to_owned(), sections)
        })
        .collect();
    kinds.insert(SectionKind::Daemon.word().to_owned(), section(SectionKind::Daemon));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "netpolicy/v1/policy-file",
        "title": "netpolicy policy file",
        "type": "object",
        "properties": kinds,
        "additionalProperties": false,
    })
}

fn section(kind: SectionKind) -> Json {
    let mut properties = Map::new();
    for key in KEYS.iter().filter(|key| key.of.contains(&kind)) {
        match key.path.split_once('.') {
            None => {
                properties.insert(key.path.to_owned(), value(key));
            }
            Some((table, name)) => {
                let mut table = properties.entry(table).or_insert_with(no_keys_yet);
                let mut name = name;
                while let Some((inner, rest)) = name.split_once('.') {
                    let keys = &mut table["properties"];
                    if keys[inner].is_null() {
                        keys[inner] = no_keys_yet();
                    }
                    (table, name) = (&mut keys[inner], rest);
                }
                table["properties"][name] = value(key);
            }
        }
    }
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// Returns a schema that accepts only an empty table. The caller adds the keys.
fn no_keys_yet() -> Json {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

fn value(key: &PolicyKey) -> Json {
    let mut schema = match key.takes {
        KeyType::Policy(_) => json!({ "enum": PolicyName::ALL.map(PolicyName::as_str) }),
        KeyType::Delivery(_) => json!({ "type": "string", "pattern": *DELIVERY }),
        KeyType::Growth(_) => json!({ "type": "string", "pattern": "^\\+?[0-9]{1,4}(\\.[0-9])? *%$" }),
        KeyType::Holdback(_) => json!({ "type": "string", "pattern": "^[0-9]{1,2}(\\.[0-9])?%$" }),
        KeyType::Span(_) | KeyType::PositiveSpan(_) | KeyType::Within { .. } => {
            json!({ "type": "string", "pattern": SPAN })
        }
        KeyType::OnMissed(_) => json!({ "enum": OnMissed::ALL.map(OnMissed::as_str) }),
        KeyType::OnReversed(_) => json!({ "enum": OnReversed::ALL.map(OnReversed::as_str) }),
        KeyType::Sample(_) => json!({ "type": "string", "pattern": SAMPLE }),
        KeyType::Number { min, max, .. } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        KeyType::Cpus(_) => json!({
            "type": "string",
            "pattern": CPUS,
            "$comment": format!("CPU numbers are below {}", CpuSet::CPUS_MAX),
        }),
        KeyType::Kthread(key) => json!({ "type": "string", "pattern": key.pattern }),
        KeyType::Layout(_) => json!({ "type": "string", "pattern": LAYOUT }),
        KeyType::Patterns(_) => json!({
            "anyOf": [
                { "type": "string", "minLength": 1 },
                {
                    "type": "array", "items": { "type": "string", "minLength": 1 },
                    "minItems": 1, "maxItems": Patterns::COUNT_MAX
                },
            ]
        }),
        KeyType::Carries(_) => json!({ "enum": Carries::ALL.map(Carries::as_str) }),
        KeyType::Speed(_) => json!({ "type": "string", "pattern": "^(>=|<=|>|<|=)? *[0-9]+[GM]$" }),
        KeyType::Switch(_) => json!({ "type": "boolean" }),
        KeyType::CpusOrNone(_) => {
            json!({ "type": "string", "pattern": "^(none|[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)$" })
        }
        KeyType::QueueSpans(_) => {
            json!({ "type": "string", "pattern": "^[0-9]+(-[0-9]+)?( *, *[0-9]+(-[0-9]+)?)*$" })
        }
        KeyType::FlowRules(_) => json!({
            "type": "string",
            "pattern": "^(tcp4|udp4|tcp6|udp6|ether)( .*)? (queue [0-9]+|context [0-9]+(-[0-9]+)?|drop)$",
        }),
        KeyType::Qdisc(_) => {
            json!({ "enum": QdiscKind::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>() })
        }
        KeyType::PrivateFlags(_) => {
            json!({ "type": "string", "pattern": "^[^,=]+=(on|off)(,[^,=]+=(on|off))*$" })
        }
    };
    let mut description = key.meaning.clone().into_owned();
    // The pattern of a time span does not restrict its range, so describe the range.
    if let KeyType::Within { least, most, .. } = key.takes {
        description += &format!(" From {least} to {most}.");
    }
    schema["description"] = Json::String(description);
    schema
}
