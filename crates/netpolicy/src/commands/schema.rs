//! `schema`: the languages of policy files and of recipe files, for editors, and of what programs read.

use std::path::Path;

use clap::ValueEnum as _;
use policy_file::{json_schema, recipe_json_schema};
use session::{Exit, Fault};

use crate::args::{Output, Schema, SchemaOf};
use crate::context::Context;
use crate::render::output_schema;

/// Prints the JSON Schema, or writes all of them.
pub(crate) fn run(arguments: &Schema, context: &Context) -> Result<Exit, Fault> {
    if let Some(directory) = &arguments.dir {
        return write_all(directory, context);
    }
    let schema = schema_of(arguments.of);
    context.console.text(&match context.globals.output {
        Output::Table | Output::Json => format!("{schema:#}\n"),
        Output::Jsonl => format!("{schema}\n"),
    })?;
    Ok(Exit::Done)
}

fn schema_of(what: SchemaOf) -> serde_json::Value {
    match what {
        SchemaOf::PolicyFile => json_schema(),
        SchemaOf::RecipeFile => recipe_json_schema(),
        output => output_schema(output).unwrap_or_default(),
    }
}

fn write_all(directory: &Path, context: &Context) -> Result<Exit, Fault> {
    std::fs::create_dir_all(directory).map_err(|error| Fault::file(directory, error))?;
    for what in SchemaOf::value_variants() {
        let Some(value) = what.to_possible_value() else { continue };
        let file = directory.join(format!("{}.json", value.get_name()));
        let text = format!("{:#}\n", schema_of(*what));
        std::fs::write(&file, text).map_err(|error| Fault::file(&file, error))?;
    }
    context.console.say(&format!("Wrote the schemas into {}.", directory.display()));
    Ok(Exit::Done)
}
