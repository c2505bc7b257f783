//! What programs read, as JSON Schema: documents by the fields that they have.

use serde_json::{Map, Value, json};

use super::report::SCHEMA;

/// Name, form and meaning of each field of an object.
pub(super) type Fields = &'static [(&'static str, Form, &'static str)];

/// A kind of document, its meaning, and its fields.
pub(super) type Document = (&'static str, &'static str, Fields);

/// What a field has.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Text,
    Texts,
    /// Text, or null.
    Hint,
    /// A number that counts, 0 or more.
    Count,
    /// A list of them, or null.
    CountsOrNull,
    /// Lines of the file, from 1.
    Lines,
    /// A number of the kernel's.
    Number,
    /// 0 or more, with a fraction.
    Amount,
    /// That, or null.
    AmountOrNull,
    /// Any number, with a fraction.
    Figure,
    Truth,
    /// Truth, or null for what is not judged.
    Verdict,
    /// Counts by name.
    Counts,
    /// Amounts by name.
    Amounts,
    /// Texts by name.
    TextsByName,
    /// An object of these fields.
    Object(Fields),
    /// That, or null.
    ObjectOrNull(Fields),
    /// Objects of these fields.
    List(Fields),
    /// One of these words, or an object of these fields.
    WordOr(&'static [&'static str], Fields),
    /// Nothing but null.
    Null,
}

/// The schema that each of these documents meets.
pub(super) fn schema(name: &str, title: &str, documents: &[Document]) -> Value {
    let document = |(kind, meaning, fields): &Document| {
        json!({
            "type": "object",
            "description": meaning,
            "properties": { "schema": { "const": SCHEMA }, "kind": { "const": kind }, "data": object(fields) },
            "required": ["schema", "kind", "data"],
        })
    };
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": format!("netpolicy/v1/{name}"),
        "title": title,
        "$comment": "fields are added to a version, never removed or given another meaning",
        "anyOf": documents.iter().map(document).collect::<Vec<Value>>(),
    })
}

/// An object with all of these fields.
pub(super) fn object(fields: Fields) -> Value {
    let properties: Map<String, Value> = fields
        .iter()
        .map(|(name, form, meaning)| {
            let mut schema = form.schema();
            schema["description"] = Value::from(*meaning);
            ((*name).to_owned(), schema)
        })
        .collect();
    let required: Vec<&str> = fields.iter().map(|(name, ..)| *name).collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

/// What has no type but is one of a few values or objects.
fn any_of(words: &[&str], fields: Fields) -> Value {
    json!({ "anyOf": [{ "type": "string", "enum": words }, object(fields)] })
}

fn by_name(of: &Value) -> Value {
    json!({ "type": "object", "additionalProperties": of })
}

/// The same, or null.
fn or_null(mut schema: Value) -> Value {
    schema["type"] = json!([schema["type"], "null"]);
    schema
}

impl Form {
    fn schema(self) -> Value {
        match self {
            Self::Text => json!({ "type": "string" }),
            Self::Hint => or_null(Self::Text.schema()),
            Self::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            Self::Count => json!({ "type": "integer", "minimum": 0 }),
            Self::CountsOrNull => or_null(json!({ "type": "array", "items": Self::Count.schema() })),
            Self::Lines => json!({ "type": "array", "items": { "type": "integer", "minimum": 1 } }),
            Self::Number => json!({ "type": "integer" }),
            Self::Amount => json!({ "type": "number", "minimum": 0 }),
            Self::AmountOrNull => or_null(Self::Amount.schema()),
            Self::Figure => json!({ "type": "number" }),
            Self::Truth => json!({ "type": "boolean" }),
            Self::Verdict => or_null(Self::Truth.schema()),
            Self::Counts => by_name(&Self::Count.schema()),
            Self::Amounts => by_name(&Self::Amount.schema()),
            Self::TextsByName => by_name(&Self::Text.schema()),
            Self::Object(fields) => object(fields),
            Self::ObjectOrNull(fields) => or_null(object(fields)),
            Self::List(fields) => json!({ "type": "array", "items": object(fields) }),
            Self::WordOr(words, fields) => any_of(words, fields),
            Self::Null => json!({ "type": "null" }),
        }
    }
}

#[cfg(test)]
#[path = "../../tests/command/misfit.rs"]
pub(super) mod misfit;
