//! `schema`: the language of policy files, for editors.

use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::policy_file::json_schema;

/// Prints the JSON Schema.
pub(crate) fn run(context: &Context) -> Result<Exit, Fault> {
    context.console.text(&format!("{:#}\n", json_schema()))?;
    Ok(Exit::Done)
}
