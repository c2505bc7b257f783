//! A directory for the files of one bench that needs no rights, of `tc bench`, or of a server that asks for its path: a lab's is
//! a mount of its own that has none.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use session::Fault;

/// Its owner's alone, and gone with this.
#[derive(Debug)]
pub(crate) struct OwnFiles {
    /// Where it is.
    pub(crate) directory: PathBuf,
}

impl OwnFiles {
    /// Creates it in the directory for temporary files. One that exists already is another program's, and refused.
    pub(crate) fn new() -> Result<Self, Fault> {
        let directory = std::env::temp_dir().join(format!("netpolicy-bench-{}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => Ok(Self { directory }),
            Err(error) => Err(Fault::file(directory.display().to_string(), error)),
        }
    }

    /// Writes a file into it.
    pub(crate) fn file(&self, name: &str, text: &str) -> Result<PathBuf, Fault> {
        let path = self.directory.join(name);
        std::fs::write(&path, text).map_err(|error| Fault::file(&path, error))?;
        Ok(path)
    }
}

impl Drop for OwnFiles {
    fn drop(&mut self) {
        // What is left of it is a journal of what was put back.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
