//! `sched_setattr(2)` and `sched_getattr(2)`, for which the C library has no wrappers.
#![expect(unsafe_code, reason = "the C library has no functions for these calls")]

use std::mem::size_of;

use rustix::io::Errno;

/// `struct sched_attr` of Linux 5.3 (`SCHED_ATTR_SIZE_VER1`); older kernels read and write only their part of
/// it.
///
/// Kernel: 6.18, `include/uapi/linux/sched/types.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RawAttr {
    /// The size of the structure, in bytes.
    pub size: u32,
    /// `SCHED_*`.
    pub policy: u32,
    /// `SCHED_FLAG_*`.
    pub flags: u64,
    /// The nice value, for `SCHED_OTHER` and `SCHED_BATCH`.
    pub nice: i32,
    /// The priority, for `SCHED_FIFO` and `SCHED_RR`.
    pub priority: u32,
    /// The run time per period, in nanoseconds, for `SCHED_DEADLINE`.
    pub runtime: u64,
    /// The relative deadline, in nanoseconds, for `SCHED_DEADLINE`.
    pub deadline: u64,
    /// The period, in nanoseconds, for `SCHED_DEADLINE`.
    pub period: u64,
    /// The minimum utilisation that the scheduler assumes, in 1024ths of a CPU.
    pub util_min: u32,
    /// The maximum utilisation that the scheduler assumes, in 1024ths of a CPU.
    pub util_max: u32,
}

/// The size of [`RawAttr`] in bytes: `SCHED_ATTR_SIZE_VER1`.
const BYTES: u32 = 56;

const _: () = assert!(size_of::<RawAttr>() == 56, "in the kernel's layout");

/// Returns the scheduling attributes of a thread; 0 is the calling thread.
pub fn attributes(tid: libc::pid_t) -> Result<RawAttr, Errno> {
    let mut attr = RawAttr::default();
    // SAFETY: the kernel writes at most `BYTES` bytes, the size of the structure, and keeps no pointer to it.
    let answer = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, BYTES, 0) };
    super::answer::done(answer).map(|()| attr)
}

/// Sets the scheduling attributes of a thread; 0 is the calling thread.
pub fn set_attributes(tid: libc::pid_t, attr: RawAttr) -> Result<(), Errno> {
    let attr = RawAttr { size: BYTES, ..attr };
    // SAFETY: the kernel reads `size` bytes, the size of the structure, and keeps no pointer to it.
    let answer = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0) };
    super::answer::done(answer)
}
