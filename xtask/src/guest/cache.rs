//! Where guests are kept: outside the tree, complete or not at all, and one maker at a time.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::shell::{self, Result};

/// `${XDG_CACHE_HOME:-~/.cache}/netpolicy/guest`. A finished thing has its final name and a [`SUMS`] file; whatever is
/// being made is in `making/`, and is thrown away by the next maker.
pub(super) struct Cache {
    root: PathBuf,
}

/// The checksums of a finished thing's files, written last.
const SUMS: &str = "SHA256SUMS";

/// One maker at a time, until dropped. Held by a `flock` process that ends when we do, however we end.
pub(super) struct Lock {
    holder: Child,
}

impl Cache {
    /// The cache of whoever runs this, made if need be.
    pub(super) fn open() -> Result<Self> {
        let base = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
            (Some(cache), _) if Path::new(&cache).is_absolute() => PathBuf::from(cache),
            (_, Some(home)) => PathBuf::from(home).join(".cache"),
            _ => return Err("neither XDG_CACHE_HOME nor HOME is set: nowhere to keep a guest".to_owned()),
        };
        let root = base.join("netpolicy/guest");
        make_directory(&root)?;
        Ok(Self { root })
    }

    /// A place in the cache.
    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Waits until nobody else makes `what`.
    pub(super) fn lock(&self, what: &str) -> Result<Lock> {
        need_program("flock", "util-linux")?;
        let file = self.at(&format!("{what}.lock"));
        let mut holder = Command::new("flock")
            .arg(&file)
            .args(["sh", "-c", "echo held; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("flock {}: {error}", file.display()))?;
        let mut said = String::new();
        let heard = holder.stdout.take().map(|out| BufReader::new(out).read_line(&mut said));
        match heard {
            Some(Ok(_)) if said.trim() == "held" => Ok(Lock { holder }),
            _ => {
                let _ = holder.kill();
                let _ = holder.wait();
                Err(format!("{} cannot be locked", file.display()))
            }
        }
    }

    /// An empty place to make `name` in, free of what an interrupted maker left. The lock must be held.
    pub(super) fn begin(&self, name: &str) -> Result<PathBuf> {
        let making = self.at("making").join(name);
        remove(&making)?;
        make_directory(&making)?;
        Ok(making)
    }

    /// Gives what was made its checksums (of `files`) and, in one step, its final name.
    pub(super) fn finish(&self, making: &Path, name: &str, files: &[&str]) -> Result<PathBuf> {
        let sums = output(Command::new("sha256sum").current_dir(making).arg("--").args(files))?;
        write(&making.join(SUMS), &sums)?;
        let done = self.at(name);
        remove(&done)?;
        if let Some(above) = done.parent() {
            make_directory(above)?;
        }
        std::fs::rename(making, &done)
            .map_err(|error| format!("{} to {}: {error}", making.display(), done.display()))?;
        Ok(done)
    }

    /// A finished thing, if it is there and its checksums are right. A damaged one is named and taken for missing.
    pub(super) fn finished(&self, name: &str) -> Option<PathBuf> {
        let done = self.at(name);
        if !done.join(SUMS).is_file() {
            return None;
        }
        let checked = Command::new("sha256sum")
            .current_dir(&done)
            .args(["--check", "--quiet", "--strict", SUMS])
            .stdout(Stdio::null())
            .status();
        if checked.is_ok_and(|status| status.success()) {
            Some(done)
        } else {
            eprintln!("guest: {} is damaged: it is made again", done.display());
            None
        }
    }

    /// Refuses to begin what needs more mebibytes than the disk has.
    pub(super) fn need_space(&self, mebibytes: u64, what: &str) -> Result {
        let said =
            output(Command::new("df").args(["--output=avail", "--block-size=1M", "--"]).arg(&self.root))?;
        let free: u64 = said.lines().last().and_then(|line| line.trim().parse().ok()).unwrap_or(u64::MAX);
        if free < mebibytes {
            return Err(format!(
                "{what} needs {mebibytes} MiB in {}, where {free} MiB are free: make room, or set XDG_CACHE_HOME",
                self.root.display()
            ));
        }
        Ok(())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// The first 16 hexadecimal digits of the SHA-256 of these texts.
pub(super) fn digest(texts: &[&str]) -> Result<String> {
    use std::io::Write as _;
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("sha256sum: {error}"))?;
    if let Some(mut input) = child.stdin.take() {
        for text in texts {
            let framed = format!("{}\n{text}\n", text.len());
            input.write_all(framed.as_bytes()).map_err(|error| format!("sha256sum: {error}"))?;
        }
    }
    let said = child.wait_with_output().map_err(|error| format!("sha256sum: {error}"))?;
    let said = String::from_utf8_lossy(&said.stdout);
    said.get(..16).map(str::to_owned).ok_or_else(|| "sha256sum said nothing".to_owned())
}

/// Refuses with the package that brings a missing program.
pub(super) fn need_program(program: &str, package: &str) -> Result {
    if shell::has(program) {
        return Ok(());
    }
    Err(format!("a guest needs `{program}` (package {package}): `cargo xtask setup` installs it"))
}

/// Runs a command and returns what it printed; what it complained of is the error.
pub(super) fn output(command: &mut Command) -> Result<String> {
    let said = command.output().map_err(|error| format!("{}: {error}", shell::name(command)))?;
    if said.status.success() {
        return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&said.stderr);
    Err(format!("{} ended with {}: {}", shell::name(command), said.status, complaint.trim()))
}

/// Writes a file, with its name in the error.
pub(super) fn write(path: &Path, text: &str) -> Result {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads a file, with its name in the error.
pub(super) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Makes a directory and those above it.
pub(super) fn make_directory(path: &Path) -> Result {
    std::fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Removes a file that may not be there.
pub(super) fn remove_file(path: &Path) -> Result {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Removes a directory that may not be there.
pub(super) fn remove(path: &Path) -> Result {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}
