//! The results of all commands of a file.

use std::fmt;

use sys::error::Cause;

use netlink::message::KernelRefusal;

/// A command that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The line.
    pub line: u32,
    /// The kernel's error.
    pub refusal: KernelRefusal,
}

impl Refused {
    /// The error number: 22 for EINVAL.
    pub fn number(&self) -> i32 {
        self.refusal.errno.raw_os_error()
    }

    /// The error number and message.
    pub fn cause(&self) -> Cause {
        let KernelRefusal { errno, message, missing, .. } = &self.refusal;
        match (message, missing) {
            (Some(message), _) => Cause::Extack { errno: *errno, message: message.clone() },
            (None, Some(missing)) => {
                Cause::Extack { errno: *errno, message: format!("attribute {missing} is missing") }
            }
            (None, None) => Cause::Errno(*errno),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.cause())
    }
}

/// The results of the pushed commands, whose number is `loaded + refused + unknown + unsent`.
#[derive(Debug, Default)]
pub struct Account {
    /// The number of commands that the kernel accepted.
    pub loaded: u64,
    /// The commands that the kernel refused.
    pub refused: Vec<Refused>,
    /// Lines whose acknowledgement was lost: a dump shows whether the rule exists.
    pub unknown: Vec<u32>,
    /// Lines that were not sent, because the load had stopped, for example at a refusal.
    pub unsent: Vec<u32>,
}

impl Account {
    /// Sorts the lines in the order of the file.
    pub(super) fn sort(&mut self) {
        self.refused.sort_by_key(|refused| refused.line);
        self.unknown.sort_unstable();
        self.unsent.sort_unstable();
    }
}
