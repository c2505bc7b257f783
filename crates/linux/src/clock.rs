//! The host's clocks. Rooms that decide take time as an argument; this is where it comes from.

use model::Nanoseconds;

use crate::sys::clock::read;

/// Since some moment at boot, without the time that the host was suspended; the clock of BPF programs and of `perf`.
pub fn monotonic() -> Nanoseconds {
    read(libc::CLOCK_MONOTONIC)
}

/// Since boot, with the time that the host was suspended; the clock of a process's `starttime`.
pub fn since_boot() -> Nanoseconds {
    read(libc::CLOCK_BOOTTIME)
}

/// Since the beginning of 1970, if the clock was set correctly.
pub fn since_1970() -> Nanoseconds {
    read(libc::CLOCK_REALTIME)
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
