//! Whether a document is as its schema says.

use serde_json::Value;

/// What is wrong with a value, if it does not fit a schema of ours.
pub(crate) fn misfit(value: &Value, schema: &Value) -> Option<String> {
    if let Some(choices) = schema["anyOf"].as_array() {
        let wrong: Option<Vec<String>> = choices.iter().map(|choice| misfit(value, choice)).collect();
        return wrong.map(|wrong| wrong.join("; "));
    }
    if let Some(only) = schema.get("const") {
        return (value != only).then(|| format!("{value} is not {only}"));
    }
    if let Some(words) = schema["enum"].as_array() {
        return (!words.contains(value)).then(|| format!("{value} is not one of {words:?}"));
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        other => panic!("a schema without a type: {other}"),
    };
    let is = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{other}"),
    };
    if !kinds.iter().any(is) {
        return Some(format!("{value} is not {kinds:?}"));
    }
    if value.as_f64().zip(schema["minimum"].as_f64()).is_some_and(|(value, least)| value < least) {
        return Some(format!("{value} is too small"));
    }
    let items = value.as_array().into_iter().flatten();
    if let Some(wrong) = items.filter_map(|item| misfit(item, &schema["items"])).next() {
        return Some(wrong);
    }
    let (fields, known) = (value.as_object()?, schema["properties"].as_object());
    if let Some(known) = known {
        // All that is told is described, and all that is described is told.
        let told: Vec<&String> = fields.keys().collect();
        let described: Vec<&String> = known.keys().collect();
        if told != described {
            return Some(format!("{told:?} is told, {described:?} described"));
        }
        return known.iter().find_map(|(name, schema)| misfit(&fields[name], schema));
    }
    fields.values().find_map(|value| misfit(value, &schema["additionalProperties"]))
}
