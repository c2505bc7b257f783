//! `schema`: the language of policy files, for editors.

use crate::args::Output;
use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::policy_file::json_schema;

/// Prints the JSON Schema.
pub(crate) fn run(context: &Context) -> Result<Exit, Fault> {
    let schema = json_schema();
    context.console.text(&match context.globals.output {
        Output::Table | Output::Json => format!("{schema:#}\n"),
        Output::Jsonl => format!("{schema}\n"),
    })?;
    Ok(Exit::Done)
}
