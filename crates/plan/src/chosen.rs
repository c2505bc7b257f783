//! The delivery mode that a request gets, and why.

use model::{DeliveryMode, Intent, PolicyName, Reason};

/// The delivery mode that a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The mode.
    pub mode: DeliveryMode,
    /// Why this one.
    pub because: Reason,
}

impl Chosen {
    /// Whether a request for a policy that optimises something gets the kernel's default here, as `latency` does on a veth.
    pub fn is_default_despite(&self, intent: &Intent) -> bool {
        let optimises = !matches!(intent.policy, PolicyName::None | PolicyName::Mix);
        optimises && intent.delivery.is_none() && self.mode == DeliveryMode::Interrupt
    }
}
