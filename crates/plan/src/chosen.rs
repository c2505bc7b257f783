//! The delivery mode that was chosen for a request, with the reason.

use model::{DeliveryMode, Intent, Reason};

/// The delivery mode that was chosen for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The mode.
    pub mode: DeliveryMode,
    /// The reason.
    pub because: Reason,
}

impl Chosen {
    /// Returns whether a request for an optimising policy resolves to the kernel's default on this host, as
    /// `latency` does on a veth.
    pub fn is_default_despite(&self, intent: &Intent) -> bool {
        intent.policy.optimizes() && intent.delivery.is_none() && self.mode == DeliveryMode::Interrupt
    }
}
