//! What was tried and found for services whose goal is missed, beside the journal: the daemon writes it, and all commands plan with what was
//! found.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use model::{Policy, ProcessId, Searches};

use crate::replaced_file::{Durability, replace_file};
use crate::session::Session;

/// The longest such file that is read.
const FILE_BYTES_MAX: u64 = 8 << 20;

impl Session {
    /// Where it is kept.
    pub fn searches_file(&self) -> PathBuf {
        self.state_dir.join("searches.json")
    }

    /// What was tried and found; nothing, if there is no such file.
    ///
    /// # Errors
    /// If it cannot be read, or is not what a daemon wrote.
    pub fn searches(&self) -> std::io::Result<Searches> {
        let mut text = Vec::new();
        match fs::File::open(self.searches_file()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Searches::default()),
            file => file?.take(FILE_BYTES_MAX).read_to_end(&mut text)?,
        };
        serde_json::from_slice(&text).map_err(std::io::Error::other)
    }

    /// Keeps it: written beside and renamed, so that a kill leaves the one or the other.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_searches(&self, searches: &Searches) -> std::io::Result<()> {
        replace_file(&self.searches_file(), 0o644, &serde_json::to_vec(searches)?, Durability::Synced)
    }

    /// A policy with what was found for its services. What cannot be read gives nothing: then each has what its policy comes to.
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

/// Whether a process of this boot still runs.
pub fn is_there(process: &ProcessId) -> bool {
    linux::process::identify(process.pid).is_ok_and(|now| now.started == process.started)
}
