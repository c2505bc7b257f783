//! Indexes the host by identity, with logarithmic lookup.

use std::collections::BTreeMap;

use model::host::{Device, Epoll, IoUring, Irq, Napi, Process, RxQueueState, Socket, Thread, TxQueueState};
use model::{DeviceId, EpollId, Host, IrqNumber, NapiId, Pid, RingId, RxQueue, SocketId, ThreadId, TxQueue};

/// References to the parts of a [`Host`], by identity. The index is built once for each decision.
#[derive(Debug)]
pub(crate) struct Index<'h> {
    pub(crate) host: &'h Host,
    pub(crate) devices: BTreeMap<DeviceId, &'h Device>,
    /// The receive queues, each with its NAPI if known.
    pub(crate) queues: BTreeMap<RxQueue, Option<NapiId>>,
    /// The receive queues with their observed values.
    pub(crate) rx: BTreeMap<RxQueue, &'h RxQueueState>,
    /// The transmit queues.
    pub(crate) tx: BTreeMap<TxQueue, &'h TxQueueState>,
    pub(crate) napis: BTreeMap<NapiId, IndexedNapi<'h>>,
    pub(crate) irqs: BTreeMap<IrqNumber, &'h Irq>,
    pub(crate) processes: BTreeMap<Pid, &'h Process>,
    /// The threads of the observed processes.
    pub(crate) threads: BTreeMap<ThreadId, &'h Thread>,
    /// The epolls of the observed processes.
    pub(crate) epolls: BTreeMap<EpollId, &'h Epoll>,
    /// The io_urings of the observed processes.
    pub(crate) rings: BTreeMap<RingId, &'h IoUring>,
    /// The sockets of the observed processes that no epoll watches.
    pub(crate) sockets: BTreeMap<SocketId, &'h Socket>,
}

/// A NAPI with its device and queues.
#[derive(Debug)]
pub(crate) struct IndexedNapi<'h> {
    pub(crate) device: &'h Device,
    pub(crate) napi: &'h Napi,
    /// The receive queues that the NAPI serves, by index.
    pub(crate) queues: Vec<RxQueue>,
}

/// Returns the sockets of a process that no epoll watches, by identity.
fn by_themselves(process: &Process) -> impl Iterator<Item = (SocketId, &Socket)> {
    let own = process.sockets.iter().filter(|socket| socket.polling.is_some());
    own.map(|socket| (SocketId { process: process.id, fd: socket.fd, inode: socket.inode }, socket))
}

impl<'h> Index<'h> {
    /// Builds the index of a host.
    pub(crate) fn new(host: &'h Host) -> Self {
        let mut queues = BTreeMap::new();
        let mut napis = BTreeMap::new();
        for device in &host.devices {
            for napi in &device.napis {
                napis.insert(napi.id, IndexedNapi { device, napi, queues: Vec::new() });
            }
            for queue in &device.rx_queues {
                let napi = queue.napi.map(|edge| edge.napi).filter(|id| napis.contains_key(id));
                queues.insert(queue.id, napi);
                if let Some(indexed) = napi.and_then(|id| napis.get_mut(&id)) {
                    indexed.queues.push(queue.id);
                }
            }
        }
        let processes = || host.processes.iter();
        let of_tx = |d: &'h Device| {
            d.tx_queues.iter().map(|q| (TxQueue { device: d.id, index: q.index }, q)).collect::<Vec<_>>()
        };
        Self {
            host,
            devices: host.devices.iter().map(|d| (d.id, d)).collect(),
            queues,
            rx: host.devices.iter().flat_map(|d| &d.rx_queues).map(|q| (q.id, q)).collect(),
            tx: host.devices.iter().flat_map(of_tx).collect(),
            napis,
            irqs: host.irqs.iter().map(|i| (i.number, i)).collect(),
            processes: processes().map(|p| (p.id.pid, p)).collect(),
            threads: processes().flat_map(|p| &p.threads).map(|t| (t.id, t)).collect(),
            epolls: processes().flat_map(|p| &p.epolls).map(|e| (e.id, e)).collect(),
            rings: processes().flat_map(|p| &p.rings).map(|r| (r.id, r)).collect(),
            sockets: processes().flat_map(by_themselves).collect(),
        }
    }

    /// Returns how many receive queues share the NAPI of a queue; 0 if the NAPI is unknown.
    pub(crate) fn queues_of_napi(&self, queue: RxQueue) -> usize {
        let id = self.queues.get(&queue).copied().flatten();
        id.and_then(|id| self.napis.get(&id)).map_or(0, |indexed| indexed.queues.len())
    }

    /// Returns the NAPI of a receive queue, if known.
    pub(crate) fn napi_of(&self, queue: RxQueue) -> Option<&'h Napi> {
        let id = (*self.queues.get(&queue)?)?;
        self.napis.get(&id).map(|indexed| indexed.napi)
    }
}
