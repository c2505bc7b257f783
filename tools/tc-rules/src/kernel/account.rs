//! What became of every command of a file.

use std::fmt;

use sys::error::Cause;

use netlink::message::Refusal;

/// A command that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its line.
    pub line: u32,
    /// Why, in the kernel's words.
    pub refusal: Refusal,
}

impl Refused {
    /// The kernel's number, as programs read it: 22 for EINVAL.
    pub fn number(&self) -> i32 {
        self.refusal.errno.raw_os_error()
    }

    /// The number and the words.
    pub fn cause(&self) -> Cause {
        let Refusal { errno, message, missing, .. } = &self.refusal;
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

/// What became of the commands that were pushed: `loaded + refused + unknown + unsent` of them.
#[derive(Debug, Default)]
pub struct Account {
    /// The kernel took them.
    pub loaded: u64,
    /// The kernel refused them.
    pub refused: Vec<Refused>,
    /// Their answers were lost: whether they are there, a dump says.
    pub unknown: Vec<u32>,
    /// They were not sent, because one before them was refused.
    pub unsent: Vec<u32>,
}

impl Account {
    /// Puts refusals and lines in the file's order.
    pub(super) fn sort(&mut self) {
        self.refused.sort_by_key(|refused| refused.line);
        self.unknown.sort_unstable();
        self.unsent.sort_unstable();
    }
}
