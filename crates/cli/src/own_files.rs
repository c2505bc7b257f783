//! A temporary directory for benchmarks that run without a lab. (A lab's directory is a detached mount, which
//! has no path.)

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use session::Fault;

/// A directory that only its owner can access. Dropping this value deletes the directory.
#[derive(Debug)]
pub struct OwnFiles {
    /// The path.
    pub directory: PathBuf,
}

impl OwnFiles {
    /// Creates the directory. If a directory with the same name exists, it belongs to another program and is
    /// refused.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn new() -> Result<Self, Fault> {
        let directory = std::env::temp_dir().join(format!("netpolicy-bench-{}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => Ok(Self { directory }),
            Err(error) => Err(Fault::file(directory.display().to_string(), error)),
        }
    }

    /// Writes a file to the directory. Returns its path.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn file(&self, name: &str, text: &str) -> Result<PathBuf, Fault> {
        let path = self.directory.join(name);
        std::fs::write(&path, text).map_err(|error| Fault::file(&path, error))?;
        Ok(path)
    }
}

impl Drop for OwnFiles {
    fn drop(&mut self) {
        // The directory is not needed any more: the changes in any journal in it have been rolled back.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
