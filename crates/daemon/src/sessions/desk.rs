//! Decides which sessions may run.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

/// The maximum number of running sessions. Each has a process with its own BPF programs.
pub const SESSIONS_MAX: usize = 8;

/// The maximum number of running sessions per user.
pub const SESSIONS_PER_USER_MAX: usize = 4;

/// What a session does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
// Generators of Varlink clients accept enums only in lower case.
#[serde(rename_all = "lowercase")]
pub enum SessionKind {
    /// Measures a service. Changes nothing.
    Watch,
    /// Alternates settings on a service, and judges them.
    Compare,
    /// Searches for the best settings of a service.
    Tune,
    /// Applies a policy until it is confirmed or its time has passed; with a guard, judges the policy.
    Try,
}

impl SessionKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Watch, Self::Compare, Self::Tune, Self::Try];

    /// Whether sessions of this kind change settings, unless a dry run was requested.
    pub const fn changes_settings(self) -> bool {
        !matches!(self, Self::Watch)
    }

    /// Returns the name of the API method that begins the session.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Watch => "Watch",
            Self::Compare => "Compare",
            Self::Tune => "Tune",
            Self::Try => "Try",
        }
    }
}

impl fmt::Display for SessionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A running session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenSession {
    /// What the session does.
    pub kind: SessionKind,
    /// The user who began the session.
    pub uid: u32,
    /// Whether the session changes settings. Only one such session may run at a time, because two of them
    /// would measure each other's settings.
    pub changes_settings: bool,
}

/// Why a session is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The daemon's limit on sessions is reached.
    #[error("too many sessions are running (limit {SESSIONS_MAX})")]
    Full,
    /// The limit on this user's sessions is reached.
    #[error("too many sessions of uid {0} are running (limit {SESSIONS_PER_USER_MAX})")]
    UserFull(u32),
    /// Another session is already changing settings.
    #[error("session {id} ({kind}, uid {uid}) changes settings of this host at present", kind = .with.kind, uid = .with.uid)]
    Occupied {
        /// The number of the other session.
        id: u64,
        /// The other session.
        with: OpenSession,
    },
}

/// The running sessions.
#[derive(Clone, Debug, Default)]
pub struct SessionDesk {
    last: u64,
    open: BTreeMap<u64, OpenSession>,
}

impl SessionDesk {
    /// Begins a session, and returns its number. Numbers are never reused.
    ///
    /// # Errors
    /// If a limit is reached, or both this session and a running one change settings.
    pub fn admit(&mut self, session: OpenSession) -> Result<u64, Refusal> {
        if let Some((id, with)) = self.open.iter().find(|(_, other)| other.changes_settings)
            && session.changes_settings
        {
            return Err(Refusal::Occupied { id: *id, with: *with });
        }
        if self.open.len() >= SESSIONS_MAX {
            return Err(Refusal::Full);
        }
        if self.open.values().filter(|other| other.uid == session.uid).count() >= SESSIONS_PER_USER_MAX {
            return Err(Refusal::UserFull(session.uid));
        }
        self.last += 1;
        self.open.insert(self.last, session);
        Ok(self.last)
    }

    /// Ends a session.
    pub fn end(&mut self, id: u64) {
        self.open.remove(&id);
    }

    /// The running sessions, by number.
    pub const fn open(&self) -> &BTreeMap<u64, OpenSession> {
        &self.open
    }
}
