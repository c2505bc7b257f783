//! Reads and sets the CPUs that a thread of a running process may use.

use model::{CpuSet, ProcessKnob, Setting, ThreadId};
use rustix::io::Errno;
use sys::error::{Cause, KernelError};

use super::pinned::PinnedProcess;
use super::stat::{Stat, TaskStatus};

/// Reads the CPUs on which a thread may run.
///
/// # Errors
/// [`Cause::Gone`] if the process or the thread has exited.
pub fn read_thread_affinity(id: &ThreadId) -> Result<CpuSet, KernelError> {
    PinnedProcess::reopen(&id.process)
        .and_then(|process| {
            confirm(&process, id)?;
            let mut text = Vec::new();
            process.read(&format!("task/{}/status", id.tid), &mut text)?;
            let status = TaskStatus::parse(&text);
            status.map(|status| status.affinity).ok_or_else(|| Cause::Malformed("status".to_owned()))
        })
        .map_err(|cause| KernelError { what: format!("{id}: cpus_allowed"), cause })
}

/// Restricts a thread to these CPUs. The kernel ignores CPUs that are not in the thread's cpuset.
///
/// # Errors
/// Those of [`read_thread_affinity`]; also `EINVAL` if the thread's cpuset has none of the CPUs, and
/// [`Cause::Denied`] without CAP_SYS_NICE for a thread of another user.
pub fn write_thread_affinity(id: &ThreadId, cpus: &CpuSet) -> Result<(), KernelError> {
    PinnedProcess::reopen(&id.process)
        .and_then(|process| {
            confirm(&process, id)?;
            let tid = libc::pid_t::try_from(id.tid.0).map_err(|_| gone(id))?;
            sys::affinity::set_affinity(tid, cpus).map_err(|errno| match errno {
                Errno::SRCH => gone(id),
                Errno::PERM => {
                    Cause::Denied { errno, needs: "CAP_SYS_NICE in the process's user namespace".to_owned() }
                }
                other => Cause::Errno(other),
            })?;
            // The system call takes a tid, not a pidfd. If the thread still exists afterwards, the call
            // changed that thread and no other.
            confirm(&process, id)
        })
        .map_err(|cause| KernelError {
            what: Setting::Process(ProcessKnob::ThreadAffinity(*id, cpus.clone())).to_string(),
            cause,
        })
}

/// Returns the CPUs on which the calling thread may run.
///
/// # Errors
/// If `/proc` is not mounted.
pub fn cpus_of_this_thread() -> Result<CpuSet, KernelError> {
    const STATUS: &str = "/proc/thread-self/status";
    let text = std::fs::read(STATUS).map_err(|error| KernelError::io(STATUS, &error))?;
    let status =
        TaskStatus::parse(&text).ok_or_else(|| KernelError::malformed(STATUS, "no CPUs".to_owned()))?;
    Ok(status.affinity)
}

/// Restricts the calling thread, and threads that it starts afterwards, to these CPUs.
///
/// # Errors
/// `EINVAL` if the thread's cpuset has none of these CPUs.
pub fn pin_this_thread(cpus: &CpuSet) -> Result<(), KernelError> {
    let this = 0;
    sys::affinity::set_affinity(this, cpus)
        .map_err(|errno| KernelError::errno(format!("a thread of the test on CPUs {cpus}"), errno))
}

/// Checks that the thread's tid still refers to the observed thread.
fn confirm(process: &PinnedProcess, id: &ThreadId) -> Result<(), Cause> {
    let mut text = Vec::new();
    process.read(&format!("task/{}/stat", id.tid), &mut text)?;
    match Stat::parse(&text) {
        Some(stat) if stat.started == id.started => Ok(()),
        Some(_) => Err(gone(id)),
        None => Err(Cause::Malformed("stat".to_owned())),
    }
}

fn gone(id: &ThreadId) -> Cause {
    Cause::Gone(format!("thread {} has ended", id.tid))
}
