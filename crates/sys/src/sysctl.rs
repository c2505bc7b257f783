//! Numbers of `/proc/sys/net/core` that hold for the whole host.
//!
//! They are shown in the initial network namespace alone (6.18, `net/core/sysctl_net_core.c` `net_core_table`), so in
//! any other there are none.

use std::collections::BTreeMap;

use model::Sysctl;
use model::host::Unread;

use crate::error::{Errno, KernelError};

fn path(sysctl: Sysctl) -> String {
    format!("/proc/sys/net/core/{sysctl}")
}

/// All of them, as the calling thread's namespace shows them.
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

/// One of them.
///
/// # Errors
/// ENOENT in another namespace than the initial one, and on kernels without it.
pub fn read(sysctl: Sysctl) -> Result<u64, KernelError> {
    let path = path(sysctl);
    let text = std::fs::read_to_string(&path).map_err(|error| KernelError::io(&*path, &error))?;
    text.trim()
        .parse()
        .map_err(|_| KernelError::malformed(path, format!("`{}` is not a number", text.trim())))
}

/// Changes one of them.
///
/// # Errors
/// The kernel's refusal; EINVAL for a value that it does not take.
pub fn write(sysctl: Sysctl, value: u64) -> Result<(), KernelError> {
    let path = path(sysctl);
    std::fs::write(&path, value.to_string())
        .map_err(|error| KernelError::io(path, &error).needing("root in the initial namespace"))
}
