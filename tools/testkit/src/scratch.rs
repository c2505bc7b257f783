//! A directory for one test.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Failed;
use tempfile::TempDir;

/// Removes the directories that killed tests left behind: those named after a process that no longer runs.
fn remove_abandoned() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((rest, _)) = name.strip_prefix("netpolicy-").and_then(|rest| rest.rsplit_once('-')) else {
            continue;
        };
        let pid = rest.rsplit_once('-').and_then(|(_, pid)| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Ignore errors: another test may remove the directory at the same time.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A directory that every user can enter. Dropping it removes it with its contents.
pub struct Scratch(TempDir);

impl Scratch {
    pub fn new(test: &str) -> Result<Self, Failed> {
        remove_abandoned();
        let directory = TempDir::with_prefix(format!("netpolicy-{test}-{}-", std::process::id()))?;
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?; // independent of the umask
        Ok(Self(directory))
    }

    pub fn directory(&self) -> &Path {
        self.0.path()
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    /// Compiles `programs/NAME.c` of the tests of `crates/linux` into the directory.
    pub fn compile(&self, name: &str, options: &[&str]) -> Result<PathBuf, Failed> {
        let source =
            format!("{}/../../crates/linux/tests/root/programs/{name}.c", env!("CARGO_MANIFEST_DIR"));
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
