//! The guest cache. It is outside the source tree, has only complete entries, and allows one writer at a
//! time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};

use crate::files::{self, About as _};
use crate::shell::{self, Result};

/// `${XDG_CACHE_HOME:-~/.cache}/netpolicy/guest`. A complete entry has its final name and a [`SUMS`] file;
/// incomplete ones are in `making/`, and are deleted by the next writer.
pub(crate) struct Cache {
    root: PathBuf,
}

/// The checksums of a complete entry's files, written last.
const SUMS: &str = "SHA256SUMS";

/// With less free space than this, in MiB, a full disk is reported as the cause of a failure.
const FULL: u64 = 64;

/// A locked file that allows only one writer at a time, until this is dropped. The kernel releases the lock
/// when this process exits.
pub(crate) type Lock = File;

impl Cache {
    /// Opens the user's cache, and creates it if it is missing.
    pub(crate) fn open() -> Result<Self> {
        let base = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
            (Some(cache), _) if Path::new(&cache).is_absolute() => PathBuf::from(cache),
            (_, Some(home)) => PathBuf::from(home).join(".cache"),
            _ => {
                return Err(
                    "neither XDG_CACHE_HOME nor HOME is set: there is no directory for guests".to_owned()
                );
            }
        };
        Self::in_directory(base.join("netpolicy/guest"))
    }

    pub(crate) fn in_directory(root: PathBuf) -> Result<Self> {
        files::make_directory(&root)?;
        Ok(Self { root })
    }

    /// A path in the cache.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Takes the lock for building `what`; waits while another process holds it.
    pub(crate) fn lock(&self, what: &str) -> Result<Lock> {
        let path = self.at(&format!("{what}.lock"));
        let file = File::create(&path).about(&path)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            eprintln!("guest: another process is building {what} in {}: waiting for it", self.root.display());
            flock(&file, FlockOperation::LockExclusive).about(&path)?;
        }
        Ok(file)
    }

    /// Adds a note to an error if the disk is full: the messages of compilers and linkers about a full disk
    /// scroll away.
    pub(crate) fn explained(&self, failed: &str) -> String {
        match self.free_mebibytes() {
            Some(free) => with_space_left(failed, &self.root, free),
            None => failed.to_owned(),
        }
    }

    fn free_mebibytes(&self) -> Option<u64> {
        let mut df = Command::new("df");
        let said =
            shell::output(df.args(["--output=avail", "--block-size=1M", "--"]).arg(&self.root)).ok()?;
        said.lines().last()?.trim().parse().ok()
    }

    /// Creates an empty directory in which to make the entry `name`, and removes what an interrupted run left
    /// there. The caller must hold the lock.
    pub(crate) fn begin(&self, name: &str) -> Result<PathBuf> {
        let making = self.at("making").join(name);
        files::remove(&making)?;
        files::make_directory(&making)?;
        Ok(making)
    }

    /// Completes an entry: writes the checksums of `files`, and moves the entry to its final name.
    pub(crate) fn finish(&self, making: &Path, name: &str, files: &[&str]) -> Result<PathBuf> {
        let sums = shell::output(Command::new("sha256sum").current_dir(making).arg("--").args(files))?;
        files::write(&making.join(SUMS), &sums)?;
        let done = self.at(name);
        files::remove(&done)?;
        files::rename(making, &done)?;
        Ok(done)
    }

    /// Returns an entry if it exists, is complete, and its checksums match. A damaged entry is reported and
    /// treated as missing.
    pub(crate) fn finished(&self, name: &str) -> Option<PathBuf> {
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
            eprintln!("guest: {} is damaged: building it again", done.display());
            None
        }
    }

    /// Records a complete entry as the newest of its kind, and returns its path.
    pub(crate) fn note(&self, kind: &str, name: &str) -> Result<PathBuf> {
        files::write(&self.at(kind), name)?;
        self.finished(name).ok_or_else(|| format!("{name} was built, but is incomplete"))
    }

    /// The newest entry of a kind, if it is complete.
    pub(crate) fn latest(&self, kind: &str) -> Option<PathBuf> {
        self.finished(std::fs::read_to_string(self.at(kind)).ok()?.trim())
    }

    /// Refuses to start something that needs more disk space, in MiB, than is free.
    pub(crate) fn need_space(&self, mebibytes: u64, what: &str) -> Result {
        match self.free_mebibytes() {
            Some(free) if free < mebibytes => Err(format!(
                "{what} needs {mebibytes} MiB in {}, but only {free} MiB are free: make room, or set XDG_CACHE_HOME",
                self.root.display()
            )),
            _ => Ok(()),
        }
    }
}

fn with_space_left(failed: &str, root: &Path, free: u64) -> String {
    if free >= FULL {
        return failed.to_owned();
    }
    format!("{failed}: {} has {free} MiB left: make room, or set XDG_CACHE_HOME", root.display())
}

/// Returns the first 16 hexadecimal digits of the SHA-256 of these texts.
pub(crate) fn digest(texts: &[&str]) -> Result<String> {
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
    said.get(..16).map(str::to_owned).ok_or_else(|| "sha256sum printed nothing".to_owned())
}

#[cfg(test)]
mod trimming {
    use std::time::{Duration, Instant};

    use super::*;

    /// A separate cache for a test.
    struct Own(Cache);

    impl Own {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("netpolicy-cache-{name}-{}", std::process::id()));
            Self(Cache::in_directory(root).expect("a directory"))
        }
    }

    impl Drop for Own {
        fn drop(&mut self) {
            files::remove(&self.0.root).expect("it can be removed");
        }
    }

    #[test]
    fn what_was_not_finished_is_not_taken_for_a_guest_and_is_thrown_away() {
        let cache = Own::new("halves");
        let half = cache.0.begin("kernel").expect("a place");
        files::write(&half.join("vmlinuz"), "half").expect("written");
        assert!(cache.0.finished("making/kernel").is_none(), "it has no checksums");
        // The previous run was killed, so this one starts over.
        let making = cache.0.begin("kernel").expect("a place");
        assert!(!making.join("vmlinuz").exists());
        files::write(&making.join("vmlinuz"), "whole").expect("written");
        cache.0.finish(&making, "kernel/1", &["vmlinuz"]).expect("finished");
        let done = cache.0.finished("kernel/1").expect("it is whole");
        files::write(&done.join("vmlinuz"), "whol").expect("written");
        assert!(cache.0.finished("kernel/1").is_none(), "a damaged file is noticed");
    }

    #[test]
    fn two_makers_of_one_thing_come_one_after_the_other() {
        let cache = Own::new("makers");
        let first = cache.0.lock("uml").expect("no process holds the lock");
        let held = Duration::from_millis(300);
        std::thread::scope(|scope| {
            let begun = Instant::now();
            let second = scope.spawn(|| cache.0.lock("uml").map(drop));
            std::thread::sleep(held);
            drop(first);
            second.join().expect("no panic").expect("its turn comes");
            assert!(begun.elapsed() >= held);
        });
    }

    #[test]
    fn a_full_disk_is_named_and_another_reason_is_left_alone() {
        let failed = "make ended with exit status: 2";
        let said = with_space_left(failed, Path::new("/cache"), 3);
        assert_eq!(said, format!("{failed}: /cache has 3 MiB left: make room, or set XDG_CACHE_HOME"));
        assert_eq!(with_space_left(failed, Path::new("/cache"), FULL), failed);
    }
}
