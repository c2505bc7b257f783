//! Where words go: data on standard output, talk on standard error, which systemd keeps in its journal.

use std::io::{self, Write};

use model::{Object, Plan};
use page::Printable;
use session::report::{EventReport, PlanReport, printable, typed, words};
use session::{Fault, Operator};

use crate::arguments::{Arguments, Output};

/// The daemon's log.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// How data is printed.
    pub output: Output,
    /// Nothing is said but data and errors.
    pub quiet: bool,
    /// Details are said, too.
    pub verbose: bool,
    /// What commands need that work on this journal: empty for the usual one.
    journal: String,
    /// What commands need that work in this network namespace: empty for the process's own.
    netns: String,
}

impl Log {
    /// The log that the command line asks for.
    pub fn of(arguments: &Arguments) -> Self {
        let Arguments { session, output, quiet, verbose, .. } = arguments;
        let (journal, netns) = (session.state_dir_option(), session.netns_option());
        Self { output: *output, quiet: *quiet, verbose: *verbose, journal, netns }
    }

    /// The log of the attach service, which prints no data.
    pub fn quiet(quiet: bool) -> Self {
        Self { quiet, ..Self::default() }
    }

    /// Prints text as it is.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn print(text: &str) -> Result<(), Fault> {
        let mut out = io::stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        match written {
            // A reader that has had enough is no failure.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(|error| Fault::file("standard output", error)),
        }
    }

    fn report(&self, report: &dyn Printable) -> Result<(), Fault> {
        Self::print(&match self.output {
            Output::Table if self.quiet => return Ok(()),
            Output::Table => report.as_text(false),
            Output::Json => report.as_document(),
            Output::Jsonl => report.as_records(),
        })
    }

    /// Prints an error, with `--quiet` too.
    pub fn fault(&self, fault: &Fault) {
        talk(&typed(&words(fault, false), &self.journal, &self.netns));
    }
}

impl Operator for Log {
    fn say(&self, sentence: &str) {
        if !self.quiet {
            talk(&printable(&typed(sentence, &self.journal, &self.netns)));
        }
    }

    fn detail(&self, sentence: &str) {
        if self.verbose {
            talk(&printable(sentence));
        }
    }

    fn plan(&self, plan: &Plan) -> Result<(), Fault> {
        self.report(&PlanReport::of(plan))
    }

    fn event(&self, what: &'static str, object: Object, words: String) -> Result<(), Fault> {
        self.report(&EventReport::new(what, object, words))
    }
}

/// Standard error may be closed; the message is lost then.
fn talk(words: &str) {
    let _ = writeln!(io::stderr().lock(), "{words}");
}
