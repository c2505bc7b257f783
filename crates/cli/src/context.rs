//! The context in which every command runs: the operator's options, the session, and the console.

use std::process::ExitCode;
use std::sync::Arc;

use model::{Policy, Setting};
use policy_file::Merged;
use session::cycle::Planned;
use session::recording::Recording;
use session::source::HostSource;
use session::{Exit, Fault, STATE_DIR, Session};

use crate::{Console, Globals};

/// The context in which a command runs.
#[derive(Debug)]
pub struct Context {
    /// The operator's global options.
    pub globals: Globals,
    /// The session that the global options select.
    pub session: Session,
    /// The console.
    pub console: Console,
}

impl Context {
    /// Creates the context for a command line.
    #[must_use]
    pub fn new(globals: Globals) -> Self {
        let session = session_of(&globals);
        let console = Console::new(&globals, &session);
        Self { globals, session, console }
    }

    /// Creates the context for a recorded host.
    ///
    /// # Errors
    /// If the global options select another host or other files.
    pub fn of_recording(globals: Globals, recording: Recording) -> Result<Self, Fault> {
        let given = [
            ("--netns", globals.netns.is_some()),
            ("--state-dir", globals.state_dir.as_os_str() != STATE_DIR),
            ("--policy-file", !globals.policy_file.is_empty()),
            ("--policy-dir", !globals.policy_dir.is_empty()),
            ("--recipe-dir", !globals.recipe_dir.is_empty()),
        ];
        if let Some((option, _)) = given.iter().find(|(_, is_given)| *is_given) {
            let words =
                format!("{option} and --from exclude each other: the recording has the recorded host's own");
            return Err(Fault::new(Exit::Usage, words));
        }
        let session = Session::of_recording(Arc::new(recording));
        let console = Console::new(&globals, &session);
        Ok(Self { globals, session, console })
    }

    /// Returns the program's exit code. If the command failed, prints the error first.
    #[must_use]
    pub fn end(&self, ended: Result<Exit, Fault>) -> ExitCode {
        let exit = ended.unwrap_or_else(|fault| {
            self.console.fault(&fault);
            fault.exit
        });
        exit.into()
    }

    /// Reads and merges the policy files.
    ///
    /// # Errors
    /// As for [`Session::policy`].
    pub fn policy(&self) -> Result<Merged, Fault> {
        self.session.policy(&self.console)
    }

    /// Reads the policy files, and adds the requests of applications in this namespace.
    ///
    /// # Errors
    /// As for [`Session::whole_policy`].
    pub fn whole_policy(&self, source: &dyn HostSource) -> Result<Policy, Fault> {
        self.session.whole_policy(source, &self.console)
    }

    /// Reports the requests and settings that a placement leaves out, and the parts of the host that could
    /// not be read.
    pub fn report(&self, planned: &Planned) {
        Session::report(planned, &self.console);
        let wanted: Vec<&Setting> = planned.plan.changes().map(|change| change.to()).collect();
        if let Some(evidence) = plan::evidence_on(&wanted, &self.session.evidence())
            && evidence.is_against()
        {
            self.console.say(&format!("Some of these settings were {}", evidence.sentence()));
        }
    }
}

/// Creates the session that the global options select.
fn session_of(globals: &Globals) -> Session {
    Session {
        netns: globals.netns.clone(),
        // Make the path absolute, because the guard process of a trial has another working directory, and
        // because printed paths may be used in any directory.
        state_dir: std::path::absolute(&globals.state_dir).unwrap_or_else(|_| globals.state_dir.clone()),
        policy_files: globals.policy_file.clone(),
        policy_dirs: globals.policy_dir.clone(),
        recipe_dirs: globals.recipe_dir.clone(),
        app_request_dir: globals.app_request_dir.clone(),
        command: command_line(),
        recording: None,
    }
}

/// Returns the command line as the operator typed it.
fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    std::iter::once("netpolicy".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
