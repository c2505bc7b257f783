//! Checks JSON output against `netpolicy schema`.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, Mutex};

use jsonschema::Validator;
use serde_json::{Deserializer, Value};

/// Global options of netpolicy that take a value.
const WITH_VALUE: [&str; 8] = [
    "-o",
    "--output",
    "--state-dir",
    "--policy-dir",
    "--policy-file",
    "--recipe-dir",
    "--netns",
    "--app-request-dir",
];

/// Returns the first document in this command's output that does not match its schema. Commands without a
/// schema, and output that is not JSON, are not checked.
///
/// # Panics
/// If a schema is invalid.
pub fn misfit(arguments: &[&str], printed: &[u8]) -> Option<String> {
    let schema = schema(word(arguments)?)?;
    for document in Deserializer::from_slice(printed).into_iter::<Value>() {
        let document = document.ok()?;
        if let Err(wrong) = schema.validate(&document) {
            return Some(format!("{} is {}: {wrong}", wrong.instance_path, wrong.instance));
        }
    }
    None
}

/// Returns the name of the command among the arguments, if they request JSON.
fn word<'a>(arguments: &[&'a str]) -> Option<&'a str> {
    arguments.iter().find(|argument| ["json", "jsonl"].contains(argument))?;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if WITH_VALUE.contains(argument) {
            rest.next();
        } else if !argument.starts_with('-') {
            return Some(argument);
        }
    }
    None
}

/// Returns the schema of a command's output, which is read only once.
pub fn schema(command: &str) -> Option<Arc<Validator>> {
    static READ: Mutex<BTreeMap<String, Option<Arc<Validator>>>> = Mutex::new(BTreeMap::new());
    let mut read = READ.lock().expect("no test has panicked while holding the lock");
    let of_command = || {
        let output = Command::new(crate::programs::netpolicy()).args(["schema", command]).output();
        let output = output.ok().filter(|output| output.status.success())?;
        let schema: Value = serde_json::from_slice(&output.stdout).expect("a schema is JSON");
        Some(Arc::new(jsonschema::validator_for(&schema).expect("the schema is readable")))
    };
    read.entry(command.to_owned()).or_insert_with(of_command).clone()
}
