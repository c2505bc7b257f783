//! A device whose queues serve several requests, and who has which.

use model::{DeviceId, FlowRule, QueueSpan};

/// A device whose queues are divided between requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// The device.
    pub device: DeviceId,
    /// The queues of everything that no request has queues of its own for.
    pub rest: QueueSpan,
    /// The parts that have queues of their own.
    pub shares: Vec<Share>,
}

/// The queues of requests that want the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The requests, by their place in the policy.
    pub parts: Vec<usize>,
    /// Their queues.
    pub queues: QueueSpan,
    /// The rules that lead there.
    pub rules: Vec<FlowRule>,
    /// Where the first of them was asked for.
    pub origin: String,
}
