//! The session and the front end of an experiment.

use cli::Console;
use page::Printable;
use session::{Fault, Operator, Session};

/// The front end that runs an experiment.
pub trait Screen: Operator {
    /// Shows the progress, replacing the previous message; an empty text clears it.
    fn progress(&self, words: &str);

    /// Whether the output is an interactive terminal that can show progress.
    fn has_watcher(&self) -> bool;

    /// Outputs an experiment's data.
    ///
    /// # Errors
    /// If the data cannot be written to the requested place.
    fn report(&self, report: &dyn Printable) -> Result<(), Fault>;
}

/// The session and the front end of an experiment.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The session.
    pub session: &'a Session,
    /// The front end.
    pub console: &'a dyn Screen,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("session", self.session).finish_non_exhaustive()
    }
}

impl Screen for Console {
    fn progress(&self, words: &str) {
        Self::progress(self, words);
    }

    fn has_watcher(&self) -> bool {
        Self::has_watcher(self)
    }

    fn report(&self, report: &dyn Printable) -> Result<(), Fault> {
        Self::report(self, report)
    }
}
