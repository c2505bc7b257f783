//! What a command lacks before it begins: privileges, and descriptors.

use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use session::Fault;

/// How many descriptors a look at a host takes at least: netlink sockets, BPF programs, and a few for each process.
const OPEN_FILES_MIN: u64 = 64;

/// What a user without privileges is told before anything else; `None` for root.
pub(crate) fn missing_privileges() -> Option<&'static str> {
    (!geteuid().is_root() && !linux::observe::may_administer()).then_some(
        "Run netpolicy as root, or with CAP_NET_ADMIN and CAP_SYS_PTRACE: without, it changes nothing, and sees no \
         processes of other users.",
    )
}

/// Raises the limit on open files to what is needed, as far as that is allowed.
///
/// # Errors
/// The limit that cannot be raised.
pub(crate) fn admit_open_files() -> Result<(), Fault> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= OPEN_FILES_MIN) {
        return Ok(());
    }
    let wanted = maximum.map_or(OPEN_FILES_MIN, |maximum| maximum.min(OPEN_FILES_MIN));
    let raised = wanted >= OPEN_FILES_MIN
        && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok();
    if raised {
        return Ok(());
    }
    let current = current.unwrap_or_default();
    let words =
        format!("the limit on open files (RLIMIT_NOFILE) is {current}, and netpolicy needs {OPEN_FILES_MIN}");
    Err(Fault::failed(words).hint("ulimit -n 1024; of a systemd unit: LimitNOFILE=1024"))
}
