//! The requests of a policy with their objects.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Circumstances, DeliveryParams, DeviceId, Intent, Object, Recipes};

use crate::chosen::Chosen;
use crate::division::Division;
use crate::placed::{PlacedProcess, PlacedQueue, ServiceState};
use crate::queue_object::Objects;
use crate::queues_after::QueuesAfter;

/// All requests of a policy, each with its objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// The placed requests, in the policy's order.
    pub parts: Vec<PlacedRequest>,
    /// The devices whose queues are divided between requests.
    pub divisions: Vec<Division>,
    /// The recipes of the policies.
    pub recipes: Arc<Recipes>,
    /// Whether recipes may stop a queue or take down the link.
    pub disruptive: bool,
    /// Whether to pin an interrupt whose queue is inferred, because the driver does not report it.
    pub inferred: bool,
    /// The future numbers of queues of the devices that the policy recreates.
    pub(crate) queues_after: QueuesAfter,
}

impl Placement {
    /// Returns whether at most one request has queues of this device.
    pub(crate) fn is_undivided(&self, device: DeviceId) -> bool {
        let on_it = |part: &&PlacedRequest| part.queues.iter().any(|placed| placed.queue.device == device);
        self.parts.iter().filter(on_it).count() <= 1
    }
}

/// One request with the objects that it sets.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedRequest {
    /// The request.
    pub intent: Intent,
    /// The circumstances of the request, which select a case of the recipe.
    pub circumstances: Vec<Circumstances>,
    /// The delivery mode, with the reason.
    pub delivery: Chosen,
    /// The mode's values with the request's overrides.
    pub params: DeliveryParams,
    /// The queues that the request sets, one for each NAPI.
    pub queues: Vec<PlacedQueue>,
    /// The processes whose epolls, io_urings, sockets and threads the request sets.
    pub processes: Vec<PlacedProcess>,
    /// The objects into which a layout groups the device's queues and CPUs; `None` without a layout.
    pub objects: Option<Objects>,
    /// Notes for the operator on this placement.
    pub notes: Vec<String>,
    /// Whether a process that matches the request is running.
    pub runs: ServiceState,
}

impl PlacedRequest {
    /// Returns all objects that the request may set: its queues with their devices and interrupts, and the
    /// epolls, io_urings, sockets and threads of its processes.
    pub fn all_objects(&self) -> BTreeSet<Object> {
        let queues = self.queues.iter().flat_map(|placed| {
            let irq = placed.irq.map(Object::Irq);
            [Object::Queue(placed.queue), Object::Device(placed.queue.device)].into_iter().chain(irq)
        });
        let of_processes = self.processes.iter().flat_map(|process| {
            let epolls = process.epolls.iter().copied().map(Object::Epoll);
            let rings = process.rings.iter().copied().map(Object::Ring);
            let threads = process.threads.iter().copied().map(Object::Thread);
            let sockets = process.sockets.iter().copied().map(Object::Socket);
            epolls.chain(rings).chain(sockets).chain(threads)
        });
        queues.chain(of_processes).collect()
    }
}
