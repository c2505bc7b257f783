//! Reads the owner of a process, and whether it is running, from files in `/proc` that can be read without
//! waiting for the process.

use std::fmt;

use model::Pid;
use sys::error::Cause;

use super::pinned::PinnedProcess;
use super::stat::TaskStatus;

/// The owner of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessOwner {
    /// This user.
    User(u32),
    /// Any user in another user namespace. One user can have many uids in such namespaces, so they all count
    /// as one owner.
    OfOtherUserNamespaces,
}

impl fmt::Display for ProcessOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "uid {uid}"),
            Self::OfOtherUserNamespaces => f.write_str("other user namespaces"),
        }
    }
}

/// Returns the owner of the process with this pid; `None` if there is no such process.
pub fn owner(pid: Pid) -> Option<ProcessOwner> {
    let read = || {
        let process = PinnedProcess::open(pid)?;
        let mut text = Vec::new();
        process.read("status", &mut text)?;
        let status = TaskStatus::parse(&text).ok_or_else(|| Cause::Malformed("status".to_owned()))?;
        // A root process whose user namespace may not be read belongs to the host: only a privileged process
        // can read the namespaces of root processes.
        let elsewhere = status.uid != 0 && !process.is_in_our_user_namespace();
        Ok::<_, Cause>(if elsewhere {
            ProcessOwner::OfOtherUserNamespaces
        } else {
            ProcessOwner::User(status.uid)
        })
    };
    read().ok()
}

/// Returns the CPU time of a process, in clock ticks; `None` if there is no such process.
///
/// Kernel: 6.18, `fs/proc/array.c` `do_task_stat()`: fields 14 (utime) and 15 (stime).
pub fn cpu_ticks(pid: Pid) -> Option<u64> {
    let fields = fields(pid)?;
    let mut fields = fields.split_ascii_whitespace();
    let user: u64 = fields.nth(14 - STATE)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Whether a process runs, or waits for a CPU.
pub fn is_runnable(pid: Pid) -> bool {
    fields(pid).is_some_and(|fields| fields.trim_start().starts_with('R'))
}

/// The number of the first field after the name, counted from 1 as in proc_pid_stat(5).
const STATE: usize = 3;

/// Returns the fields of a process's `stat` after the name.
fn fields(pid: Pid) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(')').map(|(_, fields)| fields.to_owned())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn this_process_is_its_users_and_runs() {
        let own = Pid(std::process::id());
        assert_eq!(owner(own), Some(ProcessOwner::User(rustix::process::geteuid().as_raw())));
        assert!(cpu_ticks(own).is_some());
        assert!(
            ProcessOwner::User(0) < ProcessOwner::User(65_534)
                && ProcessOwner::User(u32::MAX) < ProcessOwner::OfOtherUserNamespaces
        );
    }
}
