//! Holds the daemon back while a session changes settings.

use std::sync::{Arc, Weak};

use crate::bell::Bell;
use crate::status::Shared;

/// Asks the daemon to change no settings until [`SessionHold`] is dropped, however its thread ends.
#[derive(Clone, Debug)]
pub struct HoldBack {
    /// The session, in words.
    pub session: String,
    alive: Weak<()>,
}

impl PartialEq for HoldBack {
    fn eq(&self, other: &Self) -> bool {
        self.session == other.session && self.alive.ptr_eq(&other.alive)
    }
}

/// A session's claim that the daemon changes no settings. Dropping it ends the claim and wakes the daemon.
pub(super) struct SessionHold {
    alive: Option<Arc<()>>,
    shared: Shared,
}

impl SessionHold {
    /// Creates a claim, and the request that tells the daemon.
    pub(super) fn new(session: String, shared: Shared) -> (Self, HoldBack) {
        let alive = Arc::new(());
        let request = HoldBack { session, alive: Arc::downgrade(&alive) };
        (Self { alive: Some(alive), shared }, request)
    }
}

impl Drop for SessionHold {
    fn drop(&mut self) {
        drop(self.alive.take());
        Bell::ring(self.shared.requested());
    }
}

/// The claims on the daemon.
#[derive(Debug, Default)]
pub(crate) struct HeldBack(Option<HoldBack>);

impl HeldBack {
    /// Accepts a claim. There is one at a time: [`super::SessionDesk`] admits no other.
    pub(crate) fn begin(&mut self, request: HoldBack) {
        self.0 = Some(request);
    }

    /// The session that changes settings at present.
    pub(crate) fn by(&self) -> Option<&str> {
        let held = self.0.as_ref().filter(|held| held.alive.strong_count() > 0)?;
        Some(&held.session)
    }

    /// Whether a claim has ended since the last call.
    pub(crate) fn take_ended(&mut self) -> bool {
        self.0.take_if(|held| held.alive.strong_count() == 0).is_some()
    }
}
