//! What a transaction of a test needs: a directory for its journal, and what it says of itself.

use std::path::{Path, PathBuf};

use apply::{Asked, Moment};
use libtest_mimic::Failed;
use model::Nanoseconds;

/// A transaction as a test asks for it.
pub(crate) fn asked() -> Asked {
    let at = Moment { unix_micros: 1_795_233_900_000_000, since_boot: Nanoseconds(1) };
    let text = |text: &str| text.to_owned();
    Asked { at, command: text("test"), kernel_release: text("test"), netpolicy: text("test"), deadline: None }
}

/// A directory that is removed with this.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Result<Self, Failed> {
        let path = std::env::temp_dir().join(format!("netpolicy-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
