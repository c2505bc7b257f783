//! Divides a device: gives requests with different values separate queues.
//!
//! A device is divided in three cases: the policy of its own request is `mix`; two requests with different
//! values would share a queue; or rules for a request's ports already exist, so that an earlier division
//! persists. The parts of a device are contiguous. The first part belongs to no group and uses the main RSS
//! table. For each other part, an RSS context spreads packets over its queues, and rules for the ports of its
//! processes direct packets to it. Requests of sockets and tasks also get rules for their connections,
//! because a client listens on no port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use model::host::{Device, Process, Socket, SocketState};
use model::{
    ChannelKind, FlowMatch, FlowRule, Intent, IpFlow, NicKnob, Offload, PolicyName, QueueIndex, QueueSpan,
    Reason, Setting, SteerTo, Target, Transport, TxQueue, TxQueueKnob,
};

use crate::app_requests::is_of_application;
use crate::budget;
use crate::claim::ResolvedRequest;
use crate::division::{Division, Share};
use crate::index::Index;
use crate::queues_after::QueuesAfter;
use crate::refusal::{Refusal, RefusalKind};
use crate::wanted::Collected;

/// A request that may get queues of a device, with its processes.
pub(crate) struct Claimant<'h> {
    pub(crate) part: usize,
    pub(crate) processes: Vec<&'h Process>,
}

/// Requests with the same values, and what they need, before queues are assigned.
struct Group<'w, 'p> {
    request: &'w ResolvedRequest<'p>,
    parts: Vec<usize>,
    /// What each request of the group needs, in the order of `parts`.
    needs: Vec<Need<'p>>,
    ports: BTreeSet<Port>,
    /// The connections of the group's requests, each with the index of its request.
    connections: BTreeMap<Connection, usize>,
}

impl Group<'_, '_> {
    /// Returns the minimum number of queues for the group: the largest need of a single request, because the
    /// requests share the queues.
    fn need(&self) -> u32 {
        self.needs.iter().map(|need| need.queues).max().unwrap_or(1)
    }

    fn why(&self) -> &str {
        let most = self.needs.iter().rev().max_by_key(|need| need.queues);
        most.map_or("", |need| &need.why)
    }

    /// Returns whether more queues would not help the group.
    fn is_fixed(&self) -> bool {
        self.needs.iter().any(|need| need.fixed)
    }
}

/// How many queues a request needs, why, and whether more would help.
struct Need<'p> {
    intent: &'p Intent,
    queues: u32,
    why: String,
    fixed: bool,
}

/// A port on which a process listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    transport: Transport,
    /// Whether this is an IPv6 port.
    six: bool,
    number: u16,
}

/// A connection, from the point of view of its incoming packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Connection {
    transport: Transport,
    remote: SocketAddr,
    local: SocketAddr,
}

impl Connection {
    /// Returns the connection of a socket; `None` if the socket is not connected or if its packets arrive
    /// through no device.
    fn of(socket: &Socket) -> Option<Self> {
        let transport = match socket.state {
            SocketState::TcpEstablished => Transport::Tcp,
            SocketState::Udp => Transport::Udp,
            SocketState::TcpListen | SocketState::TcpOther | SocketState::Other => return None,
        };
        // Use plain IPv4 addresses, because packets to an IPv4-mapped address are IPv4 packets.
        let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let (remote, local) = socket.remote.zip(socket.local)?;
        (!socket.is_loopback()).then(|| Self { transport, remote: plain(remote), local: plain(local) })
    }

    /// Returns the local port of the connection.
    fn port(self) -> Port {
        Port { transport: self.transport, six: self.local.is_ipv6(), number: self.local.port() }
    }

    /// Returns a match of the connection's packets by addresses and ports.
    fn flow(self) -> Option<FlowMatch> {
        fn whole<A>(connection: Connection, source: A, destination: A) -> IpFlow<A> {
            IpFlow {
                transport: connection.transport,
                source: Some(source),
                destination: Some(destination),
                source_port: Some(connection.remote.port()),
                destination_port: Some(connection.local.port()),
            }
        }
        match (self.remote.ip(), self.local.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Some(FlowMatch::Ip4(whole(self, from, to))),
            (IpAddr::V6(from), IpAddr::V6(to)) => Some(FlowMatch::Ip6(whole(self, from, to))),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
        }
    }
}

/// A divided device, with notes for its requests.
pub(crate) struct Divided {
    pub(crate) division: Division,
    /// Notes, each with the index of its request.
    pub(crate) notes: Vec<(usize, String)>,
}

/// Returns whether the policy of the device's request is `mix`.
pub(crate) fn is_mixed(device: &Device, requests: &[ResolvedRequest<'_>]) -> bool {
    requests.iter().any(|request| of_device(request, device) && request.intent.policy == PolicyName::Mix)
}

fn of_device(request: &ResolvedRequest<'_>, device: &Device) -> bool {
    matches!(&request.intent.target, Target::Device(name) if name == device.id.name.as_str())
}

/// Returns whether the device is already divided: rules for a claimant's ports or connections lead to queues
/// outside the main RSS table.
pub(crate) fn is_divided_already(
    device: &Device,
    claimants: &[Claimant<'_>],
    requests: &[ResolvedRequest<'_>],
) -> bool {
    let Some(rules) = device.flow_rules.as_ref().filter(|rules| !rules.is_empty()) else { return false };
    let own: BTreeSet<FlowMatch> =
        claimants.iter().flat_map(|claimant| flows(claimant, &requests[claimant.part])).collect();
    let spread: BTreeSet<u32> = device.rss.iter().flat_map(|rss| rss.table.iter().copied()).collect();
    rules.iter().filter(|rule| rule.flow.is_some_and(|flow| own.contains(&flow))).any(|rule| match rule.to {
        SteerTo::Queue(queue) => !spread.contains(&queue.0),
        SteerTo::Context(queues) => (queues.first..=queues.last()).all(|queue| !spread.contains(&queue)),
        SteerTo::Drop | SteerTo::Other => false,
    })
}

/// Divides a device between claimants. Those with the same values as the device's own request share the
/// remaining queues.
///
/// # Errors
/// [`RefusalKind::Conflict`] if there are too few queues or rules, if the driver cannot match packets, or if
/// a request's packets cannot be distinguished. The refusal has the nearest plan that works.
pub(crate) fn divide(
    device: &Device,
    claimants: &[Claimant<'_>],
    requests: &[ResolvedRequest<'_>],
    index: &Index<'_>,
    after: &QueuesAfter,
) -> Result<Divided, Refusal> {
    let mut notes = Vec::new();
    let own = requests.iter().find(|request| of_device(request, device));
    let mut groups: Vec<Group<'_, '_>> = Vec::new();
    for claimant in claimants {
        let request = &requests[claimant.part];
        if own.is_some_and(|own| request.shares_queues_with(own)) {
            continue;
        }
        let ports = ports_of(claimant, request);
        let connections = connections_of(claimant, request, device, index);
        if is_of_sockets(request) && ports.is_empty() && connections.is_empty() {
            let none = "none of its sockets listens on a port or is connected to another host";
            notes.push((claimant.part, no_own_queues(device, none)));
            continue;
        }
        let need = need(claimant, request, index);
        match groups.iter_mut().find(|group| group.request.shares_queues_with(request)) {
            Some(group) => {
                group.parts.push(claimant.part);
                group.ports.extend(ports);
                group.connections.extend(connections);
                group.needs.push(need);
            }
            None => {
                let parts = vec![claimant.part];
                groups.push(Group { request, parts, needs: vec![need], ports, connections });
            }
        }
    }
    let there = device.ordinary_rx_queues(after.rx(device));
    bound_applications(device, there, &mut groups, &mut notes);
    check(device, &groups, index)?;
    drop_connections_on_ports(device, &mut groups, &mut notes);
    drop_connections_beyond_the_limit(device, &mut groups, claimants, &mut notes);
    // Drop groups without a rule: no packet would reach their queues.
    groups.retain(|group| !group.ports.is_empty() || !group.connections.is_empty());
    let contexts = device.rss_contexts.is_some();
    let needed: u32 = groups.iter().map(Group::need).sum();
    if needed >= there {
        return Err(too_few(device, &groups, after));
    }
    let fair = fair_share(there, groups.len());
    let mut left = there - needed - 1;
    let mut widths = Vec::with_capacity(groups.len());
    for group in &groups {
        let more =
            if group.is_fixed() || !contexts { 0 } else { fair.saturating_sub(group.need()).min(left) };
        left -= more;
        widths.push(group.need() + more);
    }
    let rest = QueueSpan { first: 0, count: left + 1 };
    let mut first = rest.count;
    let mut shares = Vec::with_capacity(groups.len());
    for (group, count) in groups.into_iter().zip(widths) {
        let queues = QueueSpan { first, count };
        first += count;
        let to = if count > 1 { SteerTo::Context(queues) } else { SteerTo::Queue(QueueIndex(queues.first)) };
        let connections = group.connections.keys().filter_map(|connection| connection.flow());
        let flows = group.ports.iter().map(|port| flow(*port)).chain(connections);
        let rules = flows.map(|flow| FlowRule { flow, to }).collect();
        shares.push(Share { parts: group.parts, queues, rules, origin: group.request.intent.origin.clone() });
    }
    Ok(Divided { division: Division { device: device.id, rest, shares }, notes })
}

/// Returns the number of queues of each group if all groups and the other packets get equal numbers.
fn fair_share(there: u32, groups: usize) -> u32 {
    there / (u32::try_from(groups).unwrap_or(u32::MAX).saturating_add(1))
}

/// Limits the queues of applications: the request of an application gets at most a fair share, which the
/// application's threads then share.
fn bound_applications(
    device: &Device,
    there: u32,
    groups: &mut [Group<'_, '_>],
    notes: &mut Vec<(usize, String)>,
) {
    let fair = fair_share(there, groups.len()).max(1);
    for group in groups {
        for (need, part) in group.needs.iter_mut().zip(&group.parts) {
            if is_of_application(need.intent) && need.queues > fair {
                let wants = need.queues;
                notes.push((
                    *part,
                    format!(
                        "{}: {wants} threads of it share {fair} of {there} queues, the fair share of a request of an application",
                        device.id
                    ),
                ));
                need.queues = fair;
            }
        }
    }
}

/// Returns whether applications made the request for their sockets. Such a request is met as far as possible,
/// and never refused for lack of queues.
pub(crate) fn is_of_sockets(request: &ResolvedRequest<'_>) -> bool {
    matches!(request.intent.target, Target::Epolls(..))
}

/// Returns the note on a request that shares its queues with other requests.
pub(crate) fn no_own_queues(device: &Device, why: impl std::fmt::Display) -> String {
    format!("it gets no dedicated queues on {}: {why}", device.id)
}

/// Drops connections that arrive on a port for which there is a rule. In the port's group, they need no
/// second rule. In another group, two rules would match, and which one applies would depend on the NIC.
fn drop_connections_on_ports(
    device: &Device,
    groups: &mut [Group<'_, '_>],
    notes: &mut Vec<(usize, String)>,
) {
    let ports: BTreeMap<Port, usize> = groups
        .iter()
        .enumerate()
        .flat_map(|(at, group)| group.ports.iter().map(move |port| (*port, at)))
        .collect();
    let mut others: BTreeMap<(usize, Port), usize> = BTreeMap::new();
    for (at, group) in groups.iter_mut().enumerate() {
        group.connections.retain(|connection, part| match ports.get(&connection.port()) {
            None => true,
            Some(of) => {
                if *of != at {
                    *others.entry((*part, connection.port())).or_default() += 1;
                }
                false
            }
        });
    }
    notes.extend(others.into_iter().map(|((part, port), count)| {
        let on = port.number;
        (
            part,
            no_own_queues(
                device,
                format!("{count} connection(s) arrive on port {on}, whose rule is for another request"),
            ),
        )
    }));
}

/// Drops connections that exceed the number of rules that netpolicy adds to a device. The number is divided
/// equally among users; users with fewer connections leave the rest of their share to the others. A user's
/// connections that already have a rule are kept first.
fn drop_connections_beyond_the_limit(
    device: &Device,
    groups: &mut [Group<'_, '_>],
    claimants: &[Claimant<'_>],
    notes: &mut Vec<(usize, String)>,
) {
    let owner = |part: usize| {
        let claimant = claimants.iter().find(|claimant| claimant.part == part);
        claimant.and_then(|claimant| claimant.processes.first()).map(|process| process.uid)
    };
    let placed: BTreeSet<FlowMatch> =
        device.flow_rules.iter().flatten().filter_map(|rule| rule.flow).collect();
    let ports: usize = groups.iter().map(|group| group.ports.len()).sum();
    let mut of_users: BTreeMap<Option<u32>, Vec<(bool, Connection)>> = BTreeMap::new();
    for (connection, part) in groups.iter().flat_map(|group| &group.connections) {
        let is_new = connection.flow().is_none_or(|flow| !placed.contains(&flow));
        of_users.entry(owner(*part)).or_default().push((is_new, *connection));
    }
    let mut of_users: Vec<_> = of_users.into_values().collect();
    of_users.sort_by_key(Vec::len);
    let mut left = FlowRule::OF_A_DEVICE_MAX.saturating_sub(ports);
    let mut kept: BTreeSet<Connection> = BTreeSet::new();
    let users = of_users.len();
    for (before, mut connections) in of_users.into_iter().enumerate() {
        connections.sort_unstable();
        connections.truncate(left / (users - before));
        left -= connections.len();
        kept.extend(connections.into_iter().map(|(_, connection)| connection));
    }
    let mut left_out: BTreeMap<usize, usize> = BTreeMap::new();
    for group in groups {
        group.connections.retain(|connection, part| {
            let is_kept = kept.contains(connection);
            *left_out.entry(*part).or_default() += usize::from(!is_kept);
            is_kept
        });
    }
    let max = FlowRule::OF_A_DEVICE_MAX;
    notes.extend(left_out.into_iter().filter(|(_, count)| *count > 0).map(|(part, count)| {
        let why = format!(
            "{count} of its connections get no rule, because netpolicy adds at most {max} per device, as many for each user"
        );
        (part, format!("{}: {why}", device.id))
    }));
}

fn need<'p>(claimant: &Claimant<'_>, request: &ResolvedRequest<'p>, index: &Index<'_>) -> Need<'p> {
    let needs = |queues, why, fixed| Need { intent: request.intent, queues, why, fixed };
    if let Some(queues) = request.intent.queues {
        return needs(queues, format!("`queues = {queues}` at {}", request.intent.origin), true);
    }
    if !request.of_epoll().prefer_busy_poll {
        return needs(1, "its packets need a dedicated queue".to_owned(), false);
    }
    let pollers = |process: &&Process| {
        let threads = index.processes.get(&process.id.pid).map_or(0, |whole| whole.threads.len());
        budget::napi_pollers(process, threads)
    };
    let waits: usize = claimant.processes.iter().map(pollers).sum();
    let waits = u32::try_from(waits).unwrap_or(u32::MAX).max(1);
    needs(waits, format!("{waits} thread(s) busy-wait, each on its own NAPI"), true)
}

/// Checks that the driver and the group's packets allow a division.
fn check(device: &Device, groups: &[Group<'_, '_>], index: &Index<'_>) -> Result<(), Refusal> {
    let names = || groups.iter().map(|group| group.request.sentence()).collect::<Vec<_>>();
    let refuse = |message: String| {
        let refusal = Refusal::new(RefusalKind::Conflict, device.id, message);
        names().into_iter().fold(refusal, Refusal::because)
    };
    let same = "the same policy for every request that receives on it, or separate devices";
    if groups.is_empty() {
        return Ok(());
    }
    if device.rx_queues.iter().any(|queue| index.queues_of_napi(queue.id) != 1) {
        return Err(
            refuse("its queues cannot be divided: some have no NAPI or share one".to_owned()).nearest(same)
        );
    }
    for group in groups {
        if group.ports.is_empty() && group.connections.is_empty() {
            let message = format!(
                "packets for {} cannot be distinguished from others: it listens on no port{}",
                group.request.intent.target,
                if by_connection(group.request) { ", and has no connection to another host" } else { "" }
            );
            return Err(refuse(message).nearest("`match = { port = N }`, or the same policy as the rest"));
        }
        if group.need() > 1 && device.rss_contexts.is_none() {
            let message = format!(
                "{} needs {} queues ({}), and without RSS contexts a rule selects only one",
                group.request.intent.target,
                group.need(),
                group.why()
            );
            return Err(refuse(message).nearest(format!(
                "`queues = 1` for {}; or policy bulk, which polls in softirq",
                beyond(group, 1)
            )));
        }
    }
    let rules: usize = groups.iter().map(|group| group.ports.len()).sum();
    if rules > FlowRule::OF_A_DEVICE_MAX {
        let message = format!(
            "dividing it takes {rules} rules; netpolicy adds at most {} per device",
            FlowRule::OF_A_DEVICE_MAX
        );
        return Err(refuse(message)
            .nearest("a request for the device with the most common policy: its services need no rules"));
    }
    let mut of_port: BTreeMap<Port, &Group<'_, '_>> = BTreeMap::new();
    for group in groups {
        for port in &group.ports {
            if let Some(other) = of_port.insert(*port, group) {
                let (one, two) = (&other.request.intent.target, &group.request.intent.target);
                return Err(refuse(format!("{one} and {two} listen on the same port ({})", port.number))
                    .nearest(same));
            }
        }
    }
    Ok(())
}

/// Lists the requests of a group that need more than `queues` queues.
fn beyond(group: &Group<'_, '_>, queues: u32) -> String {
    let more = group.needs.iter().filter(|need| need.queues > queues);
    let targets: BTreeSet<String> = more.map(|need| need.intent.target.to_string()).collect();
    targets.into_iter().collect::<Vec<_>>().join(" and ")
}

/// Creates the refusal for too few queues: says what is missing, and what would work.
fn too_few(device: &Device, groups: &[Group<'_, '_>], after: &QueuesAfter) -> Refusal {
    let there = device.ordinary_rx_queues(after.rx(device));
    let needed: u32 = groups.iter().map(Group::need).sum();
    let mut refusal = Refusal::new(RefusalKind::Conflict, device.id, "the device has too few queues")
        .because(format!(
            "{} {} {there} receive queues, one of which stays for all other packets",
            device.id,
            after.has(device)
        ));
    let mut nearest = Vec::new();
    if let Some((kind, count)) = more_channels(device, needed.saturating_add(1)) {
        nearest.push(format!("`settings = {{ {} = {count} }}` for device {}", kind.as_str(), device.id));
    }
    for group in groups {
        let (target, policy) = (&group.request.intent.target, group.request.intent.policy);
        refusal = refusal.because(format!(
            "{target} (policy {policy}): {} queue(s): {}",
            group.need(),
            group.why()
        ));
    }
    // Propose that the group that needs the most queues gives one up; of several such groups, the first one.
    if let Some(most) = groups.iter().rev().max_by_key(|group| group.need()) {
        let left = there.saturating_sub(1).saturating_sub(needed - most.need());
        let are = match left {
            0 => "none are left".to_owned(),
            1 => "1 is left".to_owned(),
            many => format!("{many} are left"),
        };
        let (target, policy) = (&most.request.intent.target, most.request.intent.policy);
        refusal.message = format!("needs {} queues for {policy} ({target}), {are}", most.need());
        if left > 0 {
            nearest.push(format!(
                "`queues = {left}` for {}, whose threads then share NAPIs",
                beyond(most, left)
            ));
        }
    }
    if nearest.is_empty() {
        refusal.nearest("the same policy for the device and every request that receives on it")
    } else {
        refusal.nearest(nearest.join("; or "))
    }
}

/// Returns the number of channels that gives a device this many receive queues.
fn more_channels(device: &Device, queues: u32) -> Option<(ChannelKind, u32)> {
    let channels = device.channels?;
    [(ChannelKind::Combined, channels.rx.current), (ChannelKind::Rx, channels.combined.current)]
        .into_iter()
        .map(|(kind, others)| (kind, queues.saturating_sub(others)))
        .find(|(kind, count)| *count > 0 && *count <= channels.of(*kind).max)
}

fn ports_of(claimant: &Claimant<'_>, request: &ResolvedRequest<'_>) -> BTreeSet<Port> {
    let mut found: BTreeSet<Port> = claimant.processes.iter().flat_map(|process| ports(process)).collect();
    if let Target::Service(_, matching) = &request.intent.target
        && let (Some(number), true) = (matching.port, found.is_empty())
    {
        found.extend([false, true].map(|six| Port { transport: Transport::Tcp, six, number }));
    }
    found
}

/// Returns whether a request gets rules for its connections. A service is matched by its ports instead,
/// because rules for each of its connections would fill a NIC's table.
pub(crate) fn by_connection(request: &ResolvedRequest<'_>) -> bool {
    matches!(request.intent.target, Target::Epolls(..) | Target::Task(_))
}

/// Returns the connections of a request whose packets are known to arrive on a device.
fn connections_of(
    claimant: &Claimant<'_>,
    request: &ResolvedRequest<'_>,
    device: &Device,
    index: &Index<'_>,
) -> BTreeMap<Connection, usize> {
    if !by_connection(request) {
        return BTreeMap::new();
    }
    let elsewhere = |socket: &&Socket| {
        let napi = socket.napi.and_then(|id| index.napis.get(&id));
        napi.is_some_and(|napi| napi.device.id != device.id)
    };
    let sockets = claimant.processes.iter().flat_map(|process| &process.sockets);
    let here = sockets.filter(|socket| !elsewhere(socket));
    here.filter_map(Connection::of).map(|connection| (connection, claimant.part)).collect()
}

/// Returns the flows for which a claimant could get ntuple rules.
fn flows(claimant: &Claimant<'_>, request: &ResolvedRequest<'_>) -> Vec<FlowMatch> {
    let sockets = claimant.processes.iter().flat_map(|process| &process.sockets);
    let connections = sockets.filter(|_| by_connection(request)).filter_map(Connection::of);
    let ports = claimant.processes.iter().flat_map(|process| ports(process)).map(flow);
    ports.chain(connections.filter_map(Connection::flow)).collect()
}

/// Returns the ports on which a process listens. An IPv6 socket bound to any address receives packets of both
/// IP versions.
fn ports(process: &Process) -> impl Iterator<Item = Port> {
    process.sockets.iter().flat_map(|socket| {
        let transport = match socket.state {
            SocketState::TcpListen => Some(Transport::Tcp),
            SocketState::Udp if socket.remote.is_none() => Some(Transport::Udp),
            SocketState::Udp | SocketState::TcpEstablished | SocketState::TcpOther | SocketState::Other => {
                None
            }
        };
        let local =
            transport.zip(socket.local).filter(|(_, local)| local.port() > 0 && !local.ip().is_loopback());
        let versions = local.map_or([None, None], |(_, local)| match local.ip() {
            std::net::IpAddr::V4(_) => [Some(false), None],
            std::net::IpAddr::V6(address) if address.is_unspecified() => [Some(false), Some(true)],
            std::net::IpAddr::V6(_) => [None, Some(true)],
        });
        versions.into_iter().flatten().filter_map(move |six| {
            local.map(|(transport, local)| Port { transport, six, number: local.port() })
        })
    })
}

fn flow(port: Port) -> FlowMatch {
    fn to<A>(port: Port) -> IpFlow<A> {
        IpFlow { destination_port: Some(port.number), ..IpFlow::all(port.transport) }
    }
    if port.six { FlowMatch::Ip6(to(port)) } else { FlowMatch::Ip4(to(port)) }
}

/// Returns whether a rule matches a single connection.
fn is_connection(flow: FlowMatch) -> bool {
    match flow {
        FlowMatch::Ip4(flow) => flow.source_port.is_some(),
        FlowMatch::Ip6(flow) => flow.source_port.is_some(),
        FlowMatch::Ether(_) => false,
    }
}

/// Collects the settings that a division needs.
pub(crate) fn want(division: &Division, index: &Index<'_>, collected: &mut Collected) -> Result<(), Refusal> {
    let Some(&device) = index.devices.get(&division.device) else { return Ok(()) };
    let id = device.id;
    let Some(first) = division.shares.first() else { return Ok(()) };
    let reason = |why: String, origin: &str| Reason::new(why, format!("{origin}: queues are divided"));
    // Request ntuple filters even if they are on, because another request may turn them off.
    if device.offloads.contains_key(&Offload::Ntuple) {
        let why = "rules for the services' ports need this feature".to_owned();
        collected
            .want(Setting::Nic(id, NicKnob::Offload(Offload::Ntuple, true)), reason(why, &first.origin))?;
    }
    if let Some(rss) = &device.rss {
        let why = format!("all other packets go to queues {}", division.rest);
        let table = Setting::Nic(id, NicKnob::RssTable(division.rest.table(rss.table.len())));
        collected.want(table, reason(why, &first.origin))?;
    }
    for share in &division.shares {
        if share.queues.count > 1 {
            let why = format!("packets that rules direct here are spread over queues {}", share.queues);
            collected.want(
                Setting::Nic(id, NicKnob::RssContext(share.queues, true)),
                reason(why, &share.origin),
            )?;
        }
        for rule in &share.rules {
            let what = if is_connection(rule.flow) { "of this connection" } else { "for this port" };
            let why = format!("packets {what} go only to queues {}", share.queues);
            collected.want(
                Setting::Nic(id, NicKnob::FlowRule(rule.flow, Some(rule.to))),
                reason(why, &share.origin),
            )?;
        }
    }
    let why = "XPS keeps transmit queues separate as well: a flow leaves on the queue on which it arrives";
    for (rx, tx) in device.rx_queues.iter().zip(&device.tx_queues).filter(|_| device.tx_queues.len() > 1) {
        let queue = TxQueue { device: id, index: tx.index };
        let setting = Setting::TxQueue(queue, TxQueueKnob::XpsRxQueues(vec![rx.id.index]));
        collected.want(setting, reason(why.to_owned(), &first.origin))?;
    }
    Ok(())
}
