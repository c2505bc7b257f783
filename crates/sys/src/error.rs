//! Errors of the kernel, with its own error codes and messages.

use std::fmt;

use model::{KernelVersion, Setting};

/// A kernel error code, displayed as `EOPNOTSUPP (Operation not supported)`.
pub use rustix::io::Errno;

/// A request that failed in the kernel, or before it reached the kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {cause}")]
pub struct KernelError {
    /// What was requested: a setting (`eth0 rx-4: irq-suspend-timeout 20ms`), a file, or the name of a
    /// request.
    pub what: String,
    /// Why it failed.
    #[source]
    pub cause: Cause,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The kernel returned an error code.
    #[error("{}", ErrnoText(*.0))]
    Errno(Errno),
    /// The kernel returned an error code and a message.
    #[error("{} \"{message}\"", ErrnoText(*.errno))]
    Extack {
        /// The error code.
        errno: Errno,
        /// The kernel's message, verbatim.
        message: String,
    },
    /// The kernel returned an error code, and the missing privilege or property is known.
    #[error("{}, needs {needs}", ErrnoText(*.errno))]
    Denied {
        /// The error code.
        errno: Errno,
        /// The missing privilege or property.
        needs: String,
    },
    /// This kernel or driver does not support the request.
    #[error("not supported here: needs {needs}{}", Since(*.since))]
    Absent {
        /// What the request needs.
        needs: String,
        /// The first kernel that supports the request, if the kernel is too old.
        since: Option<KernelVersion>,
    },
    /// The object no longer exists: a process exited, a device was removed, a descriptor was reused.
    #[error("gone: {0}")]
    Gone(String),
    /// The object does not exist at present but may return, such as a queue of a device that currently has
    /// fewer queues.
    #[error("away: {0}")]
    Away(String),
    /// The kernel accepted the value, but then reported another one.
    #[error("wrote {} but read back {}", .wrote.value(), .found.value())]
    ReadBack {
        /// The value that was written.
        wrote: Box<Setting>,
        /// The value in force.
        found: Box<Setting>,
    },
    /// The kernel's reply does not have the promised format.
    #[error("the answer is malformed: {0}")]
    Malformed(String),
}

impl KernelError {
    /// Creates the error of a request that failed with an error code.
    pub fn errno(what: impl Into<String>, errno: Errno) -> Self {
        Self { what: what.into(), cause: Cause::Errno(errno) }
    }

    /// Creates the error of a request that failed with an I/O error. An I/O error without an error code
    /// counts as malformed.
    pub fn io(what: impl Into<String>, error: &std::io::Error) -> Self {
        let cause = match error.raw_os_error() {
            Some(raw) => Cause::Errno(Errno::from_raw_os_error(raw)),
            None => Cause::Malformed(error.to_string()),
        };
        Self { what: what.into(), cause }
    }

    /// Creates the error of a request that this kernel or driver does not support.
    pub fn absent(what: impl Into<String>, needs: impl Into<String>, since: Option<KernelVersion>) -> Self {
        Self { what: what.into(), cause: Cause::Absent { needs: needs.into(), since } }
    }

    /// Creates the error of a request about an object that no longer exists.
    pub fn gone(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), cause: Cause::Gone(why.into()) }
    }

    /// Creates the error of a request about an object that does not exist now, but may return.
    pub fn away(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), cause: Cause::Away(why.into()) }
    }

    /// Creates the error of a reply that could not be parsed.
    pub fn malformed(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), cause: Cause::Malformed(why.into()) }
    }

    /// Adds `needs`, the missing privilege, if permission was denied and the kernel gave no message. Other
    /// errors are returned unchanged.
    #[must_use]
    pub fn needing(self, needs: &str) -> Self {
        match self.cause {
            Cause::Errno(errno @ (Errno::PERM | Errno::ACCESS)) => {
                let mut needs = needs.to_owned();
                // With this error code, a security module may have denied the request.
                if errno == Errno::ACCESS {
                    needs = crate::lsm::needs_under_confinement(needs);
                }
                Self { what: self.what, cause: Cause::Denied { errno, needs } }
            }
            cause => Self { what: self.what, cause },
        }
    }

    /// Returns whether permission was denied.
    pub fn is_denied(&self) -> bool {
        self.cause.is_denied()
    }

    /// Returns whether the error code can mean that the object of the request, its device or its process does
    /// not exist.
    pub fn is_absent(&self) -> bool {
        self.number().is_some_and(is_absent)
    }

    /// Returns whether a signal interrupted a wait.
    pub fn is_interrupted(&self) -> bool {
        self.number() == Some(Errno::INTR)
    }

    /// Returns the kernel's error code, if there is one.
    pub fn number(&self) -> Option<Errno> {
        self.cause.number()
    }
}

impl Cause {
    /// Returns whether permission was denied.
    pub fn is_denied(&self) -> bool {
        matches!(self.number(), Some(Errno::PERM | Errno::ACCESS))
    }

    /// Returns the kernel's error code, if there is one.
    fn number(&self) -> Option<Errno> {
        match self {
            Self::Errno(errno) | Self::Extack { errno, .. } | Self::Denied { errno, .. } => Some(*errno),
            Self::Absent { .. }
            | Self::Gone(_)
            | Self::Away(_)
            | Self::ReadBack { .. }
            | Self::Malformed(_) => None,
        }
    }
}

/// Returns whether an error code can mean that the object does not exist.
pub const fn is_absent(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::NODEV | Errno::NOENT)
}

/// The name of an error code and the C library's text for it.
struct ErrnoText(Errno);

impl fmt::Display for ErrnoText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = std::io::Error::from_raw_os_error(self.0.raw_os_error()).to_string();
        f.write_str(words.split(" (os error").next().unwrap_or(&words))?;
        write!(
            f,
            " ({})",
            name(self.0).map_or_else(|| format!("errno {}", self.0.raw_os_error()), str::to_owned)
        )
    }
}

struct Since(Option<KernelVersion>);

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(version) => write!(f, ", since Linux {version}"),
            None => Ok(()),
        }
    }
}

/// Returns the symbolic name of an error code; `None` for codes that the interfaces used here do not return.
fn name(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::PERM => "EPERM",
        Errno::NOENT => "ENOENT",
        Errno::SRCH => "ESRCH",
        Errno::INTR => "EINTR",
        Errno::IO => "EIO",
        Errno::BADF => "EBADF",
        Errno::AGAIN => "EAGAIN",
        Errno::NOMEM => "ENOMEM",
        Errno::ACCESS => "EACCES",
        Errno::FAULT => "EFAULT",
        Errno::BUSY => "EBUSY",
        Errno::EXIST => "EEXIST",
        Errno::NODEV => "ENODEV",
        Errno::INVAL => "EINVAL",
        Errno::MFILE => "EMFILE",
        Errno::NFILE => "ENFILE",
        Errno::NOTTY => "ENOTTY",
        Errno::NOSPC => "ENOSPC",
        Errno::RANGE => "ERANGE",
        Errno::NOSYS => "ENOSYS",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        Errno::NOBUFS => "ENOBUFS",
        Errno::CONNREFUSED => "ECONNREFUSED",
        Errno::TIMEDOUT => "ETIMEDOUT",
        Errno::OVERFLOW => "EOVERFLOW",
        _ => return None,
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_error_says_the_object_and_the_kernels_own_words() {
        let cause = Cause::Extack { errno: Errno::RANGE, message: "integer out of range".to_owned() };
        let error = KernelError { what: "eth0 rx-4: defer-hard-irqs 4000000000".to_owned(), cause };
        assert_eq!(
            error.to_string(),
            "eth0 rx-4: defer-hard-irqs 4000000000: Numerical result out of range (ERANGE) \"integer out of range\""
        );
        let absent =
            KernelError::absent("eth0 rx-0: irq-suspend-timeout", "napi-set", Some(model::since::NAPI_SET));
        assert_eq!(
            absent.to_string(),
            "eth0 rx-0: irq-suspend-timeout: not supported here: needs napi-set, since Linux 6.13"
        );
    }
}
