//! The delivery mode that a request gets, and why.

use model::{DeliveryMode, Reason};

/// The delivery mode that a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The mode.
    pub mode: DeliveryMode,
    /// Why this one.
    pub because: Reason,
}
