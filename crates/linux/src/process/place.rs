//! Where a process is in the hierarchy of its service manager.

use model::ProcessId;
use sys::error::KernelError;

use super::cgroup;
use super::pinned::Pinned;

/// The cgroup of a process, as in `/system.slice/memcached.service`; `None` where it is in none. It takes no privileges.
///
/// # Errors
/// [`sys::Cause::Gone`] if the process ended.
pub fn cgroup_of(process: &ProcessId) -> Result<Option<String>, KernelError> {
    let wrong = |cause| KernelError { what: format!("the cgroup of process {}", process.pid), cause };
    let pinned = Pinned::reopen(process).map_err(wrong)?;
    let mut text = Vec::new();
    pinned.read("cgroup", &mut text).map_err(wrong)?;
    Ok(cgroup::path(&String::from_utf8_lossy(&text)).map(str::to_owned))
}
