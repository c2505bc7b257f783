//! Cleans up processes and directories that a killed test run leaves behind. A run has a directory for
//! temporary files, and every process that it starts has a mark in its environment. A cleanup process in
//! another session waits until the run has ended, then kills the marked processes and removes the directory.
//! A new run also cleans up after earlier runs whose process no longer exists.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::files::About as _;
use crate::shell::Result;

/// The variable that marks the processes of a run. Its value is the pid of the run.
const MARK: &str = "NETPOLICY_TEST_RUN";

/// The prefix of the runs' directories; the pid follows.
const DIRECTORY: &str = "netpolicy-test-run-";

/// The maximum number of searches for marked processes: a process can start another one before it is killed.
const PASSES_MAX: usize = 20;

/// A run of tests. When it is dropped, everything that the run left behind is removed.
pub(crate) struct Run {
    directory: PathBuf,
    /// The process that cleans up when its standard input ends.
    sweeper: Child,
}

impl Run {
    /// Cleans up after earlier runs, and begins a new one.
    pub(crate) fn begin() -> Result<Self> {
        sweep_earlier_runs();
        let pid = std::process::id();
        let directory = directory_of(&pid.to_string());
        std::fs::create_dir_all(&directory)
            // Every user may write to the directory, because tests also start programs as other users.
            .and_then(|()| std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o1777)))
            .about(&directory)?;
        let here = std::env::current_exe().map_err(|error| format!("the path of xtask: {error}"))?;
        let mut sweeper = Command::new("setsid");
        sweeper.arg(here).args(["sweep", &pid.to_string()]).stdin(Stdio::piped());
        let sweeper = sweeper.spawn().map_err(|error| format!("setsid: {error}"))?;
        Ok(Self { directory, sweeper })
    }

    /// Marks a command, and everything that it starts, as part of this run.
    pub(crate) fn mark(&self, command: &mut Command) {
        command.env(MARK, std::process::id().to_string()).env("TMPDIR", &self.directory);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        drop(self.sweeper.stdin.take());
        let _ = self.sweeper.wait();
    }
}

/// `cargo xtask sweep PID`: waits for the end of standard input, then cleans up after the run with that pid.
pub(crate) fn run(arguments: &[String]) -> Result {
    let [pid] = arguments else { return Err("usage: cargo xtask sweep PID".to_owned()) };
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    sweep(pid);
    Ok(())
}

/// Cleans up after each run whose directory exists and whose process does not.
fn sweep_earlier_runs() {
    let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(DIRECTORY) else { continue };
        if pid.bytes().all(|byte| byte.is_ascii_digit()) && !Path::new("/proc").join(pid).exists() {
            eprintln!("removing what the run of process {pid} left behind");
            sweep(pid);
        }
    }
}

fn directory_of(pid: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{DIRECTORY}{pid}"))
}

/// Kills the processes with this mark, and removes the run's directory.
fn sweep(pid: &str) {
    for _ in 0..PASSES_MAX {
        let left = marked(pid);
        if left.is_empty() {
            break;
        }
        eprintln!("killing what the tests left running: {}", left.join("; "));
        let pids = left.iter().filter_map(|process| process.split(' ').next());
        // Ignore processes that exited in the meantime.
        let _ = Command::new("kill").arg("-KILL").args(pids).stderr(Stdio::null()).status();
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let directory = directory_of(pid);
    if let Err(error) = std::fs::remove_dir_all(&directory)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        eprintln!("{}: {error}", directory.display());
    }
}

/// Returns the processes with this mark, as `PID COMMAND (of TEST)`. Zombies are not included, because they
/// have no environment.
fn marked(pid: &str) -> Vec<String> {
    let mark = format!("{MARK}={pid}");
    let is_marked = |process: &Path| {
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .filter(|entry| is_marked(&entry.path()))
        .map(|entry| {
            let words = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
            let command = String::from_utf8_lossy(&words("cmdline")).replace('\0', " ");
            let environment = String::from_utf8_lossy(&words("environ")).into_owned();
            let test =
                environment.split('\0').find_map(|variable| variable.strip_prefix("NEXTEST_TEST_NAME="));
            let of = test.map_or(String::new(), |test| format!(" (of {test})"));
            format!("{} {}{of}", entry.file_name().display(), command.trim())
        })
        .collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_a_run_left_behind_is_killed_and_removed_when_its_process_is_gone() {
        // No process has this pid: it is above the kernel's limit.
        let pid = (4_194_304 + u64::from(std::process::id())).to_string();
        let directory = directory_of(&pid);
        std::fs::create_dir_all(directory.join("of a test")).expect("a directory");
        let mut left = Command::new("sleep").arg("600").env(MARK, &pid).spawn().expect("it starts");
        let mut other = Command::new("sleep").arg("600").spawn().expect("it starts");
        let found = marked(&pid);
        assert!(found.len() == 1 && found[0].starts_with(&format!("{} sleep 600", left.id())), "{found:?}");
        sweep_earlier_runs();
        assert!(!left.wait().expect("it was killed").success() && !directory.exists());
        assert!(other.try_wait().expect("it is ours").is_none(), "a process without the mark keeps running");
        other.kill().and_then(|()| other.wait()).expect("it runs");
    }
}
