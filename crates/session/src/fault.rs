//! The failure of a command, and its effect on the host.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use apply::{
    CommitError, CommitFault, ConfirmError, JournalError, KeepError, RollBackError, TransactionName,
    UnrestoredSetting,
};
use linux::{Cause, KernelError};
use model::Host;
use model::host::Unread;
use plan::{Refusal, RefusalKind};

use crate::exit::Exit;
use crate::missing_queues;

/// The failure of a command: the cause, the exit code, and the resulting state of the host.
#[derive(Debug)]
pub struct Fault {
    /// The exit code.
    pub exit: Exit,
    /// The error, with its chain of sources.
    pub cause: Box<dyn Error + Send + Sync>,
    /// The resulting state of the host.
    pub host: HostState,
    /// A hint for the operator on how to proceed.
    pub hint: Option<String>,
}

/// The state of the host after a failed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostState {
    /// No setting was written.
    Unchanged,
    /// The faulty part of the request was skipped, and the rest was carried out.
    LeftOut,
    /// The request was completed before the error occurred.
    Done,
    /// The daemon received the request but has not reported the result.
    Unknown,
    /// Settings were written, and all of them were restored.
    Restored,
    /// Settings were written, and these could not be restored.
    NotRestored {
        /// Each setting with the reason, one per line.
        stuck: Vec<String>,
        /// The script that restores them.
        undo: Option<PathBuf>,
    },
}

impl Fault {
    /// Creates a failure that changed nothing.
    pub fn new(exit: Exit, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { exit, cause: cause.into(), host: HostState::Unchanged, hint: None }
    }

    /// Creates a failure that changed nothing, with the general exit code.
    pub fn failed(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Exit::Failed, cause)
    }

    /// Creates the failure to read or write a file.
    pub fn file(path: impl Into<PathBuf>, error: std::io::Error) -> Self {
        Self::failed(FileError { path: path.into(), error })
    }

    /// Adds a hint for the operator.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Creates a refusal by the planner. It lists the parts of the host that could not be read, because they
    /// may be the cause.
    pub fn refused(refusal: Refusal, host: &Host) -> Self {
        // A process that could not be read does not explain the refusal of another process.
        let related = |unread: &&Unread| {
            refusal.kind == RefusalKind::Missing
                && unread.process().is_none_or(|pid| refusal.object == format!("task {pid}"))
        };
        let unread = host.unread.iter().filter(related);
        let unread = unread.map(|unread| format!("not read: {}: {}", unread.what, unread.why));
        let unread: Vec<String> =
            unread.filter(|line| !refusal.evidence.contains(line)).take(UNREAD_MAX).collect();
        Self::refused_with(refusal, unread)
    }

    /// Creates a refusal that was made before the host was observed.
    pub fn refused_early(refusal: Refusal) -> Self {
        Self::refused_with(refusal, Vec::new())
    }

    fn refused_with(refusal: Refusal, unread: Vec<String>) -> Self {
        let exit = match refusal.kind {
            RefusalKind::Usage => Exit::Usage,
            RefusalKind::Unsupported => Exit::Unsupported,
            RefusalKind::Safety | RefusalKind::Conflict => Exit::Refused,
            RefusalKind::Missing => Exit::Failed,
        };
        let lines = refusal.evidence.iter().cloned().chain(unread);
        let evidence: String = lines.map(|line| format!("\n  {line}")).collect();
        let fault = Self::new(exit, format!("{refusal}{evidence}"));
        match refusal.nearest {
            Some(nearest) => fault.hint(format!("what works: {nearest}")),
            None => fault,
        }
    }

    /// Returns the exit code for this failure to commit.
    pub fn exit_of(fault: &CommitFault<KernelError>) -> Exit {
        end_of(fault).0
    }

    /// Returns whether a retry may succeed: the failure is a general one, and the host is unchanged or
    /// restored.
    pub fn is_passing(&self) -> bool {
        self.exit == Exit::Failed && matches!(self.host, HostState::Unchanged | HostState::Restored)
    }

    /// Returns whether the kernel refused for lack of privileges.
    pub fn is_denied(&self) -> bool {
        self.hint.as_deref() == Some(privileges())
    }

    /// Replaces the resulting state of the host.
    #[must_use]
    pub fn leaving(mut self, host: HostState) -> Self {
        self.host = host;
        self
    }

    /// Adapts the failure of one rollback in a series: earlier rollbacks have succeeded, and these
    /// transactions are still in force.
    #[must_use]
    pub fn part_way(self, in_force: &[TransactionName]) -> Self {
        if matches!(self.host, HostState::NotRestored { .. }) {
            return self;
        }
        let stuck = in_force.iter().map(|name| format!("{name} is still in force")).collect::<Vec<_>>();
        match stuck.is_empty() {
            true => self.leaving(HostState::Restored),
            false => {
                Self { exit: Exit::NotRestored, ..self }.leaving(HostState::NotRestored { stuck, undo: None })
            }
        }
    }
}

impl HostState {
    /// Returns the state of the host after an undo. `undo` is the script for the settings that are not
    /// restored.
    pub fn after_undo(host: apply::UndoState, undo: Option<PathBuf>) -> Self {
        match host {
            apply::UndoState::Unchanged => Self::Unchanged,
            apply::UndoState::Restored => Self::Restored,
            apply::UndoState::NotRestored(stuck) => {
                Self::NotRestored { stuck: stuck.iter().map(ToString::to_string).collect(), undo }
            }
        }
    }
}

impl From<KernelError> for Fault {
    fn from(error: KernelError) -> Self {
        let exit = exit_of(&error);
        let denied = error.is_denied();
        let fault = Self::new(exit, error);
        if denied { fault.hint(privileges()) } else { fault }
    }
}

impl From<CommitError<KernelError>> for Fault {
    fn from(error: CommitError<KernelError>) -> Self {
        let words = error.fault.to_string();
        let (exit, hint) = end_of(&error.fault);
        let host = HostState::after_undo(error.host, error.undo_script);
        let exit = if matches!(host, HostState::NotRestored { .. }) { Exit::NotRestored } else { exit };
        Self { exit, cause: words.into(), host, hint: hint.map(str::to_owned) }
    }
}

impl From<JournalError> for Fault {
    fn from(error: JournalError) -> Self {
        if let JournalError::Kept { by, .. } = &error {
            let by = *by;
            let fault = Self::new(Exit::Refused, error);
            return match by {
                Some(pid) => fault.hint(format!("it is process {pid}; stop it first: kill {pid}")),
                None => fault,
            };
        }
        let denied = error.is_denied();
        let fault = Self::failed(error);
        match denied {
            true if is_root() => fault.hint("use a separate journal with --state-dir"),
            true => fault.hint("run netpolicy as root, or use a separate journal with --state-dir"),
            false => fault,
        }
    }
}

impl From<RollBackError> for Fault {
    fn from(error: RollBackError) -> Self {
        match error {
            RollBackError::Incomplete { name, undone, undo_script } => {
                let stuck: Vec<UnrestoredSetting> = undone.stuck().collect();
                let host = HostState::after_undo(undone.host(), Some(undo_script));
                Self {
                    exit: Exit::NotRestored,
                    cause: format!("{name} could not be fully rolled back").into(),
                    host,
                    hint: missing_queues::recovery_commands(&stuck, &[name]),
                }
            }
            RollBackError::Overlaid { name, newer, knob } => {
                let (knob, object) = (knob.to().knob(), knob.to().object());
                let words = format!(
                    "{name} cannot be rolled back on its own: {newer} has since changed {knob} of {object}"
                );
                Self::new(Exit::Refused, words)
                    .hint(format!("roll back {newer} first: netpolicy rollback {newer}"))
            }
            RollBackError::Owned { by, .. } => Self::new(Exit::Refused, error).hint(format!(
                "end that process instead: kill {by}; if it does not exit, kill -9 it and roll back then"
            )),
            RollBackError::NothingToUndo { .. } => Self::failed(error),
            RollBackError::Journal(error) => Self::from(error),
        }
    }
}

impl From<ConfirmError> for Fault {
    fn from(error: ConfirmError) -> Self {
        match error {
            ConfirmError::Journal(error) => Self::from(error),
            ConfirmError::NotHeld { .. } | ConfirmError::Expired { .. } => Self::failed(error),
        }
    }
}

impl From<KeepError> for Fault {
    fn from(error: KeepError) -> Self {
        let host = HostState::after_undo(error.host, None);
        let exit =
            if matches!(host, HostState::NotRestored { .. }) { Exit::NotRestored } else { Exit::Failed };
        let cause = format!("{}; a plan cannot be kept without that record", error.cause);
        Self { exit, cause: cause.into(), host, hint: None }
    }
}

/// Returns the exit code and the hint for a failure to commit.
fn end_of(fault: &CommitFault<KernelError>) -> (Exit, Option<&'static str>) {
    match fault {
        CommitFault::Irreversible(_) => {
            (Exit::Refused, Some("--allow-irreversible changes them nevertheless"))
        }
        CommitFault::Disruptive(_) => (Exit::Refused, Some("--disruptive changes them nevertheless")),
        CommitFault::Undecided { .. } => (Exit::Refused, Some("netpolicy confirm, or netpolicy rollback")),
        CommitFault::Owned { .. } => (
            Exit::Refused,
            Some("end that process first; if it does not exit, kill -9 it and use netpolicy rollback"),
        ),
        CommitFault::Unreadable { .. } => (Exit::Refused, Some(UNREADABLE)),
        CommitFault::QueueConflict(_) => (Exit::Refused, Some(plan::HELD)),
        CommitFault::Drifted(_) => (Exit::Failed, Some("plan again: netpolicy plan")),
        CommitFault::RolledBackMeanwhile { .. } => (Exit::Failed, None),
        CommitFault::ReadBack { .. } => (Exit::RolledBack, None),
        CommitFault::Host { cause, .. } => (exit_of(cause), cause.is_denied().then(privileges)),
        CommitFault::Journal(_) => (Exit::Failed, None),
    }
}

fn exit_of(error: &KernelError) -> Exit {
    match error.cause {
        Cause::Absent { .. } => Exit::Unsupported,
        Cause::ReadBack { .. } => Exit::RolledBack,
        // In all other cases, the kernel refused, or the object has changed.
        _ => Exit::Failed,
    }
}

/// The maximum number of unreadable parts of the host that a refusal names.
const UNREAD_MAX: usize = 3;

/// The hint for a transaction that cannot be read.
const UNREADABLE: &str = "run that script: it restores everything that it can, and marks the transaction as undone. Without a script, or \
                          once you have restored the settings yourself, remove its directory from the journal";

/// Describes the privileges that changing a host requires, for the user of this process.
pub fn privileges() -> &'static str {
    static CONFINED: OnceLock<Option<String>> = OnceLock::new();
    let confined = CONFINED.get_or_init(|| {
        let by = linux::confinement().filter(|_| is_root())?;
        Some(format!("{}; or {by}, which confines netpolicy, denies it", privileges_of(true)))
    });
    confined.as_deref().unwrap_or_else(|| privileges_of(is_root()))
}

const fn privileges_of(is_root: bool) -> &'static str {
    match is_root {
        true => {
            "root lacks a capability here, as in a container: CAP_NET_ADMIN, CAP_SYS_PTRACE, or CAP_SYS_ADMIN to enter or make a network namespace"
        }
        false => {
            "run netpolicy as root, or with CAP_NET_ADMIN and CAP_SYS_PTRACE (to enter or make a network namespace, CAP_SYS_ADMIN)"
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// An I/O error with the path of the file.
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

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn root_is_not_asked_to_become_root() {
        assert!(!privileges_of(true).contains("as root") && privileges_of(false).contains("as root"));
    }

    #[test]
    fn a_rollback_that_stops_half_way_neither_says_that_nothing_was_changed_nor_that_all_is_back() {
        let name: TransactionName = "20261122T030000.000000Z-0c01".parse().expect("a name");
        let refused = || Fault::new(Exit::Refused, "the setting belongs to process 7");
        let fault = refused().part_way(&[name]);
        let stuck = vec![format!("{name} is still in force")];
        assert_eq!(
            (fault.exit, fault.host),
            (Exit::NotRestored, HostState::NotRestored { stuck, undo: None })
        );
        assert_eq!(refused().part_way(&[]).host, HostState::Restored);
        // A state that lists the settings that could not be restored is more specific, so it is kept.
        let stuck = HostState::NotRestored { stuck: vec!["eth0 rx-0".to_owned()], undo: None };
        assert_eq!(refused().leaving(stuck.clone()).part_way(&[name]).host, stuck);
    }
}
