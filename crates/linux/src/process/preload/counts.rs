//! Counts the events per `epoll_wait` of programs that were started with
//! [`Library::Count`](super::Library::Count).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use model::EpollBatch;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sys::error::KernelError;

use super::{PRELOAD_VARIABLE, libraries};

/// The environment variable with the path of the file in which the library counts.
const COUNTS_VARIABLE: &str = "NETPOLICY_EPOLL_COUNTS";

/// The number of threads with a separate slot; further threads share the last slot. Equals `THREADS_MAX` in
/// `preload/epoll_count.c`.
const THREADS_MAX: usize = 64;
/// The size of a slot, and of the header before the slots, in 64-bit numbers: see `struct slot` and `struct
/// counts` in `preload/epoll_count.c`.
const NUMBERS: usize = 16;
/// The indices, within a slot, of the numbers that follow the size classes.
const EVENTS: usize = EpollBatch::SIZES;
const MOST: usize = EVENTS + 1;
const FAILED: usize = EVENTS + 2;

const NUMBER_BYTES: usize = size_of::<u64>();
const SLOT_BYTES: usize = NUMBERS * NUMBER_BYTES;
const BYTES: usize = SLOT_BYTES * (1 + THREADS_MAX);

// epoll_count.c asserts the same sizes of `struct slot` and `struct counts`.
const _: () = assert!(
    EVENTS * NUMBER_BYTES == 96 && MOST * NUMBER_BYTES == 104 && FAILED * NUMBER_BYTES == 112,
    "the same as in preload/epoll_count.c"
);
const _: () = assert!(SLOT_BYTES == 128 && BYTES == 8320, "the same as in preload/epoll_count.c");

/// A file in which programs count what their `epoll_wait` returns. After this value is dropped, the programs
/// continue counting, but no one reads the counts. The file has no name and need not be removed.
#[derive(Debug)]
pub struct EpollCounts {
    file: File,
}

/// The counts at one moment, of all threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollCalls {
    /// The number of threads that have called `epoll_wait`.
    threads: u64,
    sizes: [u64; EpollBatch::SIZES],
    events: u64,
    most: u64,
    failed: u64,
}

impl EpollCounts {
    /// Creates a file in which nothing has been counted yet.
    ///
    /// # Errors
    /// The kernel's error, if there is no memory for a few pages.
    pub fn new() -> Result<Self, KernelError> {
        let failed = |errno| KernelError::errno("a file for counts of epoll_wait", errno);
        let file = memfd_create("netpolicy-epoll-counts", MemfdFlags::CLOEXEC).map_err(failed)?;
        ftruncate(&file, BYTES as u64).map_err(failed)?;
        Ok(Self { file: file.into() })
    }

    /// Returns the environment variables that start a program with the library and make it count in this
    /// file. Libraries that are already in `LD_PRELOAD` come first. The program must see this process in
    /// `/proc`, and must be allowed to open this process's files when the program is loaded; a later change
    /// of the program's user does not matter.
    pub fn environment(&self, library: &Path, preloaded: Option<&OsStr>) -> [(&'static str, OsString); 2] {
        let place = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        [(PRELOAD_VARIABLE, libraries(library, preloaded)), (COUNTS_VARIABLE, place.into())]
    }

    /// Reads the counts so far.
    ///
    /// # Errors
    /// The kernel's error; none is known.
    pub fn read(&self) -> Result<EpollCalls, KernelError> {
        let mut bytes = [0; BYTES];
        let read = self.file.read_exact_at(&mut bytes, 0);
        read.map_err(|error| KernelError::io("counts of epoll_wait", &error))?;
        Ok(EpollCalls::parse(&bytes))
    }

    /// Resets the recorded maximum number of events per call.
    ///
    /// # Errors
    /// The kernel's error; none is known.
    pub fn forget_most(&self) -> Result<(), KernelError> {
        for slot in 0..THREADS_MAX {
            let at = SLOT_BYTES * (1 + slot) + MOST * NUMBER_BYTES;
            let written = self.file.write_all_at(&0_u64.to_ne_bytes(), at as u64);
            written.map_err(|error| KernelError::io("counts of epoll_wait", &error))?;
        }
        Ok(())
    }
}

impl EpollCalls {
    fn parse(bytes: &[u8; BYTES]) -> Self {
        let mut calls = Self::default();
        let (numbers, _) = bytes.as_chunks::<NUMBER_BYTES>();
        let mut slots = numbers.chunks_exact(NUMBERS).map(|slot| slot.iter().map(|n| u64::from_ne_bytes(*n)));
        calls.threads = slots.next().and_then(|mut head| head.next()).unwrap_or_default();
        for slot in slots {
            for (at, number) in slot.enumerate() {
                match at {
                    EVENTS => calls.events += number,
                    MOST => calls.most = calls.most.max(number),
                    FAILED => calls.failed += number,
                    size => {
                        if let Some(sum) = calls.sizes.get_mut(size) {
                            *sum += number;
                        }
                    }
                }
            }
        }
        calls
    }

    /// Returns the number of events that the calls since an earlier moment returned. `None` if no program has
    /// ever counted, because it is statically linked or has not made its first call yet.
    #[expect(clippy::cast_precision_loss, reason = "events of one run, far below 2^53")]
    pub fn batch_since(&self, earlier: &Self) -> Option<EpollBatch> {
        if self.threads == 0 {
            return None;
        }
        let sizes = std::array::from_fn(|size| self.sizes[size].saturating_sub(earlier.sizes[size]));
        let waits: u64 = sizes[1..].iter().sum();
        let events = self.events.saturating_sub(earlier.events);
        Some(EpollBatch {
            waits,
            empty: sizes[0],
            avg: if waits == 0 { 0.0 } else { events as f64 / waits as f64 },
            max: u32::try_from(self.most).unwrap_or(u32::MAX),
            sizes: Some(sizes),
        })
    }

    /// Returns the number of calls since an earlier moment that returned an error.
    pub const fn failed_since(&self, earlier: &Self) -> u64 {
        self.failed.saturating_sub(earlier.failed)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn threads_are_added_up_and_a_moment_is_compared_with_an_earlier_one() {
        let mut bytes = [0; BYTES];
        let mut set = |slot: usize, at: usize, number: u64| {
            let start = slot * SLOT_BYTES + at * NUMBER_BYTES;
            bytes[start..start + NUMBER_BYTES].copy_from_slice(&number.to_ne_bytes());
        };
        set(0, 0, 2);
        for (slot, most) in [(1, 3), (THREADS_MAX, 2)] {
            set(slot, 0, 10); // found nothing
            set(slot, 1, 4);
            set(slot, 2, 1);
            set(slot, EVENTS, 4 + most);
            set(slot, MOST, most);
            set(slot, FAILED, 1);
        }
        let calls = EpollCalls::parse(&bytes);
        let found = calls.batch_since(&EpollCalls::default()).expect("two threads counted");
        assert_eq!((found.waits, found.empty, found.max), (10, 20, 3));
        assert!((found.avg - 1.3).abs() < 1e-9, "{found:?}");
        assert_eq!(calls.failed_since(&EpollCalls::default()), 2);
        let nothing = calls.batch_since(&calls).expect("they counted");
        assert_eq!((nothing.waits, nothing.empty, nothing.empty_share()), (0, 0, None));
        assert_eq!(
            EpollCalls::default().batch_since(&EpollCalls::default()),
            None,
            "nothing has been counted"
        );
    }

    #[test]
    fn the_place_is_as_large_as_the_library_expects() {
        let source = include_str!("../../../preload/epoll_count.c");
        assert!(source.contains(&format!("#define THREADS_MAX {THREADS_MAX}\n")));
        assert!(source.contains(&format!("#define SIZES {} /*", EpollBatch::SIZES)));
    }
}
