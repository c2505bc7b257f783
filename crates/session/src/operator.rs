//! The interface through which a session reports.

use model::{Object, Plan};

use crate::fault::Fault;

/// The front end of a session: it prints, logs or drops the session's reports.
pub trait Operator {
    /// Shows a message to the operator.
    fn say(&self, sentence: &str);

    /// Shows a message, but only with -v.
    fn detail(&self, sentence: &str);

    /// Shows the changes that are about to be committed, as data.
    ///
    /// # Errors
    /// If they cannot be written to the requested output.
    fn plan(&self, plan: &Plan) -> Result<(), Fault>;

    /// Shows an event of an object, as data.
    ///
    /// # Errors
    /// As for [`Operator::plan`].
    fn event(&self, what: &'static str, object: Object, words: String) -> Result<(), Fault>;
}

/// Ignores all reports: for a session that only answers a query.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Operator for Silent {
    fn say(&self, _: &str) {}

    fn detail(&self, _: &str) {}

    fn plan(&self, _: &Plan) -> Result<(), Fault> {
        Ok(())
    }

    fn event(&self, _: &'static str, _: Object, _: String) -> Result<(), Fault> {
        Ok(())
    }
}
