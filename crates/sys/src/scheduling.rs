//! `sched_setattr(2)` and `sched_getattr(2)`, which the C library does not offer.
#![expect(unsafe_code, reason = "the C library has no functions for these calls")]

use std::mem::size_of;

use rustix::io::Errno;

/// `struct sched_attr` as of Linux 5.3 (`SCHED_ATTR_SIZE_VER1`); older kernels fill and read the part that they know.
///
/// Kernel: 6.18, `include/uapi/linux/sched/types.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RawAttr {
    /// How long the structure is, in bytes.
    pub size: u32,
    /// `SCHED_*`.
    pub policy: u32,
    /// `SCHED_FLAG_*`.
    pub flags: u64,
    /// Of `SCHED_OTHER` and `SCHED_BATCH`.
    pub nice: i32,
    /// Of `SCHED_FIFO` and `SCHED_RR`.
    pub priority: u32,
    /// Nanoseconds.
    pub runtime: u64,
    /// Nanoseconds.
    pub deadline: u64,
    /// Nanoseconds.
    pub period: u64,
    /// In 1024ths of a CPU.
    pub util_min: u32,
    /// In 1024ths of a CPU.
    pub util_max: u32,
}

/// Its length, in bytes: `SCHED_ATTR_SIZE_VER1`.
const BYTES: u32 = 56;

const _: () = assert!(size_of::<RawAttr>() == 56, "as the kernel lays it out");

/// How a thread is scheduled; 0 for the calling one.
pub fn attributes(tid: libc::pid_t) -> Result<RawAttr, Errno> {
    let mut attr = RawAttr::default();
    // SAFETY: the kernel writes at most `BYTES` bytes to the structure, which has as many, and keeps no pointer to it.
    let answer = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, BYTES, 0) };
    super::answer::done(answer).map(|()| attr)
}

/// Changes how a thread is scheduled; 0 for the calling one.
pub fn set_attributes(tid: libc::pid_t, attr: RawAttr) -> Result<(), Errno> {
    let attr = RawAttr { size: BYTES, ..attr };
    // SAFETY: the kernel reads the bytes that `size` says, which are the structure's, and keeps no pointer to it.
    let answer = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0) };
    super::answer::done(answer)
}
