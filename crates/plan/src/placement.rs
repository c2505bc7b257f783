//! Which objects serve which request.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Circumstances, DeliveryParams, DeviceId, Intent, Object, Recipes};

use crate::chosen::Chosen;
use crate::division::Division;
use crate::placed::{PlacedProcess, PlacedQueue, Running};
use crate::queue_object::Objects;
use crate::queues_after::QueuesAfter;

/// All requests of a policy, each with the objects that are its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// One for each request, in the policy's order.
    pub parts: Vec<Part>,
    /// The devices whose queues are divided between requests.
    pub divisions: Vec<Division>,
    /// What the policies come to.
    pub recipes: Arc<Recipes>,
    /// Whether recipes may want what stops a queue or takes the link down.
    pub disruptive: bool,
    /// Whether interrupts may be pinned whose queue the driver does not say.
    pub inferred: bool,
    /// How many queues devices have that this recreates.
    pub(crate) queues_after: QueuesAfter,
}

impl Placement {
    /// Whether no two requests have queues of this device.
    pub(crate) fn is_undivided(&self, device: DeviceId) -> bool {
        let on_it = |part: &&Part| part.queues.iter().any(|placed| placed.queue.device == device);
        self.parts.iter().filter(on_it).count() <= 1
    }
}

/// One request with the objects that it sets.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The request.
    pub intent: Intent,
    /// Where it is put to use: what recipes go by.
    pub circumstances: Vec<Circumstances>,
    /// The delivery mode that it gets, and why.
    pub delivery: Chosen,
    /// The mode's values with the request's own.
    pub params: DeliveryParams,
    /// The queues that it sets, one for each NAPI.
    pub queues: Vec<PlacedQueue>,
    /// The processes whose epolls, io_urings, sockets and threads it sets.
    pub processes: Vec<PlacedProcess>,
    /// How a device's queues and CPUs are put together; `None` where no request has a layout.
    pub objects: Option<Objects>,
    /// What the operator should know about this placement.
    pub notes: Vec<String>,
    /// Whether there is a process that it means.
    pub runs: Running,
}

impl Part {
    /// All that it may set something of: its queues with their devices and interrupts, and the epolls, io_urings,
    /// sockets and threads of its processes.
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
