//! Runs other programs, and prints every command before it runs.

use std::path::PathBuf;
use std::process::Command;

/// The start of a command that runs while the CPUs are otherwise idle. `/proc/stat` counts the command's time
/// as `nice`. Not `SCHED_IDLE`: other tasks may busy-wait for a lock or a list that such a task holds in the
/// kernel (for example dentries to free).
pub(crate) const IN_IDLE_TIME: [&str; 3] = ["nice", "-n", "19"];

/// The start of a command that gets a tenth of the time of a contended CPU, so that tasks that wait for its
/// answer get the answer in time.
pub(crate) const BESIDE_OTHERS: [&str; 3] = ["nice", "-n", "10"];

/// The result of a task: on success often nothing; on failure, a sentence about what failed.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask is a folder of the workspace").to_path_buf()
}

/// Returns a command of the cargo that runs this program.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Prints a command and runs it.
pub(crate) fn run(command: &mut Command) -> Result {
    show(command);
    let status = command.status().map_err(|error| format!("{}: {error}", name(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", name(command))) }
}

pub(crate) fn show(command: &Command) {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    eprintln!("+ {} {}", name(command), words.join(" "));
}

/// Returns the name of a command's program, without its path. If `setpriv` only starts another program,
/// returns the name of that one.
pub(crate) fn name(command: &Command) -> String {
    let mut words = std::iter::once(command.get_program()).chain(command.get_args());
    let begins = if command.get_program() == "setpriv" { words.position(|word| word == "--") } else { None };
    let program = begins.and_then(|_| words.next()).unwrap_or_else(|| command.get_program());
    let program = PathBuf::from(program);
    program.file_name().map_or_else(|| program.display().to_string(), |n| n.to_string_lossy().into_owned())
}

/// Returns a command that ends with this process: it receives SIGTERM, and may take a moment to clean up.
pub(crate) fn tied(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--", program]);
    command
}

/// Runs a command and returns its output. If the command fails, the error is its standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let said = command.output().map_err(|error| format!("{}: {error}", name(command)))?;
    if said.status.success() {
        return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&said.stderr);
    Err(format!("{} ended with {}: {}", name(command), said.status, complaint.trim()))
}

/// Whether a program is in `PATH`.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .any(|dir| dir.join(program).is_file())
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod names {
    use super::*;

    #[test]
    fn what_setpriv_starts_is_named_and_not_setpriv() {
        let mut tied = Command::new("setpriv");
        assert_eq!(name(&tied), "setpriv");
        tied.args(["--pdeathsig", "TERM", "--", "/bin/tar", "-x"]);
        assert_eq!(name(&tied), "tar");
        assert_eq!(name(Command::new("/usr/bin/make").arg("--")), "make");
    }
}
