//! Keeps the daemon from changing settings while a session does.

use std::sync::{Arc, Weak};

use crate::bell::Bell;
use crate::status::Shared;

/// A request that the daemon change no settings until the [`SessionHold`] is dropped, however the session's
/// thread ends.
#[derive(Clone, Debug)]
pub struct HoldBack {
    /// The session's description.
    pub session: String,
    alive: Weak<()>,
}

impl PartialEq for HoldBack {
    fn eq(&self, other: &Self) -> bool {
        self.session == other.session && self.alive.ptr_eq(&other.alive)
    }
}

/// A session's claim that the daemon must not change settings. Dropping this value ends the claim and wakes
/// the daemon.
pub(super) struct SessionHold {
    alive: Option<Arc<()>>,
    shared: Shared,
}

impl SessionHold {
    /// Creates a claim, and the request that informs the daemon of it.
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

/// The current claim on the daemon, if any.
#[derive(Debug, Default)]
pub(crate) struct HeldBack(Option<HoldBack>);

impl HeldBack {
    /// Records a claim. There is never a second one, because [`super::SessionDesk`] admits only one session
    /// that changes settings.
    pub(crate) fn begin(&mut self, request: HoldBack) {
        self.0 = Some(request);
    }

    /// Returns the description of the session that currently changes settings, if any.
    pub(crate) fn by(&self) -> Option<&str> {
        let held = self.0.as_ref().filter(|held| held.alive.strong_count() > 0)?;
        Some(&held.session)
    }

    /// Whether a claim has ended since the last call.
    pub(crate) fn take_ended(&mut self) -> bool {
        self.0.take_if(|held| held.alive.strong_count() == 0).is_some()
    }
}
