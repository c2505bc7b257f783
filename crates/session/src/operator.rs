//! Where a session reports what it does.

use model::{Object, Plan};

use crate::fault::Fault;

/// The program that runs a session: it prints, logs or drops what the session reports.
pub trait Operator {
    /// A sentence that the operator should read.
    fn say(&self, sentence: &str);

    /// A sentence for those who asked for more.
    fn detail(&self, sentence: &str);

    /// The changes that are about to be committed, as data.
    ///
    /// # Errors
    /// If they cannot be written where the operator wants them.
    fn plan(&self, plan: &Plan) -> Result<(), Fault>;

    /// Something that happened to an object, as data.
    ///
    /// # Errors
    /// As [`Operator::plan`].
    fn event(&self, what: &'static str, object: Object, words: String) -> Result<(), Fault>;
}

/// An operator who reads nothing: for a session that answers a question, and says no more than the answer.
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
