//! Attaches the BPF program that selects a listener of a reuseport group.
#![expect(unsafe_code, reason = "setsockopt with options that rustix lacks")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Attaches a program to a socket's group, replacing any existing program.
///
/// Kernel: 4.19, `net/core/filter.c` `sk_reuseport_attach_bpf()`.
pub fn attach(socket: impl AsFd, program: BorrowedFd<'_>) -> Result<(), Errno> {
    set(socket.as_fd(), libc::SO_ATTACH_REUSEPORT_EBPF, program.as_raw_fd())
}

/// Detaches the program from a socket's group. ENOENT if there is none.
///
/// Kernel: 5.3, `net/core/sock_reuseport.c` `reuseport_detach_prog()`.
pub fn detach(socket: impl AsFd) -> Result<(), Errno> {
    /// `include/uapi/asm-generic/socket.h`; libc lacks it on some targets.
    const SO_DETACH_REUSEPORT_BPF: libc::c_int = 68;
    set(socket.as_fd(), SO_DETACH_REUSEPORT_BPF, 0)
}

fn set(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(size_of_val(&value)).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel reads `length` bytes from `value`, which is that long.
    let answer = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const value).cast(), length)
    };
    super::answer::done(answer.into())
}
