//! The names of a service's threads, including those of threads that have exited.

use std::collections::BTreeMap;

use model::{Pid, ProcessId};

/// The names that threads had when they were first observed. With these, a thread can still be named after it
/// has exited.
#[derive(Clone, Debug, Default)]
pub struct ThreadNames(BTreeMap<Pid, String>);

impl ThreadNames {
    /// Reads the names of all threads of these processes.
    pub fn of_processes(processes: &[ProcessId]) -> Self {
        let mut names = Self::default();
        for process in processes {
            names.0.insert(process.pid, process.comm.to_string());
            names.learn(linux::process::threads_of(process.pid).into_iter().map(Pid));
        }
        names
    }

    /// Reads the names of those threads that are not known yet.
    pub fn learn(&mut self, threads: impl IntoIterator<Item = Pid>) {
        for thread in threads {
            if !self.0.contains_key(&thread)
                && let Some(name) = linux::process::thread_name(thread.0)
            {
                self.0.insert(thread, name);
            }
        }
    }

    /// Formats a thread: `nginx[812]`, or `thread 812` if the thread exited before its name was read.
    pub fn sentence(&self, thread: Pid) -> String {
        match self.0.get(&thread) {
            Some(name) => format!("{name}[{thread}]"),
            None => format!("thread {thread}"),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_thread_that_ended_keeps_the_name_that_it_had() {
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::Builder::new().name("a worker".to_owned());
        let worker = worker.spawn(move || ends.recv().expect("told")).expect("spawned");
        let is_it = |tid: &u32| linux::process::thread_name(*tid).as_deref() == Some("a worker");
        let tid = loop {
            let all = linux::process::threads_of(Pid(std::process::id()));
            if let Some(tid) = all.into_iter().find(is_it) {
                break Pid(tid);
            }
        };
        let mut names = ThreadNames::default();
        assert_eq!(names.sentence(tid), format!("thread {tid}"));
        names.learn([tid]);
        end.send(()).expect("it waits");
        worker.join().expect("ended");
        names.learn([tid]);
        assert_eq!(names.sentence(tid), format!("a worker[{tid}]"));
    }
}
