//! Why a run failed.

use std::fmt;

use linux::KernelError;
use linux::lab::ServerError;
use load::RunError;
use session::{Exit, Fault};

/// The reason why a run failed or the host could not be restored.
#[derive(Debug)]
pub(crate) enum BenchError {
    /// The operator interrupted the run.
    Interrupted(linux::Signal),
    /// The time limit for all runs has expired.
    TimeUp,
    /// Any other failure.
    Failed(Fault),
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted(_) => f.write_str("interrupted"),
            Self::TimeUp => f.write_str("the time limit was reached"),
            Self::Failed(fault) => {
                write!(f, "{}", fault.cause)?;
                let mut cause = fault.cause.source();
                while let Some(deeper) = cause {
                    write!(f, ": {deeper}")?;
                    cause = deeper.source();
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for BenchError {}

impl From<Fault> for BenchError {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault)
    }
}

impl From<KernelError> for BenchError {
    fn from(error: KernelError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<RunError> for BenchError {
    fn from(error: RunError) -> Self {
        let exit = match error {
            RunError::NoExactWait { .. } => Exit::Unsupported,
            _ => Exit::Failed,
        };
        Self::Failed(Fault::new(exit, error))
    }
}

impl From<ServerError> for BenchError {
    fn from(error: ServerError) -> Self {
        Self::Failed(server_fault(error))
    }
}

/// Turns a server's start-up error into a fault with a hint for the operator.
pub fn server_fault(error: ServerError) -> Fault {
    match error {
        ServerError::Kernel(error) => error.into(),
        ServerError::NotInstalled => Fault::new(Exit::Unsupported, error).hint("apt-get install memcached"),
        ServerError::Ended { .. } | ServerError::Silent { .. } => Fault::failed(error),
    }
}
