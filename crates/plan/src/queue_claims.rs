//! Assigns the queues of a host to the requests that own them.

use std::collections::{BTreeMap, BTreeSet};

use model::host::{Device, Process, Socket, SocketState};
use model::{DeliveryMode, DeviceId, Host, NapiId, PolicyName, Spread};

use crate::claim::{Claims, QueueClaim, ResolvedRequest};
use crate::divide::{self, Claimant};
use crate::division::Division;
use crate::index::Index;
use crate::no_napi::why_no_napi;
use crate::placed::PlacedQueue;
use crate::placement::PlacedRequest;
use crate::queues_after::QueuesAfter;
use crate::refusal::{Refusal, RefusalKind};

/// The queues of a host, one for each NAPI, with their owners.
pub(crate) struct QueueClaims<'h> {
    per_napi: bool,
    after: &'h QueuesAfter,
    queues: Vec<PlacedQueue>,
    by_device: BTreeMap<DeviceId, Vec<usize>>,
    by_napi: BTreeMap<NapiId, usize>,
    /// The devices on which a process may receive although no packet has shown that yet.
    likely: Vec<&'h Device>,
    /// The devices without a NAPI, whose packets may take another path.
    bare: Vec<&'h Device>,
    claims: Claims,
    /// The devices whose queues are divided among several policies.
    divided: BTreeSet<DeviceId>,
    /// The inodes of the UDP sockets that receive only the datagrams of their queues.
    by_queue: BTreeSet<u64>,
    /// The host, which tells the ports of clients.
    host: &'h Host,
}

impl<'h> QueueClaims<'h> {
    /// Collects the queues of this host, without owners.
    pub(crate) fn new(index: &Index<'h>, after: &'h QueuesAfter) -> Self {
        let per_napi = index.host.capabilities.napi_set;
        let mut queues: Vec<PlacedQueue> = Vec::new();
        let mut by_device: BTreeMap<DeviceId, Vec<usize>> = BTreeMap::new();
        let mut by_napi = BTreeMap::new();
        for (&queue, &napi) in &index.queues {
            if per_napi && napi.is_none() {
                continue; // the values cannot be set without a NAPI
            }
            if let Some(&slot) = napi.and_then(|id| by_napi.get(&id)) {
                let first: &mut PlacedQueue = &mut queues[slot];
                first.also.push(queue);
                continue;
            }
            let irq = napi.and_then(|id| index.napis.get(&id)?.napi.irq).map(|edge| edge.irq);
            let cpus = irq.and_then(|n| index.irqs.get(&n)).map(|i| i.affinity.clone()).unwrap_or_default();
            by_device.entry(queue.device).or_default().push(queues.len());
            if let Some(id) = napi {
                by_napi.insert(id, queues.len());
            }
            queues.push(PlacedQueue { queue, also: Vec::new(), napi, irq, cpus });
        }
        let up = index.host.devices.iter().filter(|d| d.up && d.id.name.as_str() != "lo");
        let (likely, bare) = up.partition(|d| by_device.contains_key(&d.id));
        let claims = Claims::new(queues.len());
        let divided = BTreeSet::new();
        let groups = index.host.listeners.iter();
        let by_queue = groups.flat_map(|group| match &group.spread {
            Spread::Queues(lists) => lists.iter().flat_map(|list| list.listeners.iter().copied()).collect(),
            Spread::Hash | Spread::Foreign => Vec::new(),
        });
        let by_queue = by_queue.collect();
        Self {
            per_napi,
            after,
            queues,
            by_device,
            by_napi,
            likely,
            bare,
            claims,
            divided,
            by_queue,
            host: index.host,
        }
    }

    /// Returns the device on any of whose queues datagrams of this socket may arrive, because the NAPI of an
    /// unconnected UDP socket is only that of its first packet. Returns `None` for other sockets, and for
    /// sockets of clients. `process` has the socket.
    fn device_of_datagrams(&self, process: &Process, socket: &Socket) -> Option<DeviceId> {
        let port = socket.local.map_or(0, |local| local.port());
        let is_server = socket.state == SocketState::Udp
            && socket.remote.is_none()
            && port != 0
            && !self.host.is_client_port(process, port);
        (is_server && !self.by_queue.contains(&socket.inode)).then(|| self.device_of(socket.napi?))?
    }

    /// Returns the device of the queue that a NAPI serves.
    pub(crate) fn device_of(&self, napi: NapiId) -> Option<DeviceId> {
        self.by_napi.get(&napi).map(|&slot| self.queues[slot].queue.device)
    }

    fn of_device(&self, device: DeviceId) -> &[usize] {
        self.by_device.get(&device).map_or(&[], Vec::as_slice)
    }

    /// Returns the queues on which a process receives according to its sockets; if these show none, the
    /// queues of all likely devices; none if the process cannot receive. Like [`Self::of_process`], but
    /// without notes.
    fn touched_by(&self, process: &Process) -> BTreeSet<usize> {
        let napis = process.sockets.iter().filter_map(|socket| socket.napi);
        let mut shown: BTreeSet<usize> = napis.filter_map(|id| self.by_napi.get(&id).copied()).collect();
        let by_datagrams =
            process.sockets.iter().filter_map(|socket| self.device_of_datagrams(process, socket));
        shown.extend(by_datagrams.flat_map(|device| self.of_device(device)));
        if !shown.is_empty() || receives_nothing(process) {
            return shown;
        }
        self.likely.iter().flat_map(|device| self.of_device(device.id)).copied().collect()
    }

    /// Returns the devices to divide, each with the parts that get dedicated queues. A device whose request
    /// is `mix` but whose driver has no rules is not divided, and gets a note.
    pub(crate) fn to_divide<'p>(
        &self,
        owners: &[(usize, &'p Process)],
        requests: &[ResolvedRequest<'_>],
        index: &Index<'h>,
        parts: &mut [PlacedRequest],
    ) -> Vec<(&'h Device, Vec<Claimant<'p>>)> {
        if !self.per_napi {
            return Vec::new();
        }
        let mut first: BTreeMap<usize, usize> = BTreeMap::new();
        let mut disputed: BTreeSet<DeviceId> = BTreeSet::new();
        let mut here: BTreeMap<DeviceId, BTreeMap<usize, Vec<&'p Process>>> = BTreeMap::new();
        for &(part, process) in owners {
            let mut devices = BTreeSet::new();
            for slot in self.touched_by(process) {
                devices.insert(self.queues[slot].queue.device);
                // Applications can request a policy for a socket without privileges, so such requests must
                // not divide a device that the operator left undivided.
                if divide::is_of_sockets(&requests[part]) {
                    continue;
                }
                let other = *first.entry(slot).or_insert(part);
                if other != part && !requests[other].shares_queues_with(&requests[part]) {
                    disputed.insert(self.queues[slot].queue.device);
                }
            }
            for device in devices {
                here.entry(device).or_default().entry(part).or_default().push(process);
            }
        }
        let claimants = |by_part: BTreeMap<usize, Vec<&'p Process>>| -> Vec<Claimant<'p>> {
            by_part.into_iter().map(|(part, processes)| Claimant { part, processes }).collect()
        };
        let found = here.into_iter().filter_map(|(id, by_part)| {
            let device = index.devices.get(&id).copied()?;
            if device.flow_rules.is_none() {
                let on_its_own = |part: &&usize| divide::by_connection(&requests[**part]);
                for part in by_part.keys().filter(on_its_own).filter(|_| divide::is_mixed(device, requests)) {
                    parts[*part].notes.push(divide::no_own_queues(device, "its driver has no ntuple rules"));
                }
                return None;
            }
            let mut claimants = claimants(by_part);
            let is_mixed = divide::is_mixed(device, requests);
            if !is_mixed {
                claimants.retain(|claimant| !divide::is_of_sockets(&requests[claimant.part]));
            }
            let wanted = is_mixed
                || disputed.contains(&id)
                || divide::is_divided_already(device, &claimants, requests);
            wanted.then_some((device, claimants))
        });
        found.collect()
    }

    /// Reserves the queues of a device, which are about to be recreated, for the device's own request.
    pub(crate) fn keep_back(&mut self, device: DeviceId) {
        self.divided.insert(device);
    }

    /// Assigns the queues of a division to the division's parts.
    pub(crate) fn give(&mut self, division: &Division, parts: &mut [PlacedRequest]) {
        self.divided.insert(division.device);
        for share in &division.shares {
            let Some(&owner) = share.parts.first() else { continue };
            for &slot in self.by_device.get(&division.device).map_or(&[][..], Vec::as_slice) {
                if (share.queues.first..=share.queues.last()).contains(&self.queues[slot].queue.index.0) {
                    self.claims.give(slot, owner);
                }
            }
            for &part in &share.parts {
                parts[part].notes.push(format!(
                    "queues {} of {} are dedicated to it: {} rule(s) direct its packets there; queues {} serve all others",
                    share.queues,
                    division.device,
                    share.rules.len(),
                    division.rest
                ));
            }
        }
    }

    /// Returns the queues on which a process's sockets receive; if none is known, all queues of the likely
    /// devices.
    fn of_process(
        &self,
        process: &Process,
        is_of_sockets: bool,
        part: &mut PlacedRequest,
    ) -> Result<Vec<usize>, Refusal> {
        let mut slots: BTreeSet<usize> = BTreeSet::new();
        let mut astray = 0_usize;
        for id in process.sockets.iter().filter_map(|socket| socket.napi) {
            match self.by_napi.get(&id) {
                Some(&slot) => drop(slots.insert(slot)),
                None => astray += 1,
            }
        }
        // An application's request for a socket needs no privileges, so it gets only the queue of the socket.
        let widens = process.sockets.iter().filter(|_| !is_of_sockets);
        let by_datagrams: BTreeSet<DeviceId> =
            widens.filter_map(|socket| self.device_of_datagrams(process, socket)).collect();
        for device in by_datagrams {
            let queues = self.of_device(device);
            if queues.iter().any(|slot| !slots.contains(slot)) {
                part.notes.push(format!(
                    "datagrams to {} may arrive on any queue of {}: the policy is set on all of them",
                    process.id, device.name
                ));
            }
            slots.extend(queues);
        }
        if astray > 0 && self.per_napi {
            part.notes.push(format!(
                "{astray} socket(s) of {} have the id of a NAPI that no device here has: it was replaced by a reset, or is in another namespace",
                process.id
            ));
        }
        if slots.is_empty() && receives_nothing(process) {
            part.notes.push(format!(
                "{} has no socket that could receive packets: no queue is set until it has one",
                process.id
            ));
            return Ok(Vec::new());
        }
        if slots.is_empty() {
            let none = self.likely.is_empty() && !self.after.gives_any_napis();
            if none && part.delivery.mode != DeliveryMode::Interrupt {
                return Err(self.off_every_napi(process, part));
            }
            slots.extend(self.likely.iter().flat_map(|device| self.of_device(device.id)));
            let names: Vec<&str> = self.likely.iter().map(|d| d.id.name.as_str()).collect();
            let names = if names.is_empty() { "no device".to_owned() } else { names.join(", ") };
            part.notes.push(match Connections::of(process) {
                Connections { elsewhere: 0, .. } => format!(
                    "the queue on which {} receives is unknown until a packet arrives: the policy is set on all queues of {names}",
                    process.id
                ),
                Connections { elsewhere, .. } => format!(
                    "{elsewhere} connection(s) of {} receive on no NAPI, as behind a veth whose other end has TSO on: the \
                     policy is set on all queues of {names}",
                    process.id
                ),
            });
        }
        if !self.per_napi {
            let devices: BTreeSet<DeviceId> = slots.iter().map(|&s| self.queues[s].queue.device).collect();
            slots.extend(devices.iter().flat_map(|&device| self.of_device(device)));
        }
        Ok(slots.into_iter().collect())
    }

    /// Creates the refusal for a process whose connections have no NAPI, although no device could give them
    /// one.
    fn off_every_napi(&self, process: &Process, part: &PlacedRequest) -> Refusal {
        let connections = Connections::of(process);
        let id = process.id;
        match connections {
            Connections { elsewhere: 0, loopback: 0 } => {
                no_napi(format!("{id} has received nothing yet"), part)
            }
            Connections { elsewhere: 0, loopback } => {
                let mut refusal =
                    no_napi(format!("{id} receives only over loopback ({loopback} connections)"), part);
                refusal.kind = RefusalKind::Unsupported;
                refusal
            }
            Connections { elsewhere, .. } => {
                let what = format!("{elsewhere} connection(s) of {id} receive on no NAPI");
                let mut refusal = no_napi(what, part);
                for device in self.bare.iter().take(HINTS_MAX) {
                    refusal = refusal.because(why_no_napi(device));
                }
                // Only for a veth does netpolicy know how to create a NAPI.
                if !self.bare.iter().any(|device| device.kind == "veth") {
                    refusal.kind = RefusalKind::Unsupported;
                }
                refusal
            }
        }
    }

    /// Claims the queues on which a process receives.
    pub(crate) fn claim_for_process(
        &mut self,
        part: usize,
        process: &Process,
        requests: &[ResolvedRequest<'_>],
        placed: &mut PlacedRequest,
    ) -> Result<(), Refusal> {
        let mut shared: BTreeMap<usize, usize> = BTreeMap::new();
        let is_of_sockets = divide::is_of_sockets(&requests[part]);
        for slot in self.of_process(process, is_of_sockets, placed)? {
            if self.divided.contains(&self.queues[slot].queue.device) {
                continue;
            }
            match self.claims.claim(slot, part, Some(process.id), requests, &self.queues[slot])? {
                QueueClaim::Own | QueueClaim::Yielded => {}
                QueueClaim::Shared(with) => *shared.entry(with).or_default() += 1,
            }
        }
        note_shared(&shared, requests, placed);
        Ok(())
    }

    /// Claims the remaining queues of a device.
    pub(crate) fn claim_for_device(
        &mut self,
        part: usize,
        device: &Device,
        requests: &[ResolvedRequest<'_>],
        placed: &mut PlacedRequest,
    ) -> Result<(), Refusal> {
        let slots = self.of_device(device.id).to_vec();
        let none = slots.is_empty() && !self.after.gives_napis(device.id);
        if none && device.up && device.rx_queues.is_empty() && placed.delivery.mode != DeliveryMode::Interrupt
        {
            // Every device has queues, so netpolicy could not read the queues of this one, nor their NAPIs.
            return Err(no_napi(format!("none of the queues of {} could be read", device.id), placed));
        }
        if none && placed.delivery.mode != DeliveryMode::Interrupt {
            let mut refusal = no_napi(format!("the kernel reports no NAPI of {}", device.id), placed)
                .because(why_no_napi(device));
            // A device that is down may get NAPIs when it is brought up, so this is unsupported only for a
            // device that is up.
            if device.up {
                refusal.kind = RefusalKind::Unsupported;
            }
            return Err(refusal);
        }
        let served: usize = slots.iter().map(|&s| 1 + self.queues[s].also.len()).sum();
        let on_napis =
            placed.delivery.mode != DeliveryMode::Interrupt || placed.intent.policy != PolicyName::None;
        if served < device.rx_queues.len() && on_napis {
            let without = device.rx_queues.len() - served;
            placed.notes.push(format!(
                "{without} queue(s) of {} have no NAPI: the delivery mode is not set there",
                device.id
            ));
        }
        let (mut shared, mut yielded) = (BTreeMap::<usize, usize>::new(), 0_usize);
        for slot in slots {
            match self.claims.claim(slot, part, None, requests, &self.queues[slot])? {
                QueueClaim::Own => {}
                QueueClaim::Shared(with) => *shared.entry(with).or_default() += 1,
                QueueClaim::Yielded => yielded += 1,
            }
        }
        note_shared(&shared, requests, placed);
        if placed.intent.policy == PolicyName::Mix && device.flow_rules.is_none() {
            placed.notes.push(format!(
                "the driver of {} has no rules that match ports: services keep the queues on which their packets arrive",
                device.id
            ));
        }
        if yielded > 0 {
            placed
                .notes
                .push(format!("{yielded} queue(s) of {} are left to more specific requests", device.id));
        }
        Ok(())
    }

    /// Gives each part the queues that it owns.
    pub(crate) fn settle(self, parts: &mut [PlacedRequest]) {
        let Self { per_napi, queues, claims, .. } = self;
        for (slot, queue) in queues.into_iter().enumerate() {
            if let Some(part) = claims.owner(slot) {
                parts[part].queues.push(queue);
            }
        }
        for part in parts.iter_mut().filter(|part| !per_napi && !part.queues.is_empty()) {
            part.notes.push(
                "this kernel has no settings for single queues (6.13): whole devices are set through sysfs"
                    .to_owned(),
            );
        }
    }
}

/// The maximum number of devices without a NAPI that a refusal names.
const HINTS_MAX: usize = 8;

/// How many of a process's connections have no NAPI id although they have received packets. TCP connections
/// have at least received an acknowledgement.
#[derive(Clone, Copy)]
struct Connections {
    /// The number of connections over loopback, which has no NAPI.
    loopback: usize,
    /// The number of connections over other devices.
    elsewhere: usize,
}

impl Connections {
    fn of(process: &Process) -> Self {
        let connected =
            |socket: &&Socket| socket.state == SocketState::TcpEstablished && socket.napi.is_none();
        let (loopback, elsewhere): (Vec<&Socket>, Vec<&Socket>) =
            process.sockets.iter().filter(connected).partition(|socket| socket.is_loopback());
        Self { loopback: loopback.len(), elsewhere: elsewhere.len() }
    }
}

/// Returns whether a process neither has sockets that could receive packets nor waits for any. Such a process
/// is not a server yet, so whole devices are not set for it. A process that waits with io_uring may have
/// sockets without descriptors.
fn receives_nothing(process: &Process) -> bool {
    !process.sockets.iter().any(Socket::can_receive)
        && process.rings.iter().all(|ring| ring.registered_sockets == 0)
}

fn note_shared(shared: &BTreeMap<usize, usize>, requests: &[ResolvedRequest<'_>], part: &mut PlacedRequest) {
    for (&with, queues) in shared {
        let origin = &requests[with].intent.origin;
        // An attachment makes a request for each of its processes. For the user, these are a single request,
        // so add no note.
        if *origin == part.intent.origin {
            continue;
        }
        part.notes.push(format!("{queues} queue(s) are set by the request of {origin} with the same values"));
    }
}

fn no_napi(what: String, part: &PlacedRequest) -> Refusal {
    Refusal::new(
        RefusalKind::Missing,
        &part.intent.target,
        format!("{what}, but {} is set on a NAPI", part.delivery.mode),
    )
    .because(format!("requested at {}", part.intent.origin))
}
