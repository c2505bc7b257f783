//! Lines that the installed tc does, each in its turn: all before them is settled first, and what follows waits.
//!
//! One tc does all of them. After each line it is given a line that no tc knows, as a barrier: what it says of that comes when the line
//! before is done. Its changes can be neither undone nor distinguished from what was there before: `--atomic`, `--swap` and
//! `--resume` refuse such lines.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use linux::{Netns, Signals};
use model::legible::shortened;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use session::{Exit, Fault};
use tc_rules::kernel::Loader;

use crate::report::{RefusedLine, TcWarning};

/// How much is said of each line.
const WORDS_CHARS_MAX: usize = 400;

/// How many warnings are kept.
const WARNINGS_MAX: usize = 1000;

/// How much of what tc says of a line is kept.
const SAID_BYTES_MAX: usize = 1 << 16;

/// How often a signal is looked for while tc is at work, and how long tc may go on after one.
const ASKED_EVERY: Duration = Duration::from_millis(20);
const GOES_ON_FOR: Duration = Duration::from_secs(2);

/// The word of a barrier: no object of any tc begins with it.
const BARRIER: &str = "netpolicy-barrier";

/// Where tc is, if the path of the caller does not say.
const DIRECTORIES: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Lines for tc, and what became of them.
#[derive(Debug)]
pub(super) struct ByTc<'n> {
    netns: &'n Netns,
    /// Nowhere, if no line is for it.
    program: PathBuf,
    keep_going: bool,
    running: Option<Running>,
    pub(super) done: u64,
    pub(super) refused: Vec<RefusedLine>,
    pub(super) unsent: Vec<u32>,
    /// What tc said of lines that it has done.
    pub(super) warnings: Vec<TcWarning>,
    /// Whether a signal came while tc was at work.
    pub(super) interrupted: bool,
}

/// What became of a line.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// tc has done it, and said this.
    Done(String),
    /// tc has refused it, with these words.
    Refused(String),
}

impl<'n> ByTc<'n> {
    /// For a load into this namespace, which goes on after refusals or not.
    ///
    /// # Errors
    /// If lines may be for tc, and there is none.
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

    /// Does a line, when all that the loader has is settled.
    ///
    /// # Errors
    /// What sending failed with.
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
                // The next line gets another one.
                self.running = None;
                self.refuse(line, &why);
            }
        }
        if self.interrupted || !self.keep_going && !self.refused.is_empty() {
            loader.stop();
        }
        Ok(())
    }

    /// Gives a line to tc, and waits until it is done.
    ///
    /// # Errors
    /// Why it is not known what became of it.
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

/// A tc that reads lines.
#[derive(Debug)]
struct Running {
    child: Child,
    input: ChildStdin,
    said: ChildStderr,
    /// What it said since the last barrier.
    words: Vec<u8>,
    /// How many lines it was given, barriers among them.
    lines: u64,
}

impl Running {
    fn start(program: &Path, netns: &Netns) -> io::Result<Self> {
        let mut command = Command::new(program);
        // Without -force it would end at the first barrier.
        command.args(["-force", "-batch", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Ctrl-C is for us.
        command.process_group(0);
        let mut child = netns.run(|| command.spawn()).map_err(io::Error::other)??;
        let pipes = child.stdin.take().zip(child.stderr.take());
        let (input, said) = pipes.ok_or_else(|| io::Error::other("no pipes"))?;
        Ok(Self { child, input, said, words: Vec::new(), lines: 0 })
    }

    /// Gives it a line and a barrier, and waits for what it says of the barrier.
    fn answer(
        &mut self,
        text: &str,
        signals: &mut Signals,
        interrupted: &mut bool,
    ) -> Result<Answer, String> {
        self.words.clear();
        self.lines += 2;
        // A tc that has ended says so at its other pipe.
        let _ = self.input.write_all(format!("{text}\n{BARRIER}\n").as_bytes());
        let mut ends_at = None;
        loop {
            if let Some(answer) = answer_in(&self.words, self.lines) {
                return Ok(answer);
            }
            let mut descriptors = [PollFd::new(&self.said, PollFlags::IN)];
            let timeout = Timespec::try_from(ASKED_EVERY).ok();
            let ready = poll(&mut descriptors, timeout.as_ref()).unwrap_or(0);
            if ready > 0 {
                let mut bytes = [0; 4096];
                match self.said.read(&mut bytes) {
                    Ok(0) | Err(_) => return Err(self.ended()),
                    Ok(count) => {
                        self.words.extend_from_slice(&bytes[..count]);
                        // What it says of the barrier comes last.
                        let surplus = self.words.len().saturating_sub(SAID_BYTES_MAX);
                        self.words.drain(..surplus);
                    }
                }
            }
            if signals.take().is_some() {
                *interrupted = true;
                ends_at.get_or_insert(Instant::now() + GOES_ON_FOR);
            }
            if ends_at.is_some_and(|at| Instant::now() > at) {
                let _ = self.child.kill();
            }
        }
    }

    /// It says nothing more: why.
    fn ended(&mut self) -> String {
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        let words = String::from_utf8_lossy(&self.words);
        format!("tc ended with {status}; whether it did this line is not known: {}", joined(words.lines()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It does nothing by now: each line was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What tc says of a line, once it has refused the barrier behind it, which is this line of its input; `None` until then.
///
/// iproute2 6.1, `lib/utils.c` `do_batch()`: what a command says comes first, then `Command failed -:N`.
fn answer_in(said: &[u8], barrier: u64) -> Option<Answer> {
    let said = String::from_utf8_lossy(said);
    let failed = |line: u64| format!("Command failed -:{line}\n");
    let (said, _) = said.split_once(failed(barrier).as_str())?;
    let of_barrier = |line: &&str| line.contains(BARRIER);
    Some(match said.split_once(failed(barrier - 1).as_str()) {
        Some((words, _)) => Answer::Refused(joined(words.lines())),
        None => Answer::Done(joined(said.lines().take_while(|line| !of_barrier(line)))),
    })
}

/// Lines of words as one.
fn joined<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<&str> = lines.map(str::trim).filter(|line| !line.is_empty()).collect();
    shortened(&words.join("; "), WORDS_CHARS_MAX).into_owned()
}

/// The program of this name.
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
    fn what_tc_says_of_a_line_is_known_once_it_has_refused_the_barrier() {
        let barrier = "Object \"netpolicy-barrier\" is unknown, try \"tc help\".\n";
        let refused =
            format!("Cannot find device \"nowhere\"\nCommand failed -:3\n{barrier}Command failed -:4\n");
        let answer = answer_in(refused.as_bytes(), 4);
        assert_eq!(answer, Some(Answer::Refused("Cannot find device \"nowhere\"".to_owned())));
        let warned = format!("Warning: sch_htb: quantum is big.\n{barrier}Command failed -:4\n");
        assert_eq!(
            answer_in(warned.as_bytes(), 4),
            Some(Answer::Done("Warning: sch_htb: quantum is big.".to_owned()))
        );
        let silent = format!("{barrier}Command failed -:4\n");
        assert_eq!(answer_in(silent.as_bytes(), 4), Some(Answer::Done(String::new())));
        for part in ["", barrier, "Command failed -:3\n", "Command failed -:4", "Command failed -:41\n"] {
            assert_eq!(answer_in(part.as_bytes(), 4), None, "{part}");
        }
    }
}
