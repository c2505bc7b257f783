//! The JSON Schemas of the JSON output, which are derived from the types that are printed.

use std::path::Path;

use model::facts::{with_dashes, without_links};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};
use session::page::{RecordSchema, Report, SCHEMA, record};
use session::{Exit, Fault};

use crate::{Context, Output};

/// A function that returns the schemas of a report's document and records.
pub type SchemaPart = fn(&mut SchemaGenerator) -> Vec<RecordSchema>;

/// Returns the schemas of a report's document and records.
pub fn part<R: Report>(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
    let mut kinds = vec![record::<R>(R::KIND, generator)];
    kinds.extend(R::records_as(generator));
    kinds
}

/// Returns the schema of a command's output with `-o json`, and of each line with `-o jsonl`.
#[must_use]
pub fn of_command(name: &str, parts: &[SchemaPart]) -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut documents: Vec<Value> = Vec::new();
    for (kind, data) in parts.iter().flat_map(|part| part(&mut generator)).collect::<Vec<_>>() {
        let document = json!({
            "type": "object",
            "properties": { "schema": { "const": SCHEMA }, "kind": { "const": kind }, "data": data },
            "required": ["schema", "kind", "data"],
            "additionalProperties": false,
        });
        if !documents.contains(&document) {
            documents.push(document);
        }
    }
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": format!("netpolicy/v1/{name}"),
        "title": format!("netpolicy {name}, with -o json, and each line with -o jsonl"),
        "$comment": "within a version, fields are only added; none is removed or changes its meaning",
        "anyOf": documents,
        "$defs": generator.take_definitions(true),
    });
    readable(&mut schema);
    schema
}

/// Rewrites descriptions, which are doc comments, for readers of JSON.
fn readable(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(description)) = fields.get_mut("description") {
                *description = without_links(description, link).replace("`None`", "`null`");
            }
            fields.values_mut().for_each(readable);
        }
        Value::Array(list) => list.iter_mut().for_each(readable),
        _ => {}
    }
}

/// How a description shows a rustdoc link: as the name of a setting or of a field.
fn link(path: &str, name: &str) -> String {
    if path.ends_with("Knob") { format!("the setting `{}`", with_dashes(name)) } else { format!("`{name}`") }
}

/// Prints a schema.
///
/// # Errors
/// If standard output cannot be written.
pub fn print(schema: &Value, context: &Context) -> Result<Exit, Fault> {
    context.console.text(&match context.globals.output {
        Output::Table | Output::Json => format!("{schema:#}\n"),
        Output::Jsonl => format!("{schema}\n"),
    })?;
    Ok(Exit::Done)
}

/// Writes a schema to a directory, as `NAME.json`.
///
/// # Errors
/// If the schema cannot be written.
pub fn write(name: &str, schema: &Value, directory: &Path) -> Result<(), Fault> {
    std::fs::create_dir_all(directory).map_err(|error| Fault::file(directory, error))?;
    let file = directory.join(format!("{name}.json"));
    std::fs::write(&file, format!("{schema:#}\n")).map_err(|error| Fault::file(&file, error))
}
