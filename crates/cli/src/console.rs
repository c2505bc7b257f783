//! Writes to standard output and standard error.

use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal, Write};

use model::{Object, Plan};
use session::page::Report;
use session::report::{EventReport, PlanReport, printable, typed};
use session::{Fault, Operator, Session};

use crate::globals::{Color, Globals, Output};

/// Writes data to standard output, and messages to standard error. If the reader closes standard output
/// (`netpolicy show | head`), the command continues: later output is dropped, and the exit code still reports
/// the command's outcome.
#[derive(Clone, Debug)]
pub struct Console {
    output: Output,
    colour_out: bool,
    colour_err: bool,
    quiet: bool,
    verbose: u8,
    /// The options that commands in messages need in order to use this journal; empty for the default
    /// journal.
    journal: String,
    /// The options that commands in messages need in order to use this network namespace; empty for the
    /// caller's own.
    netns: String,
    /// Whether the terminal can show characters beyond ASCII.
    utf8: bool,
    /// Whether standard output still has a reader.
    open: Cell<bool>,
    /// Whether progress is printed as lines, because a program reads it.
    streams_progress: bool,
    /// The log: the messages and details that were kept, each with whether it is a detail, and the maximum
    /// number of entries.
    log: RefCell<Vec<(bool, String)>>,
    log_lines_max: Cell<usize>,
}

impl Console {
    /// Creates the console for a command line.
    #[must_use]
    pub fn new(globals: &Globals, session: &Session) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = |terminal: bool| match globals.color {
            Some(Color::Always) => true,
            Some(Color::Never) => false,
            Some(Color::Auto) => terminal,
            None => terminal && !no_color,
        };
        Self {
            output: globals.output,
            colour_out: colour(io::stdout().is_terminal()),
            colour_err: colour(io::stderr().is_terminal()),
            quiet: globals.quiet,
            verbose: globals.verbose,
            journal: session.state_dir_option(),
            netns: session.netns_option(),
            utf8: is_utf8(|name| std::env::var(name).ok()),
            open: Cell::new(true),
            streams_progress: false,
            log: RefCell::default(),
            log_lines_max: Cell::new(0),
        }
    }

    /// Replaces characters that the terminal cannot show in this locale.
    fn readable(&self, text: String) -> String {
        if self.utf8 { text } else { in_ascii(&text) }
    }

    /// Prints a command's data in the requested format.
    ///
    /// # Errors
    /// If writing to standard output fails, unless it has no reader.
    pub fn report(&self, report: &impl Report) -> Result<(), Fault> {
        let text = match self.output {
            Output::Table => self.readable(report.as_text(self.colour_out)),
            Output::Json => report.document(),
            Output::Jsonl => report.records(),
        };
        self.text(&text)
    }

    /// Prints the data of a command whose main purpose is not to print data. With `--quiet`, prints the data
    /// only in formats for programs.
    ///
    /// # Errors
    /// As for [`Console::report`].
    pub fn report_done(&self, report: &impl Report) -> Result<(), Fault> {
        if self.quiet && self.output == Output::Table { Ok(()) } else { self.report(report) }
    }

    /// Prints text unchanged.
    ///
    /// # Errors
    /// As for [`Console::report`].
    pub fn text(&self, text: &str) -> Result<(), Fault> {
        if !self.open.get() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.open.set(false);
                Ok(())
            }
            Err(error) => Err(Fault::file("standard output", error)),
        }
    }

    /// Whether standard output still has a reader. After `| head` has exited, it has none.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.open.get()
    }

    /// Whether the output format is one for programs.
    #[must_use]
    pub fn is_for_programs(&self) -> bool {
        self.output != Output::Table
    }

    /// Whether standard output may have colours.
    #[must_use]
    pub const fn colours(&self) -> bool {
        self.colour_out
    }

    /// Prints progress as lines from now on, for a program that forwards them.
    pub fn stream_progress(&mut self) {
        self.streams_progress = true;
    }

    /// Whether anyone sees progress: standard error is a terminal, or a program forwards the progress lines.
    #[must_use]
    pub fn has_watcher(&self) -> bool {
        self.streams_progress || !self.quiet && io::stderr().is_terminal()
    }

    /// Replaces the progress line; an empty text clears it. The text is cut to the width of the terminal,
    /// because a wrapped line could not be replaced.
    pub fn progress(&self, words: &str) {
        if self.streams_progress {
            if !words.is_empty() {
                talk(&printable(words));
            }
        } else if self.has_watcher() {
            let mut err = io::stderr().lock();
            let columns = rustix::termios::tcgetwinsize(&err).map_or(0, |size| usize::from(size.ws_col));
            let words = cut(words, columns.wrapping_sub(1));
            let _ = write!(err, "\r\x1b[K{words}").and_then(|()| err.flush());
        }
    }

    /// Keeps messages and details from now on, including those that are not printed, until there are this
    /// many.
    pub fn keep_log(&self, lines_max: usize) {
        self.log_lines_max.set(lines_max);
    }

    /// Returns the kept messages and details, each with whether it is a detail.
    #[must_use]
    pub fn log(&self) -> Vec<(bool, String)> {
        self.log.borrow().clone()
    }

    fn keep(&self, is_detail: bool, words: &str) {
        let mut log = self.log.borrow_mut();
        if log.len() < self.log_lines_max.get() {
            log.push((is_detail, words.to_owned()));
        }
    }

    /// Prints a message for the operator, unless `--quiet` is given.
    pub fn say(&self, words: &str) {
        self.keep(false, words);
        if !self.quiet {
            talk(&self.readable(printable(&self.typed(words))));
        }
    }

    /// Adds options to the commands in a message, so that they use the same journal and namespace as this
    /// command.
    fn typed(&self, words: &str) -> String {
        typed(words, &self.journal, &self.netns)
    }

    /// Prints a detail if `--verbose` is given.
    pub fn detail(&self, words: &str) {
        self.keep(true, words);
        if self.verbose > 0 {
            talk(&self.readable(printable(words)));
        }
    }

    /// Prints an error, even with `--quiet`.
    pub fn fault(&self, fault: &Fault) {
        talk(&self.readable(self.typed(&session::report::words(fault, self.colour_err))));
    }
}

impl Operator for Console {
    fn say(&self, sentence: &str) {
        Self::say(self, sentence);
    }

    fn detail(&self, sentence: &str) {
        Self::detail(self, sentence);
    }

    fn plan(&self, plan: &Plan) -> Result<(), Fault> {
        self.report_done(&PlanReport::of(plan))
    }

    fn event(&self, what: &'static str, object: Object, words: String) -> Result<(), Fault> {
        self.report_done(&EventReport::new(what, object, words))
    }
}

/// Whether the environment selects a locale with UTF-8. If no variable is set, UTF-8 is assumed, as systemd
/// does (`src/basic/locale-util.c` `is_locale_utf8()`).
fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable).find(|value| !value.is_empty());
    set.is_none_or(|locale| {
        let codeset = locale.split_once('.').map_or("", |(_, codeset)| codeset).to_ascii_lowercase();
        let codeset = codeset.split('@').next().unwrap_or_default();
        matches!(codeset, "utf-8" | "utf8")
            || (codeset.is_empty() && !matches!(locale.as_str(), "C" | "POSIX"))
    })
}

/// Replaces symbols by ASCII characters. Letters are kept, because they belong to names.
fn in_ascii(text: &str) -> String {
    let mut ascii = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '→' => ascii.push_str("->"),
            '←' => ascii.push_str("<-"),
            '↔' => ascii.push_str("<->"),
            '…' => ascii.push_str("..."),
            '·' | '•' => ascii.push('*'),
            '−' | '–' | '—' | '─' => ascii.push('-'),
            '│' => ascii.push('|'),
            '├' | '└' | '┌' | '┐' | '┘' | '┤' | '┬' | '┴' | '┼' => ascii.push('+'),
            '±' => ascii.push_str("+-"),
            '×' => ascii.push('x'),
            '≥' => ascii.push_str(">="),
            '≤' => ascii.push_str("<="),
            '≠' => ascii.push_str("!="),
            'µ' | 'μ' => ascii.push('u'),
            '‘' | '’' => ascii.push('\''),
            '“' | '”' => ascii.push('"'),
            c => ascii.push(c),
        }
    }
    ascii
}

/// Cuts a line to this number of columns.
fn cut(words: &str, columns: usize) -> String {
    if words.chars().count() <= columns {
        return words.to_owned();
    }
    words.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

/// If a command line error has lines that are too long, prints it in a shortened form. Returns `None` if it
/// printed nothing.
pub(crate) fn said_if_long(words: &str) -> Option<()> {
    let said = printable(words);
    (said.len() < words.len()).then(|| talk(said.trim_end()))
}

/// Prints to standard error. If standard error is closed, the message is lost.
fn talk(words: &str) {
    let _ = writeln!(io::stderr().lock(), "{words}");
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn without_utf8_arrows_and_signs_are_ascii_and_names_stay() {
        let locale = |name: &'static str, value: &'static str| {
            is_utf8(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert!(locale("LANG", "C.UTF-8") && locale("LC_ALL", "de_DE.utf8@euro") && is_utf8(|_| None));
        assert!(
            !locale("LC_ALL", "C") && !locale("LANG", "POSIX") && !locale("LC_CTYPE", "de_DE.ISO-8859-1")
        );
        assert_eq!(in_ascii("· eth0 → irq 5, −3…+4 µs"), "* eth0 -> irq 5, -3...+4 us");
        assert_eq!(in_ascii("café"), "café");
    }

    #[test]
    fn progress_takes_one_line_of_a_narrow_terminal() {
        assert_eq!([cut("9 of 180", 8), cut("9 of 180", 7), cut("", 0)], ["9 of 180", "9 of 1…", ""]);
    }
}
