//! The separate programs that implement some of netpolicy's commands. netpolicy replaces itself with such a
//! program by `exec`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args as _;
use session::{Exit, Fault};

use crate::Globals;

/// A program that implements some of netpolicy's commands. The program accepts netpolicy's command line
/// unchanged.
#[derive(Debug, PartialEq, Eq)]
pub struct Tool {
    /// The file name.
    pub program: &'static str,
    /// The commands.
    pub commands: &'static [&'static str],
}

/// The programs.
pub const TOOLS: [Tool; 2] = [
    Tool { program: "netpolicy-tc", commands: &["tc"] },
    Tool { program: "netpolicy-lab", commands: &["bench", "sim", "lab"] },
];

/// The package that contains the programs.
const PACKAGE: &str = "netpolicy-tools";

/// The directories to search for the programs, relative to the directory of the running program: the same
/// directory, as built by cargo, and the directory in which the package installs them, relative to
/// `/usr/sbin`.
const DIRECTORIES: [&str; 2] = [".", "../libexec/netpolicy"];

impl Tool {
    /// Returns the program that implements a command.
    #[must_use]
    pub fn with_command(word: &str) -> Option<&'static Self> {
        TOOLS.iter().find(|tool| tool.commands.contains(&word))
    }

    /// Returns the program for the command line of this process, or for the command line that a shell is
    /// completing.
    #[must_use]
    pub fn of_this_process() -> Option<&'static Self> {
        let words: Vec<OsString> = std::env::args_os().collect();
        // For a completion, `clap_complete` passes the words of the command line after `--`.
        if std::env::var_os("COMPLETE").is_some_and(|shell| !shell.is_empty() && shell != "0") {
            let before = words.iter().position(|word| word == "--")?;
            return Self::of_line(&words[before + 1..]).filter(|tool| tool.path().is_some());
        }
        Self::of_line(&words)
    }

    /// Returns the program for a command line, whose first word is the name of the started program.
    fn of_line(words: &[OsString]) -> Option<&'static Self> {
        let at = command_at(words)?;
        let word = words.get(at)?.to_str()?;
        let asked = if word == "help" { words.get(at + 1)?.to_str()? } else { word };
        Self::with_command(asked)
    }

    /// Returns the paths at which the program may be installed, in order of preference.
    fn places(&self) -> Vec<PathBuf> {
        let own = std::env::current_exe().ok();
        let own = own.as_deref().and_then(std::path::Path::parent);
        own.into_iter().flat_map(|own| DIRECTORIES.map(|below| own.join(below).join(self.program))).collect()
    }

    /// Returns the path at which the program is installed, or `None` if it is not installed.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.places().into_iter().find(|path| path.is_file())
    }

    /// Replaces this process with the program that implements a command.
    ///
    /// # Errors
    /// If the process cannot be replaced; otherwise, this function does not return.
    pub fn exec_command(word: &str) -> Result<Exit, Fault> {
        let missing = || Fault::failed(format!("no program implements the command {word}"));
        Err(Self::with_command(word).map_or_else(missing, Self::exec))
    }

    /// Replaces this process with the program, with the same command line. Returns only if this fails.
    #[must_use]
    pub fn exec(&self) -> Fault {
        match self.path() {
            Some(path) => Fault::file(&path, self.command(path.clone()).exec()),
            None => self.missing(),
        }
    }

    /// Runs the program with the same command line, if it is installed. Used for commands that concern all
    /// programs.
    ///
    /// # Errors
    /// If the program does not start, or fails.
    pub fn run(&self) -> Result<(), Fault> {
        let Some(path) = self.path() else { return Ok(()) };
        let status = self.command(path.clone()).status().map_err(|error| Fault::file(&path, error))?;
        if status.success() { Ok(()) } else { Err(Fault::failed(format!("{}: {status}", path.display()))) }
    }

    fn command(&self, path: PathBuf) -> Command {
        let mut words = std::env::args_os();
        let mut command = Command::new(path);
        command.arg0(words.next().unwrap_or_else(|| "netpolicy".into())).args(words);
        command
    }

    fn missing(&self) -> Fault {
        let commands: Vec<String> = self.commands.iter().map(|word| format!("`netpolicy {word}`")).collect();
        let places: Vec<String> = self.places().iter().map(|path| path.display().to_string()).collect();
        let verb = if commands.len() == 1 { "is" } else { "are" };
        let words = format!(
            "{} {verb} in the program {}, which is not installed: there is no {}",
            commands.join(", "),
            self.program,
            places.join(", and no ")
        );
        let hint =
            format!("install the package {PACKAGE}; in a source tree: cargo build builds all programs");
        Fault::new(Exit::Unsupported, words).hint(hint)
    }
}

/// Returns the position of the command in a command line: the first word that is neither a global option nor
/// the value of one. `None` if another option comes first; the parser then reports that option.
fn command_at(words: &[OsString]) -> Option<usize> {
    let globals = Globals::augment_args(clap::Command::new("netpolicy"));
    let takes_value = |arg: &clap::Arg| arg.get_action().takes_values();
    let mut at = 1;
    loop {
        let word = words.get(at)?.to_str()?;
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let arg = globals.get_arguments().find(|arg| arg.get_long() == Some(name))?;
            at += usize::from(takes_value(arg) && value.is_none());
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            for (place, letter) in letters.char_indices() {
                let arg = globals.get_arguments().find(|arg| arg.get_short() == Some(letter))?;
                if takes_value(arg) {
                    // The rest of this word is the option's value; if nothing is left, the value is the next
                    // word.
                    at += usize::from(place + letter.len_utf8() == letters.len());
                    break;
                }
            }
        } else {
            return Some(at);
        }
        at += 1;
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn tool(line: &str) -> Option<&'static str> {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        Tool::of_line(&words).map(|tool| tool.program)
    }

    #[test]
    fn a_line_is_for_the_program_that_has_its_command_wherever_global_options_are() {
        for line in [
            "netpolicy tc load x",
            "netpolicy -o json tc load x",
            "netpolicy -ojson --netns=pid:1 -qv tc",
            "netpolicy -qo json tc --help",
            "netpolicy --state-dir tc --policy-file bench tc dump",
            "netpolicy help tc load",
        ] {
            assert_eq!(tool(line), Some("netpolicy-tc"), "{line}");
        }
        for line in ["netpolicy bench live", "netpolicy sim", "netpolicy lab -- netpolicy tc", "x help lab"] {
            assert_eq!(tool(line), Some("netpolicy-lab"), "{line}");
        }
    }

    #[test]
    fn other_lines_are_for_netpolicy_itself() {
        for line in [
            "netpolicy",
            "netpolicy show",
            "netpolicy tcx",
            "netpolicy run -- netpolicy tc",
            "netpolicy --netns tc",
            "netpolicy --bogus tc load",
            "netpolicy -x tc",
            "netpolicy -- tc load",
            "netpolicy --help tc",
            "netpolicy help",
            "netpolicy help show tc",
        ] {
            assert_eq!(tool(line), None, "{line}");
        }
    }

    #[test]
    fn each_command_of_a_tool_is_listed_in_the_help() {
        for word in TOOLS.iter().flat_map(|tool| tool.commands) {
            assert!(crate::GROUPS.iter().any(|(_, words)| words.contains(word)), "{word}");
        }
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let missing = Tool { program: "netpolicy-none", commands: &["one", "two"] };
        let fault = missing.exec();
        assert_eq!(fault.exit, Exit::Unsupported);
        let words = fault.cause.to_string();
        assert!(words.contains("`netpolicy two` are in the program netpolicy-none"), "{words}");
        assert!(words.contains("/libexec/netpolicy/netpolicy-none"), "{words}");
        assert!(fault.hint.is_some_and(|hint| hint.contains("netpolicy-tools")));
        assert!(
            missing.run().is_ok(),
            "the page of a program that is not installed is omitted without an error"
        );
    }
}
