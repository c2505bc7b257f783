//! Questions that others ask of the daemon, answered as the commands of the same names answer them.

use std::sync::Arc;

use daemon::api::Oracle;
use daemon::api::method::{Question, Refusal};
use serde_json::{Map, Value};
use session::{Fault, cycle};

use super::{explain, verify};
use crate::args::Globals;
use crate::context::Context;
use crate::render::{PlanReport, to_json};

/// Who answers for a daemon with these options. Each answer takes a look at the host, in a thread of its own.
pub(crate) fn of(globals: &Globals) -> Oracle {
    let globals = globals.clone();
    Arc::new(move |question| {
        let context = Context::new(globals.clone());
        let found = answer(question, &context);
        found.map_err(|fault| Refusal::refused(fault.exit.code(), fault.cause.to_string(), fault.hint))
    })
}

fn answer(question: &Question, context: &Context) -> Result<Map<String, Value>, Fault> {
    let found = match question {
        Question::Plan => {
            let policy = context.required_policy()?.policy();
            to_json(&PlanReport::of(&cycle::plan(&policy, &context.session.netns()?)?.plan))
        }
        Question::Explain(object) => to_json(&explain::explained(object.as_deref().unwrap_or(""), context)?),
        Question::Verify => to_json(&verify::compared(&context.session.journal()?)?),
    };
    match found {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}
