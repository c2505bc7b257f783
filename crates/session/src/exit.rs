//! Exit codes: the result of a command for scripts.

use std::process::ExitCode;

/// The result of a command. The table in `docs/reference/exit-codes.md` is generated from this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: done, or nothing to change and no drift.
    Done,
    /// 1: failed.
    Failed,
    /// 2: the command line or a policy file is wrong; nothing was changed.
    Usage,
    /// 3: changes are pending, there is drift, or there are problems.
    Pending,
    /// 4: applied, but read-back failed; rolled back.
    RolledBack,
    /// 5: the rollback is incomplete; the undo script's path was printed.
    NotRestored,
    /// 6: not supported by this host.
    Unsupported,
    /// 7: refused by a safety rule.
    Refused,
    /// `run`: the command's own exit code, or 128 plus the signal that ended it.
    Command(u8),
}

impl Exit {
    /// netpolicy's own exit codes, in ascending order.
    pub const ALL: [Self; 8] = [
        Self::Done,
        Self::Failed,
        Self::Usage,
        Self::Pending,
        Self::RolledBack,
        Self::NotRestored,
        Self::Unsupported,
        Self::Refused,
    ];

    /// Returns the meaning of the exit code, as Markdown.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "Done. `plan` and `verify`: nothing to change, no drift. `doctor`: no problems.",
            Self::Failed => {
                "Failed: the kernel refused, a process exited, or a file could not be read. `bench selfcheck`: a measuring instrument is not accurate enough."
            }
            Self::Usage => {
                "The command line, a policy file, a recording, a scenario, a table of measured rows or evidence is wrong, or gzip \
                 cannot unpack it."
            }
            Self::Pending => {
                "`plan`, `apply --dry-run`: changes are pending. `verify`: there is drift. `doctor`: there are problems. \
                 `tc diff`, `tc load --check`: rules differ. `status`: a request is not in force, or there are problems. \
                 `audit`: a host has the issue of `--gate` or a worse one. `diff`: the recordings differ. \
                 `set` through a daemon: the request is stored, and a part of it is not in force yet. \
                 `bench selfcheck`: a comparison is undecided."
            }
            Self::RolledBack => {
                "A value was written and did not read back as written. `try --guard`, `apply` of guarded services: the guard reverted the change. `tc load --atomic`, `--swap`: a rule was refused, \
                 and the rules that were loaded were removed (1 if there were none)."
            }
            Self::NotRestored => {
                "A rollback is incomplete. The message lists each setting that is not restored, and names the undo script."
            }
            Self::Unsupported => {
                "Not supported here. The message says what is missing, and which kernel or package has it. `bench selfcheck`: some comparisons could not be made."
            }
            Self::Refused => {
                "Refused by a safety rule: beyond the budget; irreversible or disruptive without the option that allows \
                 it; in conflict with another request; a setting that another program owns or that a damaged transaction \
                 may have changed; a change that would take a queue from what holds it; a journal that other users can write to; a second daemon of a journal or a network \
                 namespace; a policy that was rolled back by its standing proof."
            }
            Self::Command(_) => "`run`: the exit code of the command, or 128 plus the signal that killed it.",
        }
    }

    /// Returns the resulting state of the host, as Markdown.
    pub const fn host(self) -> &'static str {
        match self {
            Self::Done => "as asked",
            Self::Failed => {
                "unchanged or restored: the last line of the message says which. `tc load` without `--atomic`: the loaded \
                 rules stay, and the summary counts them"
            }
            Self::Usage => "nothing was touched",
            Self::Pending => "unchanged. `set`: as far as possible",
            Self::RolledBack => "restored",
            Self::NotRestored => "not restored",
            Self::Unsupported => "unchanged or restored",
            Self::Refused => "unchanged",
            Self::Command(_) => "restored when the command exits",
        }
    }

    /// Returns netpolicy's exit code with this number, as reported by a daemon.
    pub const fn of(code: u8) -> Option<Self> {
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

    /// The numeric code.
    pub const fn code(self) -> u8 {
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
