//! A temporary directory for benches without a lab. (A lab's scratch directory is a detached mount without a path.)

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use session::Fault;

/// A directory that only its owner can access; removed on drop.
#[derive(Debug)]
pub struct OwnFiles {
    /// The path.
    pub directory: PathBuf,
}

impl OwnFiles {
    /// Creates a directory among the temporary files. An existing directory of that name belongs to another
    /// program and is refused.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new() -> Result<Self, Fault> {
        let directory = std::env::temp_dir().join(format!("netpolicy-bench-{}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => Ok(Self { directory }),
            Err(error) => Err(Fault::file(directory.display().to_string(), error)),
        }
    }

    /// Writes a file into it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn file(&self, name: &str, text: &str) -> Result<PathBuf, Fault> {
        let path = self.directory.join(name);
        std::fs::write(&path, text).map_err(|error| Fault::file(&path, error))?;
        Ok(path)
    }
}

impl Drop for OwnFiles {
    fn drop(&mut self) {
        // The directory may still contain the journal of changes that were rolled back.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
