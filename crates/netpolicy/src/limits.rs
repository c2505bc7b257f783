//! Raises the limit of open descriptors before a command starts.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use session::Fault;

/// The number of descriptors that an observation needs: netlink sockets, BPF programs, and a few for each
/// process.
const OPEN_FILES_MIN: u64 = 64;

/// Raises the limit on open files to the number that is needed, as far as permitted.
///
/// # Errors
/// If the limit cannot be raised.
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
        format!("the limit on open files (RLIMIT_NOFILE) is {current}; netpolicy needs {OPEN_FILES_MIN}");
    Err(Fault::failed(words).hint("ulimit -n 1024; in a systemd unit: LimitNOFILE=1024"))
}
