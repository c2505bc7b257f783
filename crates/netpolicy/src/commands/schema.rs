//! `schema`: prints JSON Schemas of policy files and recipe files, for editors, and of JSON output.

use std::path::Path;

use clap::ValueEnum as _;
use cli::programs::{TOOLS, Tool};
use policy_file::{json_schema, recipe_json_schema};
use session::{Exit, Fault};

use crate::args::{SchemaArgs, SchemaOf};
use crate::render::output_schema;
use cli::Context;

/// Prints one JSON Schema, or writes all of them.
pub(crate) fn run(arguments: &SchemaArgs, context: &Context) -> Result<Exit, Fault> {
    if let Some(directory) = &arguments.dir {
        return write_all(directory, context);
    }
    match schema_of(arguments.of) {
        Some(schema) => cli::schema::print(&schema, context),
        None => Tool::exec_command(&name_of(arguments.of)),
    }
}

/// Returns the schema; `None` if another program implements the command.
fn schema_of(what: SchemaOf) -> Option<serde_json::Value> {
    match what {
        SchemaOf::PolicyFile => Some(json_schema()),
        SchemaOf::RecipeFile => Some(recipe_json_schema()),
        output => output_schema(output),
    }
}

fn name_of(what: SchemaOf) -> String {
    what.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Writes all schemas. Commands that other programs implement have their schemas written by those programs.
fn write_all(directory: &Path, context: &Context) -> Result<Exit, Fault> {
    for what in SchemaOf::value_variants() {
        if let Some(schema) = schema_of(*what) {
            cli::schema::write(&name_of(*what), &schema, directory)?;
        }
    }
    TOOLS.iter().try_for_each(Tool::run)?;
    context.console.say(&format!("Wrote the schemas to {}.", directory.display()));
    Ok(Exit::Done)
}
