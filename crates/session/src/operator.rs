//! The interface through which a session reports.

use model::{Object, Plan};

use crate::fault::Fault;

/// The front end of a session: it prints, logs or drops the session's reports.
pub trait Operator {
    /// Shows a message to the operator.
    fn say(&self, sentence: &str);

    /// Shows a message, but only with -v.
    fn detail(&self, sentence: &str);

    /// Shows, as data, the changes that are about to be committed.
    ///
    /// # Errors
    /// If the changes cannot be written to the requested output.
    fn plan(&self, plan: &Plan) -> Result<(), Fault>;

    /// Shows, as data, an event of an object.
    ///
    /// # Errors
    /// As for [`Operator::plan`].
    fn event(&self, what: &'static str, object: Object, words: String) -> Result<(), Fault>;
}

/// Drops all reports, for a session that only answers a query.
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
