//! Joins the host, the counts and the requests, by NAPI, epoll and process.

use std::collections::{BTreeMap, BTreeSet};

use model::host::{Device, Epoll, Napi, Process, Socket, SocketState};
use model::{
    CpuSet, Delivered, DeliveryMode, DeviceId, EpollId, Host, Mechanism, Nanoseconds, NapiDelivered, NapiId,
    Pid, PollCounts, ProcessId, RecipeValue, Recipes, RxQueue,
};

use super::{HostContext, VethPeer};
use crate::index::Index;
use crate::placement::{PlacedRequest, Placement};

/// The facts about a request that the rules need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFacts {
    /// The request's origin.
    pub origin: String,
    /// The delivery mode.
    pub mode: DeliveryMode,
    /// The queues.
    pub queues: Vec<RxQueue>,
    /// The processes.
    pub processes: Vec<ProcessId>,
    /// The shortest response time among the goals of the request.
    pub goal: Option<Nanoseconds>,
    /// The maximum wake-up latency that the policy of the request allows.
    pub wake_within: Option<Nanoseconds>,
}

impl Placement {
    /// Returns the facts about each request, for [`super::doctor()`].
    pub fn asked(&self) -> Vec<RequestFacts> {
        self.parts.iter().map(|part| RequestFacts::of(part, &self.recipes)).collect()
    }
}

impl RequestFacts {
    /// Extracts the facts from a placed request.
    pub fn of(part: &PlacedRequest, recipes: &Recipes) -> Self {
        let named = recipes.agreed(part.intent.policy, Mechanism::WakeLatency, &part.circumstances);
        let wakes = named.entry.map(|named| &named.value);
        let wakes = wakes.filter(|_| part.intent.delivery.is_none());
        let goal = part.intent.goal;
        Self {
            goal: goal.p50.into_iter().chain(goal.p99).min(),
            wake_within: match wakes {
                Some(RecipeValue::Number(micros)) => Some(Nanoseconds(u64::from(*micros) * 1_000)),
                _ => None,
            },
            origin: part.intent.origin.clone(),
            mode: part.delivery.mode,
            queues: part.queues.iter().flat_map(|q| [q.queue].into_iter().chain(q.also.clone())).collect(),
            processes: part.processes.iter().map(|p| p.id).collect(),
        }
    }
}

/// The input of all rules.
#[derive(Debug)]
pub(super) struct Case<'h> {
    pub(super) host: &'h Host,
    /// The counts; `None` if counters were not read or no time passed.
    pub(super) delivered: Option<&'h Delivered>,
    /// The requests.
    pub(super) asked: &'h [RequestFacts],
    /// Facts that are not part of the host.
    pub(super) context: &'h HostContext,
    /// The NAPIs, by id.
    pub(super) napis: BTreeMap<NapiId, NapiCase<'h>>,
    /// The processes, by pid.
    pub(super) processes: BTreeMap<Pid, ProcessCase<'h>>,
    /// The devices by name; if several share a name, the first.
    by_name: BTreeMap<&'h str, &'h Device>,
}

/// A NAPI and the epolls that receive through it.
#[derive(Debug)]
pub(super) struct NapiCase<'h> {
    pub(super) device: &'h Device,
    pub(super) napi: &'h Napi,
    pub(super) queues: Vec<RxQueue>,
    /// The facts about the request for the NAPI's queues.
    pub(super) asked: Option<&'h RequestFacts>,
    /// The counts of the NAPI; all zero if it was never polled, `None` if counters were not read.
    pub(super) counts: Option<NapiDelivered>,
    /// The epolls that watch connections of the NAPI, each with the number of these connections.
    pub(super) epolls: BTreeMap<EpollId, usize>,
    /// Whether one of the NAPI's epolls prefers busy polling.
    pub(super) preferred: bool,
}

/// The peer that sends to a veth.
#[derive(Debug)]
pub(super) enum Sending<'h> {
    /// A device in this namespace.
    Here(&'h Device),
    /// A device that was found in another namespace.
    Elsewhere(&'h VethPeer),
    /// A device in another namespace, of which only the netnsid is known.
    Unknown(String),
}

impl Sending<'_> {
    /// Returns whether the peer's TSO is on; `None` if that could not be read.
    pub(super) fn tso(&self) -> Option<bool> {
        match self {
            Self::Here(device) => device.features.tso,
            Self::Elsewhere(peer) => peer.tso,
            Self::Unknown(_) => None,
        }
    }
}

/// A process and the NAPIs on which its connections receive.
#[derive(Debug)]
pub(super) struct ProcessCase<'h> {
    pub(super) process: &'h Process,
    /// The facts about the request for the process.
    pub(super) asked: Option<&'h RequestFacts>,
    /// Its epolls.
    pub(super) epolls: Vec<EpollCase<'h>>,
    /// The number of connections by NAPI, for NAPIs of a device in this namespace.
    pub(super) napis: BTreeMap<NapiId, usize>,
    /// The number of connections by NAPI id, for ids that no device here has.
    pub(super) astray: BTreeMap<NapiId, usize>,
    /// The number of connections whose packets arrived without a NAPI, except over loopback.
    pub(super) on_no_napi: usize,
    /// The number of connections over loopback.
    pub(super) loopback: usize,
}

/// An epoll and the NAPIs on which its connections receive.
#[derive(Debug)]
pub(super) struct EpollCase<'h> {
    pub(super) epoll: &'h Epoll,
    /// The number of connections that the epoll watches, by NAPI.
    pub(super) napis: BTreeMap<NapiId, usize>,
}

/// A process with a thread that was runnable but had no CPU.
#[derive(Debug)]
pub(super) struct WaitedForCpu<'c, 'h> {
    pub(super) process: &'c ProcessCase<'h>,
    /// The share of the time that the thread waited for a CPU, in percent.
    pub(super) percent: u64,
    /// The average length of a wait; `None` if the thread never ran.
    pub(super) each: Option<Nanoseconds>,
}

impl<'h> Case<'h> {
    pub(super) fn new(
        host: &'h Host,
        delivered: Option<&'h Delivered>,
        asked: &'h [RequestFacts],
        context: &'h HostContext,
    ) -> Self {
        let delivered = delivered.filter(|d| !d.interval.is_zero());
        let counted: BTreeMap<NapiId, &NapiDelivered> =
            delivered.iter().flat_map(|d| &d.napis).map(|n| (n.napi, n)).collect();
        let mut asked_of_queue: BTreeMap<RxQueue, &RequestFacts> = BTreeMap::new();
        let mut asked_of_process: BTreeMap<Pid, &RequestFacts> = BTreeMap::new();
        for request in asked {
            asked_of_queue.extend(request.queues.iter().map(|&queue| (queue, request)));
            asked_of_process.extend(request.processes.iter().map(|process| (process.pid, request)));
        }
        let index = Index::new(host);
        let mut napis: BTreeMap<NapiId, NapiCase<'h>> = BTreeMap::new();
        for (id, found) in index.napis {
            let asked = found.queues.iter().find_map(|queue| asked_of_queue.get(queue).copied());
            let counts = delivered
                .map(|_| counted.get(&id).map_or_else(|| not_polled(id, found.device), |&n| n.clone()));
            let (device, napi, queues) = (found.device, found.napi, found.queues);
            napis.insert(
                id,
                NapiCase { device, napi, queues, asked, counts, epolls: BTreeMap::new(), preferred: false },
            );
        }
        let mut processes = BTreeMap::new();
        for process in &host.processes {
            let asked = asked_of_process.get(&process.id.pid).copied();
            let case = ProcessCase::new(process, asked, &napis);
            for epoll in &case.epolls {
                for (id, &connections) in &epoll.napis {
                    let Some(napi) = napis.get_mut(id) else { continue };
                    napi.epolls.insert(epoll.epoll.id, connections);
                    napi.preferred |= epoll.prefers();
                }
            }
            processes.insert(process.id.pid, case);
        }
        let by_name = host.devices.iter().rev().map(|device| (device.id.name.as_str(), device)).collect();
        Self { host, delivered, asked, context, napis, processes, by_name }
    }

    /// The NAPIs on which suspension is set or requested.
    pub(super) fn suspended(&self) -> impl Iterator<Item = &NapiCase<'h>> {
        self.napis.values().filter(|napi| napi.suspends() || napi.asked_to_suspend())
    }

    /// Returns whether busy polling or suspension affects this process: it is requested for the process, set
    /// on its epolls, or set on one of its NAPIs.
    pub(super) fn concerns(&self, process: &ProcessCase<'_>) -> bool {
        process.asked.is_some_and(|asked| asked.mode.params().epoll.prefer_busy_poll)
            || process.epolls.iter().any(EpollCase::prefers)
            || process.napis.keys().any(|id| self.napis.get(id).is_some_and(NapiCase::suspends))
    }

    /// Formats a count over the interval as a rate per second.
    pub(super) fn rate(&self, count: u64) -> String {
        let interval = self.delivered.map_or(1_000_000_000, |d| d.interval.0);
        format!("{}/s", u128::from(count) * 1_000_000_000 / u128::from(interval))
    }

    /// Returns a NAPI's name for the operator: that of its queue.
    pub(super) fn name(&self, id: NapiId) -> String {
        self.napis.get(&id).map_or_else(|| format!("napi {id}"), NapiCase::name)
    }

    /// The packets of the per-CPU backlogs, as evidence. The kernel counts them per CPU, for all namespaces
    /// together.
    pub(super) fn on_the_backlog(&self) -> Option<String> {
        let packets = self.delivered?.backlog.packets;
        Some(format!(
            "packets on per-CPU backlogs of the whole machine, including other namespaces and loopback: {}",
            self.rate(packets)
        ))
    }

    /// Returns the device with this id.
    pub(super) fn device(&self, id: DeviceId) -> Option<&'h Device> {
        let named = self.by_name.get(id.name.as_str()).copied();
        named.filter(|device| device.id == id).or_else(|| self.host.device(id))
    }

    /// Returns the peer that sends to a veth.
    pub(super) fn sending_to(&self, device: &Device) -> Sending<'_> {
        match (device.peer.as_deref(), self.context.peers.get(&device.id)) {
            (_, Some(peer)) => Sending::Elsewhere(peer),
            (Some(name), None) => match self.by_name.get(name) {
                Some(peer) => Sending::Here(peer),
                None => Sending::Unknown(name.to_owned()),
            },
            (None, None) => Sending::Unknown("unknown".to_owned()),
        }
    }

    /// Returns, of the processes with epolls on the NAPI, the one with the thread that was runnable without a
    /// CPU for the longest time.
    pub(super) fn waited_for_cpu(&self, napi: &NapiCase<'_>) -> Option<WaitedForCpu<'_, 'h>> {
        let watched = self.context.watched;
        let waits = napi.epolls.keys().filter_map(|epoll| {
            let process = self.processes.get(&epoll.process.pid)?;
            let wait = self.context.cpu_waits.get(&epoll.process.pid)?;
            let percent = (u128::from(wait.waited.0) * 100).checked_div(u128::from(watched.0))?;
            let percent = u64::try_from(percent).unwrap_or(u64::MAX);
            Some(WaitedForCpu { process, percent, each: wait.each() })
        });
        waits.max_by_key(|wait| wait.percent)
    }

    /// The inspected processes that polled this NAPI in the interval, busiest first.
    pub(super) fn pollers(&self, napi: &NapiCase<'_>) -> impl Iterator<Item = &ProcessCase<'h>> {
        let by_process = napi.counts.iter().flat_map(|counts| &counts.by_process);
        let polled = by_process.filter(|(_, counts)| counts.packets > 0);
        polled.filter_map(|(pid, _)| self.processes.get(pid))
    }

    /// The number of connections by NAPI, as evidence.
    pub(super) fn spread(&self, napis: &BTreeMap<NapiId, usize>) -> String {
        let each = napis.iter().map(|(&id, count)| format!("{count} on {}", self.name(id)));
        format!("connections: {}", each.collect::<Vec<_>>().join(", "))
    }
}

impl NapiCase<'_> {
    /// Returns the name of the NAPI's first queue, with the NAPI's id.
    pub(super) fn name(&self) -> String {
        match self.queues.first() {
            Some(queue) => format!("{queue} (napi {})", self.napi.id),
            None => format!("{} napi {}", self.device.id, self.napi.id),
        }
    }

    /// Whether `irq-suspend-timeout` is set.
    pub(super) fn suspends(&self) -> bool {
        self.napi.irq_suspend_timeout.is_some_and(|span| !span.is_zero())
    }

    /// Returns whether suspension is requested for this NAPI.
    pub(super) fn asked_to_suspend(&self) -> bool {
        self.asked.is_some_and(|asked| matches!(asked.mode, DeliveryMode::Suspend { .. }))
    }

    /// Whether both settings that deferral needs are on.
    pub(super) fn defers(&self) -> bool {
        self.deferral().is_some_and(|(polls, span)| polls > 0 && !span.is_zero())
    }

    /// `defer-hard-irqs` and `gro-flush-timeout`, if both could be read.
    pub(super) fn deferral(&self) -> Option<(u32, Nanoseconds)> {
        self.napi.defer_hard_irqs.map(|polls| polls.0).zip(self.napi.gro_flush_timeout)
    }

    /// The three settings of the NAPI, as evidence.
    pub(super) fn values(&self) -> String {
        fn shown<T: ToString>(value: Option<T>) -> String {
            value.map_or_else(|| "not readable".to_owned(), |value| value.to_string())
        }
        format!(
            "defer-hard-irqs {}, gro-flush-timeout {}, irq-suspend-timeout {}",
            shown(self.napi.defer_hard_irqs),
            shown(self.napi.gro_flush_timeout),
            shown(self.napi.irq_suspend_timeout)
        )
    }

    /// The packets in the interval; `None` if counters were not read.
    pub(super) fn packets(&self) -> Option<u64> {
        self.counts.as_ref().map(|counts| counts.total().packets)
    }
}

impl<'h> ProcessCase<'h> {
    fn new(
        process: &'h Process,
        asked: Option<&'h RequestFacts>,
        known: &BTreeMap<NapiId, NapiCase<'h>>,
    ) -> Self {
        let mut case = Self {
            process,
            asked,
            epolls: Vec::with_capacity(process.epolls.len()),
            napis: BTreeMap::new(),
            astray: BTreeMap::new(),
            on_no_napi: 0,
            loopback: 0,
        };
        let mut napi_of: BTreeMap<u64, NapiId> = BTreeMap::new();
        for socket in process.sockets.iter().filter(|socket| receives(socket)) {
            match socket.napi {
                Some(id) if known.contains_key(&id) => {
                    *case.napis.entry(id).or_default() += 1;
                    napi_of.insert(socket.inode, id);
                }
                Some(id) => *case.astray.entry(id).or_default() += 1,
                None if socket.is_loopback() => case.loopback += 1,
                None => case.on_no_napi += 1,
            }
        }
        for epoll in &process.epolls {
            let mut napis: BTreeMap<NapiId, usize> = BTreeMap::new();
            let inodes: BTreeSet<u64> = epoll.members.iter().map(|m| m.inode).collect();
            for id in inodes.iter().filter_map(|inode| napi_of.get(inode)) {
                *napis.entry(*id).or_default() += 1;
            }
            case.epolls.push(EpollCase { epoll, napis });
        }
        case
    }

    /// The number of receiving connections, whether or not they have a NAPI.
    pub(super) fn connections(&self) -> usize {
        self.napis.values().chain(self.astray.values()).sum::<usize>() + self.on_no_napi + self.loopback
    }

    /// The union of the CPUs that the process's threads may run on.
    pub(super) fn cpus(&self) -> CpuSet {
        self.process.threads.iter().flat_map(|thread| thread.affinity.iter()).collect()
    }
}

impl EpollCase<'_> {
    /// Whether the epoll prefers busy polling.
    pub(super) fn prefers(&self) -> bool {
        self.epoll.params.is_some_and(|params| params.prefer_busy_poll)
    }
}

/// Returns whether packets arrive at this socket: it is a connection, or a UDP socket that has received a
/// packet. A listening socket receives only handshakes, and its NAPI id is not that of the connections that
/// it will accept.
fn receives(socket: &Socket) -> bool {
    match socket.state {
        SocketState::TcpEstablished => true,
        SocketState::Udp => socket.napi.is_some() || socket.remote.is_some(),
        SocketState::TcpListen | SocketState::TcpOther | SocketState::Other => false,
    }
}

fn not_polled(napi: NapiId, device: &Device) -> NapiDelivered {
    let none = PollCounts::default();
    NapiDelivered {
        napi,
        device: device.id.to_string(),
        interrupt: none,
        timer: none,
        application: none,
        kthread: none,
        by_process: Vec::new(),
        timer_armed: 0,
        timer_expired: 0,
        timer_armed_max: Nanoseconds::ZERO,
        suspended: 0,
    }
}
