//! `schema`: the languages of policy files and of recipe files, for editors, and of what programs read.

use crate::args::{Output, Schema, SchemaOf};
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::policy_file::{json_schema, recipe_json_schema};
use crate::render::{sim_json_schema, tc_json_schema, watch_json_schema};

/// Prints the JSON Schema.
pub(crate) fn run(arguments: &Schema, context: &Context) -> Result<Exit, Fault> {
    let schema = match arguments.of {
        SchemaOf::PolicyFile => json_schema(),
        SchemaOf::RecipeFile => recipe_json_schema(),
        SchemaOf::Tc => tc_json_schema(),
        SchemaOf::Sim => sim_json_schema(),
        SchemaOf::Watch => watch_json_schema(),
    };
    context.console.text(&match context.globals.output {
        Output::Table | Output::Json => format!("{schema:#}\n"),
        Output::Jsonl => format!("{schema}\n"),
    })?;
    Ok(Exit::Done)
}
