//! Looks up running threads by their tids.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use model::Pid;

/// The maximum number of threads of one process that are listed.
const THREADS_MAX: usize = 1 << 16;

/// Returns the name of a thread; `None` if the thread has exited.
pub fn thread_name(tid: u32) -> Option<String> {
    let comm = std::fs::read(format!("/proc/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&comm).trim_end_matches('\n').to_owned())
}

/// Returns the tids of a process's threads; none if the process has exited.
pub fn threads_of(pid: Pid) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| thread.file_name().to_str().and_then(|tid| tid.parse().ok()))
        .take(THREADS_MAX)
        .collect()
}

/// Returns a path by which other processes, such as our children, can open a file that this process has open,
/// even if the file has no name.
pub fn path_of_our(file: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_fd().as_raw_fd()))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_thread_is_found_by_its_process_and_has_the_name_that_it_was_given() {
        let (send, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("a name".to_owned());
        let thread = thread.spawn(move || wait.recv()).expect("a thread");
        let named = || {
            threads_of(Pid(std::process::id()))
                .into_iter()
                .any(|tid| thread_name(tid).as_deref() == Some("a name"))
        };
        // The thread sets its name when it starts running.
        for _ in 0..1_000 {
            if named() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(named());
        drop(send);
        let _ = thread.join();
        assert_eq!(thread_name(u32::MAX), None);
    }
}
