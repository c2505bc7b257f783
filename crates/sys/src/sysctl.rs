//! Reads and writes host-wide sysctls in `/proc/sys/net/core`.
//!
//! The sysctls are visible only in the initial network namespace (6.18, `net/core/sysctl_net_core.c`
//! `net_core_table`). In any other namespace, [`all`] returns nothing.

use std::collections::BTreeMap;

use model::host::Unread;
use model::{CpuSet, Sysctl};

use crate::error::{Errno, KernelError};

fn path(sysctl: Sysctl) -> String {
    format!("/proc/sys/net/core/{sysctl}")
}

/// Reads all sysctls that are visible in the calling thread's namespace.
pub fn all(unread: &mut Vec<Unread>) -> BTreeMap<Sysctl, u64> {
    let mut found = BTreeMap::new();
    for &sysctl in Sysctl::ALL {
        match read(sysctl) {
            Ok(value) => {
                found.insert(sysctl, value);
            }
            Err(error) if error.number() == Some(Errno::NOENT) => {}
            Err(error) => unread.push(Unread { what: error.what, why: error.cause.to_string() }),
        }
    }
    found
}

/// Returns the CPUs that new receive queues of the calling thread's namespace use for RPS; empty on kernels
/// without this sysctl.
///
/// Kernel: 6.3, `net/core/sysctl_net_core.c` `rps_default_mask_sysctl()`.
pub fn rps_default_mask(unread: &mut Vec<Unread>) -> CpuSet {
    const PATH: &str = "/proc/sys/net/core/rps_default_mask";
    match std::fs::read_to_string(PATH) {
        Ok(text) => CpuSet::parse_mask(text.trim()).unwrap_or_else(|not| {
            unread.push(Unread { what: PATH.to_owned(), why: not.to_string() });
            CpuSet::new()
        }),
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                unread.push(Unread { what: PATH.to_owned(), why: error.to_string() });
            }
            CpuSet::new()
        }
    }
}

/// Reads a sysctl.
///
/// # Errors
/// ENOENT outside the initial namespace, and on kernels without the sysctl.
pub fn read(sysctl: Sysctl) -> Result<u64, KernelError> {
    let path = path(sysctl);
    let text = std::fs::read_to_string(&path).map_err(|error| KernelError::io(&*path, &error))?;
    text.trim()
        .parse()
        .map_err(|_| KernelError::malformed(path, format!("`{}` is not a number", text.trim())))
}

/// Writes a sysctl.
///
/// # Errors
/// The kernel's error; EINVAL for an invalid value.
pub fn write(sysctl: Sysctl, value: u64) -> Result<(), KernelError> {
    let path = path(sysctl);
    std::fs::write(&path, value.to_string())
        .map_err(|error| KernelError::io(path, &error).needing("root in the initial namespace"))
}
