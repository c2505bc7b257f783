//! Finds the place of a process in the hierarchy of its service manager.

use model::{Pid, ProcessId};
use sys::error::KernelError;

use super::cgroup;
use super::pinned::PinnedProcess;

/// Returns the cgroup of a process, such as `/system.slice/memcached.service`; `None` if the process is in
/// none. Requires no privileges.
///
/// # Errors
/// [`sys::Cause::Gone`] if the process has exited.
pub fn cgroup_of(process: &ProcessId) -> Result<Option<String>, KernelError> {
    let wrong = |cause| KernelError { what: format!("the cgroup of process {}", process.pid), cause };
    let pinned = PinnedProcess::reopen(process).map_err(wrong)?;
    let mut text = Vec::new();
    pinned.read("cgroup", &mut text).map_err(wrong)?;
    Ok(cgroup::path(&String::from_utf8_lossy(&text)).map(str::to_owned))
}

/// The possible mount points of systemd's hierarchy: the unified hierarchy if it is the only one, the unified
/// hierarchy of a hybrid host, or the hierarchy `name=systemd`.
pub(super) const MOUNTS: [&str; 3] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"];

/// Returns the systemd service of which this is the only process, such as `netpolicy.service`; `None` for a
/// process that was started manually. A process of an sshd session may be in the cgroup of a service, too,
/// but that cgroup has other processes.
pub fn service_of(pid: Pid) -> Option<String> {
    let path = cgroup_of(&super::identify(pid).ok()?).ok()??;
    let members =
        MOUNTS.iter().find_map(|at| std::fs::read_to_string(format!("{at}{path}/cgroup.procs")).ok())?;
    service(&path, &members, pid)
}

fn service(path: &str, members: &str, pid: Pid) -> Option<String> {
    let unit = path.rsplit('/').next()?;
    let unit = unit.strip_prefix('_').unwrap_or(unit);
    let is_alone = members.lines().all(|member| member.trim().parse() == Ok(pid.0));
    (is_alone && unit.ends_with(".service")).then(|| unit.to_owned())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_process_is_a_services_where_it_is_alone_in_its_cgroup() {
        let of = |path, members| service(path, members, Pid(812));
        assert_eq!(of("/system.slice/netpolicy.service", "812\n").as_deref(), Some("netpolicy.service"));
        assert_eq!(
            of("/system.slice/ssh.service", "700\n812\n"),
            None,
            "started manually, from an sshd session"
        );
        assert_eq!(of("/user.slice/user-0.slice/session-3.scope", "812\n"), None);
        assert_eq!(of("/", "812\n"), None);
    }
}
