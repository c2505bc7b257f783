//! What went wrong with a command, and what that means for the host.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use crate::exit::Exit;

/// A command's failure: the cause, the exit code, and the state that the host is left in.
#[derive(Debug)]
pub struct Fault {
    /// How the command ends.
    pub exit: Exit,
    /// What went wrong; its sources are the chain of causes.
    pub cause: Box<dyn Error + Send + Sync>,
    /// What the host is like now.
    pub host: HostState,
    /// What the operator can do about it.
    pub hint: Option<String>,
}

/// What a failed command leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostState {
    /// No setting was written.
    Unchanged,
    /// Settings were written, and all of them were put back.
    Restored,
    /// Settings were written, and these could not be put back.
    NotRestored {
        /// Setting and reason, one per line.
        stuck: Vec<String>,
        /// The script that puts them back.
        undo: Option<PathBuf>,
    },
    /// Settings are in force on purpose; the transaction that they belong to.
    InForce(String),
}

impl Fault {
    /// A failure that changed nothing.
    pub fn new(exit: Exit, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { exit, cause: cause.into(), host: HostState::Unchanged, hint: None }
    }

    /// A plain failure that changed nothing.
    pub fn failed(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Exit::Failed, cause)
    }

    /// A file that could not be read or written.
    pub fn file(path: impl Into<PathBuf>, error: std::io::Error) -> Self {
        Self::failed(FileError { path: path.into(), error })
    }

    /// The same failure, with what the operator can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same failure, with another state of the host.
    #[must_use]
    pub fn leaving(mut self, host: HostState) -> Self {
        self.host = host;
        self
    }
}

/// A file with what went wrong there.
#[derive(Debug)]
struct FileError {
    path: PathBuf,
    error: std::io::Error,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.error)
    }
}

impl Error for FileError {}
