//! Netlink socket options that rustix does not support.
#![expect(unsafe_code, reason = "setsockopt with options that rustix lacks")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// A switch of a netlink socket. Kernel: `include/uapi/linux/netlink.h` `NETLINK_*` at `SOL_NETLINK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Switch {
    /// Acknowledgements and error replies repeat only the request's header, not the whole request. Since 4.3.
    CapAck = libc::NETLINK_CAP_ACK,
    /// The kernel's error replies contain a message. Since 4.12.
    ExtAck = libc::NETLINK_EXT_ACK,
    /// The kernel validates requests strictly and applies the filters in them. Since 4.20.
    StrictCheck = libc::NETLINK_GET_STRICT_CHK,
}

/// Enables a switch.
pub fn turn_on(socket: impl AsFd, switch: Switch) -> Result<(), Errno> {
    set(socket, switch as libc::c_int, 1)
}

/// Joins a multicast group. Kernel: `NETLINK_ADD_MEMBERSHIP`.
pub fn join(socket: impl AsFd, group: u32) -> Result<(), Errno> {
    set(socket, libc::NETLINK_ADD_MEMBERSHIP, group)
}

fn set(socket: impl AsFd, option: libc::c_int, value: u32) -> Result<(), Errno> {
    let length: libc::socklen_t = 4;
    // SAFETY: `value` is a live four-byte number and `length` its size; the kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            (&raw const value).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
