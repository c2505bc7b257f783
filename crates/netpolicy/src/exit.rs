//! Exit codes: what a script learns without reading a word.

use std::process::ExitCode;

/// How a command ended. `docs/reference/exit-codes.md` is the operator's side of this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// 0: done, or no drift.
    Done,
    /// 1: failed.
    Failed,
    /// 2: the command line or a policy file is wrong; nothing was touched.
    Usage,
    /// 3: changes are pending, there is drift, or there are problems.
    Pending,
    /// 4: applied, did not verify, rolled back.
    RolledBack,
    /// 5: the rollback is incomplete; the undo script's path was printed.
    NotRestored,
    /// 6: not supported here.
    Unsupported,
    /// 7: refused by a safety rule.
    Refused,
    /// `run`: the command's own exit code, or 128 and the signal that ended it.
    Command(u8),
}

impl Exit {
    /// The one with this number, as a daemon says it.
    pub(crate) const fn of(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Done,
            1 => Self::Failed,
            2 => Self::Usage,
            3 => Self::Pending,
            4 => Self::RolledBack,
            5 => Self::NotRestored,
            6 => Self::Unsupported,
            7 => Self::Refused,
            _ => return None,
        })
    }

    /// The number.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Pending => 3,
            Self::RolledBack => 4,
            Self::NotRestored => 5,
            Self::Unsupported => 6,
            Self::Refused => 7,
            Self::Command(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
