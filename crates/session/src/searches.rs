//! Stores the results of searches for services that miss their goals, and those of measurements of services
//! with a `holdback`, next to the journal. The daemon writes these files, and all commands read them for
//! planning.

use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use model::{Intent, Policy, ProcessId, Proof, Proofs, Searches};
use serde::de::DeserializeOwned;

use crate::exit::Exit;
use crate::fault::Fault;
use crate::replaced_file::{Durability, replace_file};
use crate::session::Session;

/// The maximum size of such a file.
const FILE_BYTES_MAX: u64 = 8 << 20;

impl Session {
    /// Returns the path of the file with the results of searches.
    pub fn searches_file(&self) -> PathBuf {
        self.state_dir.join("searches.json")
    }

    /// Returns the recorded results of earlier searches for settings. Without the file of searches, there are
    /// none.
    ///
    /// # Errors
    /// If the file cannot be read, or is not in the daemon's format.
    pub fn searches(&self) -> std::io::Result<Searches> {
        stored(&self.searches_file())
    }

    /// Stores the results atomically: if the process is killed, either the old or the new file exists.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep_searches(&self, searches: &Searches) -> std::io::Result<()> {
        replace_file(&self.searches_file(), 0o644, &serde_json::to_vec(searches)?, Durability::Synced)
    }

    /// Returns the path of the file with the results of measurements of services with a `holdback`.
    pub fn proofs_file(&self) -> PathBuf {
        self.state_dir.join("proofs.json")
    }

    /// Returns the results of measurements of services with a `holdback`; empty if there is no such file.
    ///
    /// # Errors
    /// If the file cannot be read, or is not in the daemon's format.
    pub fn proofs(&self) -> std::io::Result<Proofs> {
        if let Some(recording) = &self.recording {
            return recording.proofs.clone().map_err(std::io::Error::other);
        }
        stored(&self.proofs_file())
    }

    /// Stores the results of measurements of services with a `holdback` atomically.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep_proofs(&self, proofs: &Proofs) -> std::io::Result<()> {
        replace_file(&self.proofs_file(), 0o644, &serde_json::to_vec(proofs)?, Durability::Synced)
    }

    /// Adds the results of searches to a policy's services. If the results cannot be read, each service gets
    /// the recipe of its policy.
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

/// A request of the policy files that the daemon has rolled back, because measurements of a service with a
/// `holdback` showed that it does harm.
#[derive(Debug)]
pub struct RolledBackRequest {
    /// The request.
    pub intent: Intent,
    /// What the measurements showed, as text.
    effects: String,
}

impl RolledBackRequest {
    /// Removes the rolled-back requests from a policy, and returns them. Removes none if the measurements
    /// cannot be read.
    pub(crate) fn take_from(policy: &mut Policy, session: &Session) -> Vec<Self> {
        if policy.intents.iter().all(|intent| intent.on_reversed.is_report()) {
            return Vec::new();
        }
        let proofs = session.proofs().unwrap_or_default();
        let taken = proofs.take_rolled_back(policy).into_iter();
        let effects = |intent: &Intent| {
            let proof = proofs.services.get(&intent.target.to_string());
            proof.map(Proof::effects_in_words).unwrap_or_default()
        };
        taken.map(|intent| Self { effects: effects(&intent), intent }).collect()
    }

    /// Refuses to plan a policy that has rolled-back requests.
    ///
    /// # Errors
    /// [`Exit::Refused`] if there are such requests.
    pub(crate) fn refuse(those: &[Self], session: &Session) -> Result<(), Fault> {
        let Some(first) = those.first() else { return Ok(()) };
        let words: Vec<String> = those.iter().map(Self::to_string).collect();
        let daemon = session.journal().ok().and_then(|journal| journal.daemon());
        let reload = daemon.map(|pid| format!("kill -HUP {pid}; or ")).unwrap_or_default();
        let section = format!("in its section ({}), request another policy", first.intent.origin);
        Err(Fault::new(Exit::Refused, words.join("; ")).hint(format!(
            "to set it again: {reload}{section}, or on_reversed = \"report\" for the same one"
        )))
    }
}

impl fmt::Display for RolledBackRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { intent, effects } = self;
        let target = &intent.target;
        write!(
            f,
            "{target}: its policy was rolled back, because its standing proof showed that it harms: {effects}"
        )
    }
}

/// Reads one of these files; returns the default value if the file does not exist.
fn stored<T: Default + DeserializeOwned>(path: &Path) -> std::io::Result<T> {
    let mut text = Vec::new();
    match fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(T::default()),
        file => file?.take(FILE_BYTES_MAX).read_to_end(&mut text)?,
    };
    serde_json::from_slice(&text).map_err(std::io::Error::other)
}

/// Returns whether a process, which was started since the host booted, is still running.
pub fn is_there(process: &ProcessId) -> bool {
    linux::process::identify(process.pid).is_ok_and(|now| now.started == process.started)
}
