//! Counts one event of one thread, with `perf_event_open(2)`.
#![expect(unsafe_code, reason = "perf_event_open(2) has no safe wrapper")]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

/// An event to count. Kernel: `include/uapi/linux/perf_event.h` `PERF_TYPE_*`, and the `config` of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfEvent {
    /// CPU cycles, counted by the hardware: `PERF_COUNT_HW_CPU_CYCLES`.
    Cycles,
    /// Nanoseconds on a CPU, counted by the kernel: `PERF_COUNT_SW_TASK_CLOCK`. Every machine has it.
    TaskClock,
}

impl PerfEvent {
    const fn type_and_config(self) -> (u32, u64) {
        match self {
            Self::Cycles => (0, 0),
            Self::TaskClock => (1, 1),
        }
    }
}

/// The first 64 bytes of `struct perf_event_attr`, which every kernel accepts (`PERF_ATTR_SIZE_VER0`).
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64, "PERF_ATTR_SIZE_VER0");

/// Starts to count an event of a thread, and of threads that this thread starts later, on any CPU.
///
/// Reading the descriptor returns three `u64`: the count, how long the counter was enabled, and how long it
/// was running on the hardware, both in nanoseconds.
pub fn count(tid: libc::pid_t, event: PerfEvent) -> Result<OwnedFd, Errno> {
    /// `PERF_FLAG_FD_CLOEXEC`.
    const FD_CLOEXEC: libc::c_ulong = 1 << 3;
    const INHERIT: u64 = 1 << 1;
    const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    const TOTAL_TIME_ENABLED: u64 = 1 << 0;
    const TOTAL_TIME_RUNNING: u64 = 1 << 1;
    let (kind, config) = event.type_and_config();
    let attributes = Attributes {
        kind,
        size: 64,
        config,
        sample_period: 0,
        sample_type: 0,
        read_format: TOTAL_TIME_ENABLED | TOTAL_TIME_RUNNING,
        flags: INHERIT | EXCLUDE_HYPERVISOR,
        wakeup_events: 0,
        breakpoint_type: 0,
        breakpoint_address: 0,
    };
    let (any_cpu, no_group, flags) = (-1, -1, FD_CLOEXEC);
    // SAFETY: the kernel reads the 64 bytes that `size` gives, and keeps no pointer to them.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, tid, any_cpu, no_group, flags)
    };
    super::answer::done(fd)?;
    let fd = RawFd::try_from(fd).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel has just created this descriptor for us, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
