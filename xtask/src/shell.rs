//! Runs other programs, and prints every command before it runs.

use std::path::PathBuf;
use std::process::Command;

/// Starts a command that runs while the CPUs are otherwise idle. `/proc/stat` accounts its time as `nice`.
/// Not `SCHED_IDLE`: other tasks may busy-wait for a lock or a list that such a task holds in the kernel (for
/// example dentries to free).
pub(crate) const IN_IDLE_TIME: [&str; 3] = ["nice", "-n", "19"];

/// Starts a command with a tenth of the time of a contended CPU, so that tasks that wait for its answer get
/// it in time.
pub(crate) const BESIDE_OTHERS: [&str; 3] = ["nice", "-n", "10"];

/// The result of a task: nothing, or a sentence about what failed.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask is a folder of the workspace").to_path_buf()
}

/// The cargo that runs this program.
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

/// A command's program, without its path, and without `setpriv` if that only starts it.
pub(crate) fn name(command: &Command) -> String {
    let mut words = std::iter::once(command.get_program()).chain(command.get_args());
    let begins = if command.get_program() == "setpriv" { words.position(|word| word == "--") } else { None };
    let program = begins.and_then(|_| words.next()).unwrap_or_else(|| command.get_program());
    let program = PathBuf::from(program);
    program.file_name().map_or_else(|| program.display().to_string(), |n| n.to_string_lossy().into_owned())
}

/// A command that ends with this process. It receives SIGTERM, and may take a moment to clean up.
pub(crate) fn tied(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--", program]);
    command
}

/// Runs a command and returns its output; its standard error becomes the error.
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
