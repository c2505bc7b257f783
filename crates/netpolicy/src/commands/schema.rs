//! `schema`: the languages of policy files and of recipe files, for editors, and of what programs read.

use policy_file::{json_schema, recipe_json_schema};
use session::{Exit, Fault};

use crate::args::{Output, Schema, SchemaOf};
use crate::context::Context;
use crate::render::output_schema;

/// Prints the JSON Schema.
pub(crate) fn run(arguments: &Schema, context: &Context) -> Result<Exit, Fault> {
    let schema = match arguments.of {
        SchemaOf::PolicyFile => json_schema(),
        SchemaOf::RecipeFile => recipe_json_schema(),
        output => output_schema(output).unwrap_or_default(),
    };
    context.console.text(&match context.globals.output {
        Output::Table | Output::Json => format!("{schema:#}\n"),
        Output::Jsonl => format!("{schema}\n"),
    })?;
    Ok(Exit::Done)
}
