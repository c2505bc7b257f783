//! A directory of a test's own.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Failed;
use tempfile::TempDir;

/// A directory that every user can enter, removed with all that is in it.
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new(test: &str) -> Result<Self, Failed> {
        let directory = TempDir::with_prefix(format!("netpolicy-{test}-"))?;
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?; // whatever the umask is
        Ok(Self(directory))
    }

    pub(crate) fn directory(&self) -> &Path {
        self.0.path()
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    /// Compiles `programs/NAME.c` into it.
    pub(crate) fn compile(&self, name: &str, options: &[&str]) -> Result<PathBuf, Failed> {
        let source = format!("{}/tests/root/programs/{name}.c", env!("CARGO_MANIFEST_DIR"));
        let program = self.path(name);
        let status = Command::new("cc")
            .args(["-O1", "-Wall", "-o"])
            .arg(&program)
            .arg(source)
            .args(options)
            .status()?;
        if status.success() { Ok(program) } else { Err(format!("cc {name}.c: {status}").into()) }
    }
}
