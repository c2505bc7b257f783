//! The results of searches for services that miss their goals, and the standing proofs, stored next to the
//! journal: the daemon writes both, and all commands use the results for planning.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use model::{Policy, ProcessId, Proofs, Searches};
use serde::de::DeserializeOwned;

use crate::replaced_file::{Durability, replace_file};
use crate::session::Session;

/// Maximum size of such a file.
const FILE_BYTES_MAX: u64 = 8 << 20;

impl Session {
    /// The path of the file.
    pub fn searches_file(&self) -> PathBuf {
        self.state_dir.join("searches.json")
    }

    /// The results; empty if there is no such file.
    ///
    /// # Errors
    /// If the file cannot be read, or is not in the daemon's format.
    pub fn searches(&self) -> std::io::Result<Searches> {
        stored(&self.searches_file())
    }

    /// Stores the results atomically, so that a kill leaves either the old or the new file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_searches(&self, searches: &Searches) -> std::io::Result<()> {
        replace_file(&self.searches_file(), 0o644, &serde_json::to_vec(searches)?, Durability::Synced)
    }

    /// The path of the file with the standing proofs.
    pub fn proofs_file(&self) -> PathBuf {
        self.state_dir.join("proofs.json")
    }

    /// The standing proofs; empty if there is no such file.
    ///
    /// # Errors
    /// If the file cannot be read, or is not in the daemon's format.
    pub fn proofs(&self) -> std::io::Result<Proofs> {
        stored(&self.proofs_file())
    }

    /// Stores the standing proofs atomically.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_proofs(&self, proofs: &Proofs) -> std::io::Result<()> {
        replace_file(&self.proofs_file(), 0o644, &serde_json::to_vec(proofs)?, Durability::Synced)
    }

    /// Adds the results for its services to a policy. If they cannot be read, each service gets its policy's
    /// recipe.
    pub(crate) fn with_found(&self, mut policy: Policy) -> Policy {
        if policy.intents.iter().all(|intent| intent.goal.on_missed.is_report()) {
            return policy;
        }
        let boot = linux::machine::boot_id().unwrap_or_default();
        match self.searches() {
            Ok(searches) if searches.boot == boot.trim() => searches.give(&mut policy, is_there),
            Ok(_) | Err(_) => {}
        }
        policy
    }
}

/// Reads one of the daemon's files; the default value if there is none.
fn stored<T: Default + DeserializeOwned>(path: &Path) -> std::io::Result<T> {
    let mut text = Vec::new();
    match fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(T::default()),
        file => file?.take(FILE_BYTES_MAX).read_to_end(&mut text)?,
    };
    serde_json::from_slice(&text).map_err(std::io::Error::other)
}

/// Whether a process of this boot is still running.
pub fn is_there(process: &ProcessId) -> bool {
    linux::process::identify(process.pid).is_ok_and(|now| now.started == process.started)
}
