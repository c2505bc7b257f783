//! Passes lines to the installed tc, in the order of the file: earlier lines are done before such a line is
//! passed, and later ones wait for it. One tc process executes all of them. After each line, tc is given a
//! line that it does not know, as a barrier: its error shows that the previous line is done. While tc works,
//! this process waits on the same CPU ([`SameCpu`]). tc's changes can be neither undone nor distinguished
//! from earlier ones, so `--atomic`, `--swap` and `--resume` refuse such lines.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use linux::{Netns, Signals};
use model::legible::shortened;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use session::{Exit, Fault};
use tc_rules::kernel::Loader;

use crate::report::{RefusedLine, TcWarning};

/// The maximum number of characters of tc's message to report for a line.
const WORDS_CHARS_MAX: usize = 400;

/// The maximum number of warnings to keep.
const WARNINGS_MAX: usize = 1000;

/// The maximum length of tc's output to keep for a line.
const SAID_BYTES_MAX: usize = 1 << 16;

/// How long tc may continue after a signal.
const GOES_ON_FOR: Duration = Duration::from_secs(2);

/// The start of a barrier's word; the barrier's line number follows. No version of tc has an object of this
/// name.
const BARRIER: &str = "netpolicy-barrier";

/// Directories to search for tc after the caller's path.
const DIRECTORIES: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Passes lines to tc, and keeps their results.
#[derive(Debug)]
pub(super) struct ByTc<'n> {
    netns: &'n Netns,
    /// The path of tc; empty if lines for tc are not allowed.
    program: PathBuf,
    keep_going: bool,
    running: Option<Running>,
    pub(super) done: u64,
    pub(super) refused: Vec<RefusedLine>,
    pub(super) unsent: Vec<u32>,
    /// tc's messages about lines that succeeded.
    pub(super) warnings: Vec<TcWarning>,
    /// Whether a signal arrived while tc was working.
    pub(super) interrupted: bool,
}

/// The result of a line.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// tc executed the line and printed this output.
    Done(String),
    /// tc refused the line with this message.
    Refused(String),
}

impl<'n> ByTc<'n> {
    /// Prepares for a load into this namespace. With `keep_going`, later lines are executed after a refusal.
    ///
    /// # Errors
    /// If `wanted` is set, and tc is not installed.
    pub(super) fn new(netns: &'n Netns, wanted: bool, keep_going: bool) -> Result<Self, Fault> {
        let program = match wanted {
            true => found("tc").ok_or_else(|| {
                Fault::new(
                    Exit::Unsupported,
                    "--with-tc needs tc of iproute2, which is neither in PATH nor in /usr/sbin and /sbin; nothing was sent",
                )
            })?,
            false => PathBuf::new(),
        };
        let (running, refused, unsent, warnings) = (None, Vec::new(), Vec::new(), Vec::new());
        Ok(Self {
            netns,
            program,
            keep_going,
            running,
            done: 0,
            refused,
            unsent,
            warnings,
            interrupted: false,
        })
    }

    /// Waits until all earlier lines are done, and then executes this one.
    ///
    /// # Errors
    /// If sending the earlier lines fails.
    pub(super) fn push(
        &mut self,
        line: u32,
        text: &str,
        loader: &mut Loader,
        signals: &mut Signals,
    ) -> Result<(), Fault> {
        loader.settle()?;
        if loader.has_stopped() {
            self.unsent.push(line);
            return Ok(());
        }
        match self.answer(text, signals) {
            Ok(Answer::Done(words)) => {
                self.done += 1;
                if !words.is_empty() && self.warnings.len() < WARNINGS_MAX {
                    self.warnings.push(TcWarning { line, words });
                }
            }
            Ok(Answer::Refused(words)) => self.refuse(line, &format!("tc: {words}")),
            Err(why) => {
                // The result is unknown: start a new tc for the next line.
                self.running = None;
                self.refuse(line, &why);
            }
        }
        if self.interrupted || !self.keep_going && !self.refused.is_empty() {
            loader.stop();
        }
        Ok(())
    }

    /// Passes a line to tc, and waits until tc has executed it.
    ///
    /// # Errors
    /// The reason why the line's result is unknown.
    fn answer(&mut self, text: &str, signals: &mut Signals) -> Result<Answer, String> {
        if self.running.is_none() {
            let started = Running::start(&self.program, self.netns);
            let not_started = |error| format!("{} could not be started: {error}", self.program.display());
            self.running = Some(started.map_err(not_started)?);
        }
        let Some(running) = &mut self.running else { return Err("tc does not run".to_owned()) };
        running.answer(text, signals, &mut self.interrupted)
    }

    fn refuse(&mut self, line: u32, words: &str) {
        let words = shortened(words.trim_end_matches([' ', ':']), WORDS_CHARS_MAX).into_owned();
        self.refused.push(RefusedLine { line, errno: 0, is_denied: false, words });
    }
}

/// A running tc that reads lines.
#[derive(Debug)]
struct Running {
    child: Child,
    input: ChildStdin,
    said: ChildStderr,
    same_cpu: SameCpu,
    /// tc's output since the last barrier.
    words: Vec<u8>,
    /// The number of lines passed to tc, including barriers.
    lines: u64,
}

impl Running {
    fn start(program: &Path, netns: &Netns) -> io::Result<Self> {
        let mut command = Command::new(program);
        // Without -force, tc would exit at the first barrier.
        command.args(["-force", "-batch", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Puts tc in its own process group, so that Ctrl-C reaches only this process.
        command.process_group(0);
        let mut child = netns.run(|| command.spawn()).map_err(io::Error::other)??;
        let pipes = child.stdin.take().zip(child.stderr.take());
        let (input, said) = pipes.ok_or_else(|| io::Error::other("no pipes"))?;
        let same_cpu = SameCpu::new(&child);
        Ok(Self { child, input, said, same_cpu, words: Vec::new(), lines: 0 })
    }

    /// Passes a line and a barrier to tc, and waits for the barrier's error.
    fn answer(
        &mut self,
        text: &str,
        signals: &mut Signals,
        interrupted: &mut bool,
    ) -> Result<Answer, String> {
        self.lines += 2;
        self.same_cpu.enter();
        let answer = self.exchange(text, signals, interrupted);
        self.same_cpu.leave();
        answer
    }

    fn exchange(
        &mut self,
        text: &str,
        signals: &mut Signals,
        interrupted: &mut bool,
    ) -> Result<Answer, String> {
        // Ignore errors: if tc has exited, its standard error says so.
        let _ = self.input.write_all(format!("{text}\n{BARRIER}-{}\n", self.lines).as_bytes());
        let mut ends_at: Option<Instant> = None;
        loop {
            if let Some((answer, end)) = answer_in(&self.words, self.lines) {
                self.words.drain(..end);
                return Ok(answer);
            }
            let left = ends_at.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut descriptors =
                [PollFd::new(&self.said, PollFlags::IN), PollFd::new(&*signals, PollFlags::IN)];
            let ready = poll(&mut descriptors, timeout.as_ref()).unwrap_or(0);
            let [said, signal] = descriptors.map(|of| ready > 0 && !of.revents().is_empty());
            if said {
                let mut bytes = [0; 4096];
                match self.said.read(&mut bytes) {
                    Ok(0) | Err(_) => return Err(self.ended()),
                    Ok(count) => {
                        self.words.extend_from_slice(&bytes[..count]);
                        // If the output is too long, keep its end: the barrier's error comes last.
                        let surplus = self.words.len().saturating_sub(SAID_BYTES_MAX);
                        self.words.drain(..surplus);
                    }
                }
            }
            if signal && signals.take().is_some() {
                *interrupted = true;
                ends_at.get_or_insert(Instant::now() + GOES_ON_FOR);
            }
            if ends_at.is_some_and(|at| Instant::now() > at) {
                let _ = self.child.kill();
            }
        }
    }

    /// Returns why tc has closed its standard error.
    fn ended(&mut self) -> String {
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        let words = String::from_utf8_lossy(&self.words);
        let of_it = words.lines().filter(|line| !line.starts_with(FAILED));
        format!("tc ended with {status}; it may or may not have done this line: {}", joined(of_it))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // This loses nothing: tc has answered every line.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Keeps this thread on the CPU of a program while it waits for the program. Only one of the two runs at any
/// time. If they had a CPU each, every exchange would wake an idle CPU, which takes about as long as loading
/// a rule.
#[derive(Debug)]
struct SameCpu {
    program: Option<Pid>,
    /// The CPU to which the program was moved.
    at: Option<usize>,
    /// The CPUs that this thread may use otherwise; `None` if the set cannot hold them, and then nothing is
    /// changed.
    otherwise: Option<CpuSet>,
}

impl SameCpu {
    fn new(program: &Child) -> Self {
        let program = i32::try_from(program.id()).ok().and_then(Pid::from_raw);
        Self { program, at: None, otherwise: sched_getaffinity(None).ok() }
    }

    /// Moves this thread and tc to this thread's CPU. Only speed depends on it, so errors are ignored.
    fn enter(&mut self) {
        if self.otherwise.is_none() || self.program.is_none() {
            return;
        }
        let cpu = sched_getcpu();
        if cpu >= CpuSet::MAX_CPU {
            return;
        }
        let mut only = CpuSet::new();
        only.set(cpu);
        if self.at != Some(cpu) && sched_setaffinity(self.program, &only).is_ok() {
            self.at = Some(cpu);
        }
        let _ = sched_setaffinity(None, &only);
    }

    /// Allows this thread all its CPUs again.
    fn leave(&self) {
        if let Some(otherwise) = &self.otherwise {
            let _ = sched_setaffinity(None, otherwise);
        }
    }
}

/// The start of tc's message about a failed line; the line number and a newline follow.
const FAILED: &str = "Command failed -:";

/// Finds tc's output for the line before the barrier with this line number. Returns the answer and the end of
/// the first line of the barrier's error, or `None` until that line is complete. The error of the previous
/// barrier comes first, because tc prints it while this process continues. iproute2 6.1, `lib/utils.c`
/// `do_batch()`: a command's output comes first, then `Command failed -:N`.
fn answer_in(said: &[u8], barrier: u64) -> Option<(Answer, usize)> {
    let named = format!("Object \"{BARRIER}-{barrier}\"");
    let failed = |line: u64| format!("{FAILED}{line}");
    // Another version of tc may word the barrier's error differently; its line number still identifies it.
    let of_barrier = |line: &str| line.starts_with(&named) || line == failed(barrier);
    let before = failed(barrier.saturating_sub(2));
    let (mut words, mut refused, mut end) = (Vec::new(), false, 0);
    for whole in said.split_inclusive(|byte| *byte == b'\n') {
        end += whole.len();
        let line = String::from_utf8_lossy(whole.strip_suffix(b"\n")?);
        if of_barrier(&line) {
            let words = joined(words.iter().map(String::as_str));
            return Some((if refused { Answer::Refused(words) } else { Answer::Done(words) }, end));
        }
        if line == before {
            continue;
        }
        if line.starts_with(FAILED) {
            refused = true;
        } else {
            words.push(line.into_owned());
        }
    }
    None
}

fn joined<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<&str> = lines.map(str::trim).filter(|line| !line.is_empty()).collect();
    shortened(&words.join("; "), WORDS_CHARS_MAX).into_owned()
}

/// Searches `PATH`, and then `DIRECTORIES`, for the program of this name.
fn found(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(DIRECTORIES.into_iter().map(PathBuf::from));
    directories.map(|directory| directory.join(OsStr::new(name))).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.is_absolute()
        && path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_tc_says_of_a_line_is_known_once_it_has_named_the_barrier() {
        let barrier = "Object \"netpolicy-barrier-4\" is unknown, try \"tc help\".\n";
        let answer = |text: &str| answer_in(text.as_bytes(), 4);
        let refused = format!("Cannot find device \"nowhere\"\nCommand failed -:3\n{barrier}");
        let words = Answer::Refused("Cannot find device \"nowhere\"".to_owned());
        assert_eq!(answer(&refused), Some((words, refused.len())));
        let warned = format!("Warning: sch_htb: quantum is big.\n{barrier}");
        let words = Answer::Done("Warning: sch_htb: quantum is big.".to_owned());
        assert_eq!(answer(&warned), Some((words, warned.len())));
        assert_eq!(answer(barrier), Some((Answer::Done(String::new()), barrier.len())));
        // The error of the previous barrier may arrive late; everything after it belongs to the next line.
        let late = format!("Command failed -:2\n{barrier}Command failed -:4\n");
        let end = late.len() - "Command failed -:4\n".len();
        assert_eq!(answer(&late), Some((Answer::Done(String::new()), end)));
        // If the barrier's error is worded differently, its line number identifies it, and its text counts as
        // output.
        let other = "Error: no such object.\nCommand failed -:4\n";
        let words = Answer::Done("Error: no such object.".to_owned());
        assert_eq!(answer(other), Some((words, other.len())));
        let parts = [
            "",
            "Object \"netpolicy-barrier-4\"",
            "Object \"netpolicy-barrier-2\" is unknown, try \"tc help\".\n",
            "What is \"netpolicy-barrier-4\"?\n",
            "Command failed -:2\nCommand failed -:3\n",
            "Command failed -:4",
            "Command failed -:41\n",
        ];
        for part in parts {
            assert_eq!(answer(part), None, "{part}");
        }
    }
}
