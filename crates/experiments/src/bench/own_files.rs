//! A directory for the files of one bench that needs no rights, or of a server that asks for its path: a lab's is a mount of its
//! own that has none.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use session::Fault;

/// Its owner's alone, and gone with this.
#[derive(Debug)]
pub(super) struct OwnFiles {
    /// Where it is.
    pub(super) directory: PathBuf,
}

impl OwnFiles {
    /// Creates it in the directory for temporary files. One that exists already is another program's, and refused.
    pub(super) fn new() -> Result<Self, Fault> {
        let directory = std::env::temp_dir().join(format!("netpolicy-bench-{}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => Ok(Self { directory }),
            Err(error) => Err(Fault::file(directory.display().to_string(), error)),
        }
    }
}

impl Drop for OwnFiles {
    fn drop(&mut self) {
        // What is left of it is a journal of what was put back.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
