//! The delivery mode of a request, with the reason.

use model::{DeliveryMode, Intent, Reason};

/// The delivery mode of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The mode.
    pub mode: DeliveryMode,
    /// The reason.
    pub because: Reason,
}

impl Chosen {
    /// Whether a request for an optimising policy resolves to the kernel's default here, as `latency` does on
    /// a veth.
    pub fn is_default_despite(&self, intent: &Intent) -> bool {
        intent.policy.optimizes() && intent.delivery.is_none() && self.mode == DeliveryMode::Interrupt
    }
}
