//! The JSON Schema of recipe files, for editors.

use model::PolicyName;
use model::recipe::{EpollNapis, Mechanism, PaysFrom, Rung};
use serde_json::{Map, Value as Json, json};

use crate::recipe_file::{ANY, CONDITIONS, MEASURED_ON_MAX, NUMBER_MAX, PAYS_FROM, WHEN};
use crate::schema::{CPUS, DELIVERY, LAYOUT, SPAN};

/// The name of the schema definition for a policy's entries that apply to the whole host.
const OF_THE_HOST: &str = "recipe";

/// The name of the schema definition for a policy's entries that apply to a driver or a case.
const OF_A_DEVICE: &str = "device-recipe";

/// Returns the JSON Schema of recipe files.
pub fn recipe_json_schema() -> Json {
    let names: Vec<&str> = PolicyName::ALL.map(PolicyName::as_str).into_iter().chain([ANY]).collect();
    let by_policy = |recipe: &str, beside: Option<(&str, Json)>| {
        let recipe = json!({ "$ref": format!("#/$defs/{recipe}") });
        let policies = names.iter().map(|name| (*name, recipe.clone())).chain(beside);
        let policies: Map<String, Json> = policies.map(|(name, schema)| (name.to_owned(), schema)).collect();
        json!({ "type": "object", "properties": policies, "additionalProperties": false })
    };
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "netpolicy/v1/recipe-file",
        "title": "netpolicy recipe file",
        "type": "object",
        "properties": {
            "recipe": by_policy(OF_THE_HOST, None),
            "driver": { "type": "object", "additionalProperties": by_policy(OF_A_DEVICE, None) },
            "case": { "type": "object", "additionalProperties": by_policy(OF_A_DEVICE, Some((WHEN, when()))) },
            "ladder": ladders(),
        },
        "additionalProperties": false,
        "$defs": { OF_THE_HOST: recipe(false), OF_A_DEVICE: recipe(true) },
    })
}

/// Returns the schema of ladders, by policy.
fn ladders() -> Json {
    let mut rung = entry(Mechanism::Delivery);
    rung["properties"]["value"] = json!({ "type": "string", "pattern": *DELIVERY });
    rung["properties"][WHEN] = when();
    let ladder = json!({ "type": "array", "items": rung, "maxItems": Rung::COUNT_MAX });
    let policies = PolicyName::optimizing().map(|policy| (policy.as_str().to_owned(), ladder.clone()));
    let policies: Map<String, Json> = policies.into_iter().collect();
    json!({ "type": "object", "properties": policies, "additionalProperties": false })
}

/// Returns the schema of the conditions of a case or of an entry in a ladder.
fn when() -> Json {
    let [driver, own_interrupts, epoll_napis] = CONDITIONS;
    json!({
        "type": "object",
        "properties": {
            driver: { "type": "string" },
            own_interrupts: { "type": "boolean" },
            epoll_napis: { "enum": EpollNapis::ALL.map(EpollNapis::as_str) },
        },
        "minProperties": 1,
        "additionalProperties": false,
    })
}

/// Returns the schema of a policy's entries. Entries for a driver or a case have no host-wide mechanisms.
fn recipe(of_a_device: bool) -> Json {
    let mechanisms =
        Mechanism::all().filter(|mechanism| !of_a_device || !matches!(mechanism, Mechanism::Sysctl(_)));
    let properties: Map<String, Json> =
        mechanisms.map(|mechanism| (mechanism.as_str().to_owned(), entry(mechanism))).collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

fn entry(mechanism: Mechanism) -> Json {
    let any_of: Vec<Json> = std::iter::once(json!({ "const": "keep" })).chain(values(mechanism)).collect();
    let mut entry = json!({
        "type": "object",
        "properties": {
            "value": { "anyOf": any_of },
            "why": { "type": "string" },
            "source": { "type": "string" },
            "measured-on": { "type": "array", "items": { "type": "string" }, "maxItems": MEASURED_ON_MAX },
        },
        "required": ["value"],
        "additionalProperties": false,
    });
    if mechanism == Mechanism::Delivery {
        let number = json!({ "type": "integer", "minimum": 1, "maximum": PaysFrom::MAX });
        entry["properties"][PAYS_FROM] = json!({
            "type": "object",
            "properties": { "packets-per-flush": number, "connections": number },
            "required": ["packets-per-flush", "connections"],
            "additionalProperties": false,
        });
    }
    entry
}

/// Returns the schemas of the values that a mechanism accepts, other than "keep".
fn values(mechanism: Mechanism) -> Vec<Json> {
    let number = || json!({ "type": "integer", "minimum": 0, "maximum": NUMBER_MAX });
    let text = |pattern: &str| json!({ "type": "string", "pattern": pattern });
    match mechanism {
        Mechanism::Delivery => vec![text(&DELIVERY)],
        Mechanism::GroFlushTimeout | Mechanism::IrqSuspendTimeout => vec![text(SPAN)],
        Mechanism::Layout => vec![text(LAYOUT)],
        Mechanism::Reuseport => vec![json!({ "const": "by-queue" })],
        Mechanism::RpsCpus => vec![json!({ "enum": ["none", "if-short"] }), text(CPUS)],
        Mechanism::Channels(_) => vec![number(), json!({ "enum": ["per-core", "max"] })],
        Mechanism::Ring(_) | Mechanism::PacketSize(_) => vec![number(), json!({ "const": "max" })],
        Mechanism::Coalescing(param) if !param.is_switch() => vec![number()],
        Mechanism::DeferHardIrqs
        | Mechanism::RpsFlowCount
        | Mechanism::WakeLatency
        | Mechanism::Sysctl(_) => vec![number()],
        Mechanism::Coalescing(_) | Mechanism::Offload(_) | Mechanism::Xps | Mechanism::Threads => {
            vec![json!({ "type": "boolean" })]
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::{SHIPPED, parse_recipes};

    /// Returns whether a schema accepts a value. For a text with a pattern, only the type is checked.
    fn admits(schema: &Json, value: &Json) -> bool {
        let any = |of: &Json| of.as_array().is_some_and(|all| all.iter().any(|one| admits(one, value)));
        match schema["type"].as_str() {
            Some("integer") => value.as_i64().is_some_and(|n| (0..=NUMBER_MAX).contains(&n)),
            Some("boolean") => value.is_boolean(),
            Some("string") => value.is_string(),
            Some(other) => panic!("{other} is not the type of a value"),
            None if schema["anyOf"].is_array() => any(&schema["anyOf"]),
            None if schema["enum"].is_array() => {
                schema["enum"].as_array().is_some_and(|all| all.contains(value))
            }
            None => schema["const"] == *value,
        }
    }

    #[test]
    fn every_shipped_recipe_meets_the_schema() {
        let schema = recipe_json_schema();
        let (recipes, devices) = (&schema["$defs"][OF_THE_HOST], &schema["$defs"][OF_A_DEVICE]);
        let mut values = 0;
        let mut meets = |schema: &Json, name: &str, recipe: &Json| {
            for (mechanism, entry) in recipe.as_object().expect("mechanisms") {
                let of = &schema["properties"][mechanism]["properties"]["value"];
                assert!(admits(of, &entry["value"]), "{name}: {mechanism}: {entry} is not {of}");
                values += 1;
            }
        };
        for (name, text) in SHIPPED {
            let file: Json = toml::from_str(text).expect("well-formed");
            for recipe in file["recipe"].as_object().into_iter().flat_map(|recipes| recipes.values()) {
                meets(recipes, name, recipe);
            }
            for (_, policies) in file["driver"].as_object().into_iter().flatten() {
                for recipe in policies.as_object().expect("policies").values() {
                    meets(devices, name, recipe);
                }
            }
            for (policy, ladder) in file["ladder"].as_object().into_iter().flatten() {
                let of =
                    &schema["properties"]["ladder"]["properties"][policy]["items"]["properties"]["value"];
                for rung in ladder.as_array().expect("rungs") {
                    assert!(admits(of, &rung["value"]), "{name}: {policy}: {rung} is not {of}");
                }
            }
            for (_, policies) in file["case"].as_object().into_iter().flatten() {
                for (policy, recipe) in policies.as_object().expect("policies") {
                    if policy == WHEN {
                        for condition in recipe.as_object().expect("conditions").keys() {
                            assert!(CONDITIONS.contains(&condition.as_str()), "{name}: {condition}");
                        }
                    } else {
                        meets(devices, name, recipe);
                    }
                }
            }
        }
        assert!(values > 80, "{values} values were checked");
    }

    #[test]
    fn what_the_schema_does_not_admit_is_a_mistake_of_a_file_too() {
        let schema = recipe_json_schema();
        let samples =
            ["8", "true", "\"max\"", "\"per-core\"", "\"by-queue\"", "\"none\"", "-1", "\"keep\"", "1.5"];
        for mechanism in Mechanism::all() {
            let of = &schema["$defs"][OF_THE_HOST]["properties"][mechanism.as_str()];
            for sample in samples {
                let text = format!("[recipe.bulk.{mechanism}]\nvalue = {sample}\n");
                let value: Json = serde_json::from_str(sample).expect("a value");
                let admitted = admits(&of["properties"]["value"], &value);
                assert!(admitted || parse_recipes("10-site.toml", &text).is_err(), "{text}");
                // For a text, the parser may reject what the pattern accepts, because it checks more rules.
                let read = parse_recipes("10-site.toml", &text).is_ok();
                assert!(read || !admitted || value.is_string(), "{text}");
            }
        }
        let of_driver = &schema["$defs"][OF_A_DEVICE];
        let bulk = &schema["properties"]["driver"]["additionalProperties"]["properties"]["bulk"];
        assert_eq!(bulk["$ref"], format!("#/$defs/{OF_A_DEVICE}"));
        assert!(
            of_driver["properties"]["delivery"].is_object()
                && of_driver["properties"]["netdev_budget"].is_null()
        );
    }
}
