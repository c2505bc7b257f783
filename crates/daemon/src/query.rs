//! Answers clients' queries the same way as the commands with these names.

use std::sync::Arc;

use page::to_json;
use serde_json::{Map, Value};
use session::explain::explained;
use session::report::PlanReport;
use session::verify::compared;
use session::{Fault, Session, Silent, cycle};

use crate::api::QueryHandler;
use crate::api::method::{Question, VarlinkError};

/// Creates the handler of queries for a daemon of this session. Each query observes the host, in a separate
/// thread.
pub(crate) fn handler(session: Session) -> QueryHandler {
    Arc::new(move |question| {
        let found = answer(question, &session);
        found.map_err(|fault| VarlinkError::refused(fault.exit.code(), fault.cause.to_string(), fault.hint))
    })
}

fn answer(question: &Question, session: &Session) -> Result<Map<String, Value>, Fault> {
    let found = match question {
        Question::Plan => {
            let policy = session.required_policy(&Silent)?.policy();
            to_json(&PlanReport::of(&cycle::plan(&policy, &session.netns()?)?.plan))
        }
        Question::Explain(object) => to_json(&explained(object.as_deref().unwrap_or(""), session, &Silent)?),
        Question::Verify => to_json(&compared(&session.journal()?)?),
    };
    match found {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}
