//! Answers clients' queries in the same way as the commands with the same names.

use std::sync::Arc;

use apply::{Fate, TransactionName, Undone};
use serde_json::{Map, Value, json};
use session::explain::explained;
use session::page::to_json;
use session::report::PlanReport;
use session::verify::compared;
use session::{Fault, Session, Silent, cycle, fullbusy, roll_back, trial};

use crate::api::QueryHandler;
use crate::api::method::{Question, VarlinkError};
use crate::daemon::left_to_others;

/// Creates the daemon's query handler. For each query, a separate thread runs the handler, which observes the
/// host.
pub(crate) fn handler(session: Session) -> QueryHandler {
    Arc::new(move |question| {
        let found = answer(question, &session);
        found.map_err(|fault| VarlinkError::refused(fault.exit.code(), fault.cause.to_string(), fault.hint))
    })
}

fn answer(question: &Question, session: &Session) -> Result<Map<String, Value>, Fault> {
    let found = match question {
        Question::Plan => {
            let netns = session.netns()?;
            let policy = session.whole_policy(&netns, &Silent)?;
            fullbusy::refuse_from_outside(&policy)?;
            to_json(&PlanReport::of(&cycle::plan(&policy, &netns)?.plan))
        }
        Question::Explain(object) => to_json(&explained(object.as_deref().unwrap_or(""), session, &Silent)?),
        Question::Confirm(name) => {
            let name = trial::confirm(*name, &session.journal()?)?;
            json!({ "transaction": name.to_string() })
        }
        Question::RollBack(name) => rolled_back(*name, &roll_back(*name, &session.journal()?)?),
        Question::Verify => to_json(&compared(&session.journal()?, None)?),
    };
    match found {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

/// Builds the reply about a transaction that was rolled back.
fn rolled_back(name: TransactionName, undone: &Undone) -> Value {
    let restored = undone.changes.iter().filter(|undone| undone.fate == Fate::Restored);
    let changes: Vec<String> = restored
        .map(|undone| {
            let (from, to) = (undone.change.from(), undone.change.to());
            format!("{} {}: {} → {}", from.object(), from.knob(), to.value(), from.value())
        })
        .collect();
    let left = undone.left_alone().map(|(change, found)| left_to_others(change, found));
    let unrecorded = undone.unrecorded.iter().map(|error| format!("the journal is incomplete: {error}"));
    json!({
        "summary": format!("{name} was rolled back"),
        "changes": changes,
        "transactions": [name.to_string()],
        "notes": left.chain(unrecorded).collect::<Vec<String>>(),
        "pending": false,
    })
}
