//! Lines that the installed tc does, each in its turn: all before them is settled first, and what follows waits.
//!
//! Its changes can be neither undone nor distinguished from what was there before: `--atomic`, `--swap` and `--resume` refuse such
//! lines.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use linux::tc::Loader;
use linux::{Netns, Signals};
use rules::words::shortened;
use rustix::fs::{MemfdFlags, memfd_create};
use session::{Exit, Fault};

use crate::render::RefusedLine;

/// How many lines one tc is given at most, and how many bytes of them.
const LINES_MAX: usize = 512;
const BYTES_MAX: usize = 1 << 20;

/// How much is read of what tc says of its lines, and how much is said of each.
const SAID_BYTES_MAX: u64 = 1 << 20;
const WORDS_CHARS_MAX: usize = 400;

/// How often it is asked whether tc is done, and how long it may go on after a signal.
const ASKED_EVERY: Duration = Duration::from_millis(1);
const GOES_ON_FOR: Duration = Duration::from_secs(2);

/// Where tc is, if the path of the caller does not say.
const DIRECTORIES: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Lines for tc, and what became of them.
#[derive(Debug)]
pub(super) struct ByTc<'n> {
    netns: &'n Netns,
    /// Nowhere, if no line is for it.
    program: PathBuf,
    keep_going: bool,
    waiting: Vec<(u32, String)>,
    bytes: usize,
    pub(super) done: u64,
    pub(super) refused: Vec<RefusedLine>,
    pub(super) unsent: Vec<u32>,
    /// Whether a signal came while tc was at work.
    pub(super) interrupted: bool,
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
        let (waiting, refused, unsent) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self {
            netns,
            program,
            keep_going,
            waiting,
            bytes: 0,
            done: 0,
            refused,
            unsent,
            interrupted: false,
        })
    }

    /// Takes a line. Once there are many, they are done.
    pub(super) fn push(
        &mut self,
        line: u32,
        text: &str,
        loader: &mut Loader,
        signals: &mut Signals,
    ) -> Result<(), Fault> {
        self.waiting.push((line, text.to_owned()));
        self.bytes += text.len() + 1;
        if self.waiting.len() < LINES_MAX && self.bytes < BYTES_MAX {
            return Ok(());
        }
        self.flush(loader, signals)
    }

    /// Does the lines that wait, when all that the loader has is settled.
    ///
    /// # Errors
    /// What sending failed with.
    pub(super) fn flush(&mut self, loader: &mut Loader, signals: &mut Signals) -> Result<(), Fault> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        loader.settle()?;
        let lines = std::mem::take(&mut self.waiting);
        self.bytes = 0;
        if loader.has_stopped() {
            self.unsent.extend(lines.iter().map(|(line, _)| *line));
            return Ok(());
        }
        match self.given(&lines, signals) {
            Ok((status, said)) => self.account(&lines, status, &said),
            Err(error) => {
                self.refuse(&lines, &format!("{} could not be started: {error}", self.program.display()))
            }
        }
        if self.interrupted || !self.keep_going && !self.refused.is_empty() {
            loader.stop();
        }
        Ok(())
    }

    /// Gives lines to one tc, and waits for its end; what it said.
    fn given(
        &mut self,
        lines: &[(u32, String)],
        signals: &mut Signals,
    ) -> std::io::Result<(ExitStatus, String)> {
        let memory = |name| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from);
        let (mut input, mut said) = (memory("netpolicy-tc-lines")?, memory("netpolicy-tc-words")?);
        let text: String = lines.iter().flat_map(|(_, text)| [text.as_str(), "\n"]).collect();
        input.write_all(text.as_bytes())?;
        input.rewind()?;
        let mut command = Command::new(&self.program);
        command.args(if self.keep_going { &["-force", "-batch", "-"][..] } else { &["-batch", "-"] });
        command.stdin(input).stdout(Stdio::null()).stderr(said.try_clone()?);
        // Ctrl-C is for us.
        command.process_group(0);
        let child = self.netns.run(|| command.spawn()).map_err(std::io::Error::other)?;
        let status = self.waited(child?, signals)?;
        said.rewind()?;
        let mut words = Vec::new();
        said.take(SAID_BYTES_MAX).read_to_end(&mut words)?;
        Ok((status, String::from_utf8_lossy(&words).into_owned()))
    }

    fn waited(&mut self, mut child: Child, signals: &mut Signals) -> std::io::Result<ExitStatus> {
        let mut ends_at = None;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if signals.take().is_some() {
                self.interrupted = true;
                ends_at.get_or_insert(Instant::now() + GOES_ON_FOR);
            }
            if ends_at.is_some_and(|at| Instant::now() > at) {
                child.kill()?;
            }
            std::thread::sleep(ASKED_EVERY);
        }
    }

    /// Enters what became of lines.
    fn account(&mut self, lines: &[(u32, String)], status: ExitStatus, said: &str) {
        let (refusals, rest) = refusals(said);
        if !status.success() && (refusals.is_empty() || status.code().is_none()) {
            // It says of no line that it failed: it may have done any of them.
            self.refuse(
                lines,
                &format!("tc ended with {status}; whether it did this line is not known: {rest}"),
            );
            return;
        }
        let tried = match (self.keep_going, refusals.first()) {
            (false, Some((failed, _))) => (failed + 1).min(lines.len()),
            _ => lines.len(),
        };
        self.unsent.extend(lines[tried..].iter().map(|(line, _)| *line));
        let refused = refusals.into_iter().filter_map(|(at, words)| Some((lines.get(at)?.0, words)));
        let before = self.refused.len();
        self.refused.extend(refused.map(|(line, words)| RefusedLine {
            line,
            errno: 0,
            is_denied: false,
            words: format!("tc: {words}"),
        }));
        self.done += (tried - (self.refused.len() - before)) as u64;
    }

    fn refuse(&mut self, lines: &[(u32, String)], words: &str) {
        let words = shortened(words.trim_end_matches([' ', ':']), WORDS_CHARS_MAX);
        let refused = |(line, _): &(u32, String)| RefusedLine {
            line: *line,
            errno: 0,
            is_denied: false,
            words: words.clone().into_owned(),
        };
        self.refused.extend(lines.iter().map(refused));
    }
}

/// The lines that tc refused, by their places in what it was given, with its words; and the words that belong to none.
///
/// iproute2 6.1, `lib/utils.c` `do_batch()`: what a command says comes first, then `Command failed -:N`.
fn refusals(said: &str) -> (Vec<(usize, String)>, String) {
    let (mut refusals, mut words) = (Vec::new(), Vec::new());
    let joined = |words: &[&str]| shortened(&words.join("; "), WORDS_CHARS_MAX).into_owned();
    for line in said.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.strip_prefix("Command failed -:").and_then(|number| number.parse::<usize>().ok()) {
            Some(number) => {
                refusals.push((number.saturating_sub(1), joined(&words)));
                words.clear();
            }
            // Of a line that was done.
            None if line.starts_with("Warning:") => {}
            None => words.push(line),
        }
    }
    (refusals, joined(&words))
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
    fn what_tc_says_belongs_to_the_line_behind_it() {
        let said = "Cannot find device \"nowhere\"\nCommand failed -:1\nWarning: sch_htb: quantum is big.\n\
                    RTNETLINK answers: No such file or directory\nCommand failed -:3\nterminated\n";
        let (refused, rest) = refusals(said);
        let wanted =
            [(0, "Cannot find device \"nowhere\""), (2, "RTNETLINK answers: No such file or directory")];
        assert_eq!(refused, wanted.map(|(at, words)| (at, words.to_owned())));
        assert_eq!(rest, "terminated");
        assert_eq!(refusals(""), (Vec::new(), String::new()));
    }
}
