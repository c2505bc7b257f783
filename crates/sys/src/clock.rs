//! Reads the host's clocks. Code that makes decisions reads no clock: it gets the time as an argument.
//!
//! This module calls `clock_gettime(2)` directly, because rustix treats a kernel without `getcpu` in its
//! vDSO, such as User-Mode Linux, as broken.
#![expect(unsafe_code, reason = "the C library writes the time through a pointer")]

use model::Nanoseconds;

/// Returns the time since boot without suspend, from the clock that BPF programs and `perf` use.
pub fn monotonic() -> Nanoseconds {
    read(libc::CLOCK_MONOTONIC)
}

/// Returns the time since boot including suspend, from the clock of a process's `starttime`.
pub fn since_boot() -> Nanoseconds {
    read(libc::CLOCK_BOOTTIME)
}

/// Returns the time since 1970, if the clock is set correctly.
pub fn since_1970() -> Nanoseconds {
    read(libc::CLOCK_REALTIME)
}

/// Returns the length of a jiffy, which is the resolution of the coarse clock.
pub fn tick() -> Nanoseconds {
    let mut tick = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as in `read`.
    let answer = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut tick) };
    assert_eq!(answer, 0, "every Linux has the coarse clock");
    span_of(tick)
}

/// Returns the CPU time of a process, including threads that have exited; `None` if the process no longer
/// exists.
///
/// Kernel: 6.18, `include/linux/posix-timers_types.h` `CPUCLOCK_SCHED`; `kernel/time/posix-cpu-timers.c`
/// `posix_cpu_clock_get()`.
pub fn run_time_of(pid: i32) -> Option<Nanoseconds> {
    const CPUCLOCK_SCHED: libc::clockid_t = 2;
    let clock = (!pid << 3) | CPUCLOCK_SCHED;
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as in `read`.
    let answer = unsafe { libc::clock_gettime(clock, &raw mut now) };
    (answer == 0).then(|| span_of(now))
}

fn span_of(time: libc::timespec) -> Nanoseconds {
    let whole = |number: i64| u64::try_from(number).unwrap_or(0); // never negative: these clocks count from boot or from 1970
    Nanoseconds(whole(time.tv_sec).saturating_mul(1_000_000_000).saturating_add(whole(time.tv_nsec)))
}

/// Reads a clock.
pub fn read(clock: libc::clockid_t) -> Nanoseconds {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the C library writes one timespec, which outlives the call, and keeps no pointer to it.
    let answer = unsafe { libc::clock_gettime(clock, &raw mut now) };
    assert_eq!(answer, 0, "clock {clock} is one that every Linux has");
    span_of(now)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn clocks_go_on_and_agree_with_the_standard_librarys() {
        let (earlier, later) = (monotonic(), monotonic());
        assert!(earlier <= later && earlier <= since_boot());
        let standard = std::time::UNIX_EPOCH.elapsed().expect("after 1970");
        let ours = std::time::Duration::from_nanos(since_1970().0);
        assert!(ours.abs_diff(standard) < std::time::Duration::from_secs(60));
    }
}
