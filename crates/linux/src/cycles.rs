//! CPU cycles that a process uses, from the processor's own counters.

use std::fs::File;
use std::io::Read;

use model::{Pid, ProcessId};
use sys::error::{Errno, KernelError};
use sys::perf::{PerfEvent, count};

/// The maximum number of threads of a process that are counted.
const THREADS_MAX: usize = 4096;

/// Counts the cycles of a process's threads, in user mode and in the kernel on their behalf.
#[derive(Debug)]
pub struct Cycles {
    process: ProcessId,
    threads: Vec<File>,
}

impl Cycles {
    /// Starts counting the process's cycles.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] without hardware counters, as in most virtual machines; EACCES without
    /// CAP_PERFMON; [`sys::Cause::Gone`] if the process has exited.
    pub fn of(process: ProcessId) -> Result<Self, KernelError> {
        Self::count(process, PerfEvent::Cycles)
    }

    fn count(process: ProcessId, event: PerfEvent) -> Result<Self, KernelError> {
        let what = || format!("{process}: counting CPU cycles");
        let mut threads = Vec::new();
        for tid in tids(process.pid).take(THREADS_MAX) {
            match count(tid, event) {
                Ok(counter) => threads.push(File::from(counter)),
                Err(Errno::SRCH) => {} // the thread has exited
                Err(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    return Err(KernelError::absent(
                        what(),
                        "a processor whose counters the kernel can use",
                        None,
                    ));
                }
                Err(errno) => return Err(KernelError::errno(what(), errno)),
            }
        }
        if threads.is_empty() {
            Err(KernelError::gone(what(), "the process ended"))
        } else {
            Ok(Self { process, threads })
        }
    }

    /// Returns the cycles so far. If the hardware was shared with other counters, the cycles are extrapolated
    /// to the whole time.
    ///
    /// # Errors
    /// If a counter cannot be read.
    pub fn read(&mut self) -> Result<u64, KernelError> {
        let mut sum = 0;
        for thread in &mut self.threads {
            let mut bytes = [0; 24];
            let what = || format!("{}: reading CPU cycles", self.process);
            thread.read_exact(&mut bytes).map_err(|error| KernelError::io(what(), &error))?;
            let (words, _) = bytes.as_chunks::<8>();
            let [count, enabled, running] = [words[0], words[1], words[2]].map(u64::from_ne_bytes);
            sum += scaled(count, enabled, running);
        }
        Ok(sum)
    }
}

/// Extrapolates a count that was taken for `running` of `enabled` nanoseconds.
fn scaled(count: u64, enabled: u64, running: u64) -> u64 {
    match running {
        0 => 0,
        _ => u64::try_from(u128::from(count) * u128::from(enabled) / u128::from(running)).unwrap_or(u64::MAX),
    }
}

fn tids(pid: Pid) -> impl Iterator<Item = i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod test {
    use super::*;
    use sys::Cause;

    fn this_process() -> ProcessId {
        crate::process::identify(Pid(std::process::id())).expect("ours")
    }

    #[test]
    fn what_a_process_computes_is_counted_for_all_its_threads() {
        // Uses the kernel's clock as the counter, because every machine has it. A host that denies users
        // hardware counters denies this counter, too.
        let mut counter = match Cycles::count(this_process(), PerfEvent::TaskClock) {
            Ok(counter) => counter,
            Err(error) => {
                return assert!(matches!(error.number(), Some(Errno::ACCESS | Errno::PERM)), "{error}");
            }
        };
        let before = counter.read().expect("reads");
        std::thread::spawn(|| {
            std::hint::black_box((0..2_000_000_u64).map(std::hint::black_box).sum::<u64>())
        })
        .join()
        .expect("computes");
        let spent = counter.read().expect("reads") - before;
        assert!(spent > 100_000, "{spent} ns for two million additions");
    }

    #[test]
    fn a_machine_without_counters_says_so_instead_of_counting_nothing() {
        match Cycles::of(this_process()) {
            Ok(mut cycles) => assert!(cycles.read().expect("reads") > 0),
            Err(error) => {
                let absent = matches!(error.cause, Cause::Absent { .. });
                let forbidden = matches!(error.number(), Some(Errno::ACCESS | Errno::PERM));
                assert!(absent || forbidden, "{error}");
            }
        }
    }

    #[test]
    fn a_counter_that_ran_half_of_the_time_counts_twice() {
        assert_eq!(scaled(500, 2_000, 1_000), 1_000);
        assert_eq!(scaled(0, 2_000, 0), 0);
        assert_eq!(scaled(u64::MAX, 2, 1), u64::MAX);
    }
}
