//! A device whose queues serve several requests.

use model::{DeviceId, FlowRule, QueueSpan};

/// A device whose queues are divided between requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// The device.
    pub device: DeviceId,
    /// The queues for all packets that belong to no share.
    pub rest: QueueSpan,
    /// The parts with dedicated queues.
    pub shares: Vec<Share>,
}

/// The queues of requests with the same values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The requests, by index in the policy.
    pub parts: Vec<usize>,
    /// The queues of the share.
    pub queues: QueueSpan,
    /// The rules that direct packets to these queues.
    pub rules: Vec<FlowRule>,
    /// The origin of the first request.
    pub origin: String,
}
