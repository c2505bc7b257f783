//! Where an experiment runs, and who watches it.

use page::Printable;
use session::{Fault, Operator, Session};

/// The front end that runs an experiment.
pub trait Screen: Operator {
    /// Shows how far it is, in place of what was shown before; an empty text wipes it.
    fn progress(&self, words: &str);

    /// Whether the output is a terminal in use now, so that progress can be shown.
    fn has_watcher(&self) -> bool;

    /// Takes an experiment's data.
    ///
    /// # Errors
    /// If they cannot be written to the requested place.
    fn report(&self, report: &dyn Printable) -> Result<(), Fault>;
}

/// Where an experiment runs, and who watches it.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The place.
    pub session: &'a Session,
    /// Who watches.
    pub console: &'a dyn Screen,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("session", self.session).finish_non_exhaustive()
    }
}
