//! Measures how long threads were ready to run but had no CPU, from `/proc/PID/task/TID/schedstat`.

use std::collections::BTreeMap;

use model::{CpuWait, Host, Nanoseconds, Pid, ThreadId};

/// The maximum number of threads that are read, over all processes.
const THREADS_MAX: usize = 4096;

/// The waiting times of threads at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuWaits {
    threads: BTreeMap<ThreadId, CpuWait>,
}

impl CpuWaits {
    /// Reads the waiting times of the threads that were observed in `epoll_wait`. If a process has epolls but
    /// no thread was observed in `epoll_wait`, all of its threads count: running and runnable threads are not
    /// shown in a system call.
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

    /// Returns how long each process has waited since the counters were read: the longest wait among its
    /// threads. Threads that have exited are omitted.
    pub fn since(&self) -> BTreeMap<Pid, CpuWait> {
        let mut longest: BTreeMap<Pid, CpuWait> = BTreeMap::new();
        for (thread, before) in &self.threads {
            let Some(now) = read(*thread) else { continue };
            let wait = CpuWait {
                waited: Nanoseconds(now.waited.0.saturating_sub(before.waited.0)),
                turns: now.turns.saturating_sub(before.turns),
            };
            let entry = longest.entry(thread.process.pid).or_insert(wait);
            if wait.waited > entry.waited {
                *entry = wait;
            }
        }
        longest
    }
}

fn read(thread: ThreadId) -> Option<CpuWait> {
    let path = format!("/proc/{}/task/{}/schedstat", thread.process.pid, thread.tid);
    parse(&std::fs::read(path).ok()?)
}

/// Parses a thread's `schedstat`. Kernel: 6.18, `fs/proc/base.c` `proc_pid_schedstat()`: time on a CPU, time
/// spent waiting for a CPU, both in nanoseconds, and how often the thread was scheduled. All zero without
/// `CONFIG_SCHED_INFO`.
fn parse(text: &[u8]) -> Option<CpuWait> {
    let mut numbers = std::str::from_utf8(text).ok()?.split_ascii_whitespace().skip(1);
    let mut next = || numbers.next()?.parse().ok();
    Some(CpuWait { waited: Nanoseconds(next()?), turns: next()? })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_second_number_is_the_wait_and_the_third_the_turns() {
        let wait = parse(b"1200345 78788 17\n").expect("three numbers");
        assert_eq!(wait, CpuWait { waited: Nanoseconds(78_788), turns: 17 });
        assert_eq!(wait.each(), Some(Nanoseconds(4634)));
        assert_eq!(CpuWait::default().each(), None, "it never ran");
        for text in ["", "12", "1 2", "1 x 2", "\u{fffd}"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
