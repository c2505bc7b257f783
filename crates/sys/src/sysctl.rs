//! Reads and writes sysctls of `/proc/sys/net`.
//!
//! The host-wide sysctls in `net/core` are visible only in the initial network namespace (6.18,
//! `net/core/sysctl_net_core.c` `net_core_table`). In any other namespace, [`all`] returns nothing.

use std::collections::BTreeMap;

use model::host::{PortRange, Unread};
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
    let parse = |text: &str| CpuSet::parse_mask(text).map_err(|not| not.to_string());
    of_namespace("/proc/sys/net/core/rps_default_mask", parse, unread)
}

/// Returns the ports that the kernel gives to sockets of the calling thread's namespace that do not bind one.
///
/// Kernel: 6.18, `net/ipv4/sysctl_net_ipv4.c` `ipv4_local_port_range()`.
pub fn local_ports(unread: &mut Vec<Unread>) -> PortRange {
    let parse = |text: &str| {
        let mut ports = text.split_ascii_whitespace().map(str::parse::<u16>);
        match (ports.next(), ports.next(), ports.next()) {
            (Some(Ok(first)), Some(Ok(last)), None) => Ok(PortRange { first, last }),
            _ => Err(format!("`{text}` is not two ports")),
        }
    };
    of_namespace("/proc/sys/net/ipv4/ip_local_port_range", parse, unread)
}

/// Returns the ports that the kernel gives only to sockets that bind one of them.
///
/// Kernel: 6.18, `kernel/sysctl.c` `proc_do_large_bitmap()`.
pub fn reserved_ports(unread: &mut Vec<Unread>) -> Vec<PortRange> {
    let parse = |text: &str| {
        let ranges = text.split(',').filter(|range| !range.is_empty()).map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(PortRange { first: first.parse().ok()?, last: last.parse().ok()? })
        });
        ranges.collect::<Option<Vec<PortRange>>>().ok_or_else(|| format!("`{text}` is not a list of ports"))
    };
    of_namespace("/proc/sys/net/ipv4/ip_local_reserved_ports", parse, unread)
}

/// Reads a sysctl of the calling thread's namespace. Returns the default on kernels without the sysctl, and
/// if it cannot be read.
fn of_namespace<T: Default>(
    path: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
    unread: &mut Vec<Unread>,
) -> T {
    let value = match std::fs::read_to_string(path) {
        Ok(text) => parse(text.trim()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(error.to_string()),
    };
    value.unwrap_or_else(|why| {
        unread.push(Unread { what: path.to_owned(), why });
        T::default()
    })
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
