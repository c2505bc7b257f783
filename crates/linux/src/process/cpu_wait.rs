//! For how long threads were ready to run and had no CPU, from `/proc/PID/task/TID/schedstat`.

use std::collections::BTreeMap;

use model::{Host, Nanoseconds, Pid, ThreadId};

/// How many threads are looked at, over all processes.
const THREADS_MAX: usize = 4096;

/// The waits of threads up to a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuWaits {
    threads: BTreeMap<ThreadId, u64>,
}

impl CpuWaits {
    /// The waits up to now of the threads that were seen in `epoll_wait`. A thread that runs or waits for its CPU is
    /// seen nowhere: of a process with epolls and no such thread, all count.
    pub fn of(host: &Host) -> Self {
        let mut threads = BTreeMap::new();
        for process in host.processes.iter().filter(|process| !process.epolls.is_empty()) {
            let seen = process.threads.iter().any(|thread| thread.waits_on.is_some());
            for thread in process.threads.iter().filter(|thread| !seen || thread.waits_on.is_some()) {
                if threads.len() < THREADS_MAX
                    && let Some(waited) = read(thread.id)
                {
                    threads.insert(thread.id, waited);
                }
            }
        }
        Self { threads }
    }

    /// How much longer each process has waited now: of its threads the longest wait. Those that ended are left out.
    pub fn since(&self) -> BTreeMap<Pid, Nanoseconds> {
        let mut longest: BTreeMap<Pid, Nanoseconds> = BTreeMap::new();
        for (thread, before) in &self.threads {
            let Some(waited) = read(*thread) else { continue };
            let entry = longest.entry(thread.process.pid).or_default();
            *entry = (*entry).max(Nanoseconds(waited.saturating_sub(*before)));
        }
        longest
    }
}

fn read(thread: ThreadId) -> Option<u64> {
    let path = format!("/proc/{}/task/{}/schedstat", thread.process.pid, thread.tid);
    parse(&std::fs::read(path).ok()?)
}

/// Kernel: 6.18, `fs/proc/base.c` `proc_pid_schedstat()`: time on a CPU, time spent waiting for one, both in nanoseconds,
/// and how often it was put on one. All zero without `CONFIG_SCHED_INFO`.
fn parse(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_second_number_is_the_wait() {
        assert_eq!(parse(b"1200345 78788 17\n"), Some(78_788));
        for text in ["", "12", "1 x 2", "\u{fffd}"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
