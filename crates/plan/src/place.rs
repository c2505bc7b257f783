//! Finds the objects of each request: queues, interrupts, processes, epolls. Placement is a deterministic
//! greedy assignment; [`crate::claim`] decides which request owns each object.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::host::{Device, Epoll, Process, Socket, SocketState};
use model::policy::Match;
use model::{
    DeliveryMode, DeviceId, EpollId, EpollParams, Host, Intent, Mechanism, Pid, Policy, RecipeValue, RingId,
    SocketId, Target,
};

use crate::budget;
use crate::claim::{self, ResolvedRequest};
use crate::cpu_locality::{self, NearCores};
use crate::divide::{self, Claimant};
use crate::division::Division;
use crate::index::Index;
use crate::listeners::{Listeners, Role};
use crate::objects::{check_queues, objects};
use crate::other_netns::{Path, is_in_other_netns, receives_here};
use crate::parameters;
use crate::placed::{PlacedProcess, PlacedQueue, ServiceState};
use crate::placement::{PlacedRequest, Placement};
use crate::queue_claims::QueueClaims;
use crate::queue_object::Objects;
use crate::queues_after::QueuesAfter;
use crate::recipe;
use crate::recreated_queues::recreated_queues;
use crate::refusal::{Refusal, RefusalKind};
use crate::resolved::Resolved;
use crate::share::EpollShares;

/// Finds the objects of every request.
///
/// # Errors
/// A [`Refusal`] if a device or process does not exist, a policy has no recipe, values contradict each other
/// or exceed the budget, or two requests want different values for one object. Either everything is placed or
/// nothing.
pub fn place(policy: &Policy, host: &Host, resolved: &Resolved) -> Result<Placement, Refusal> {
    let index = Index::new(host);
    let mut parts = Vec::with_capacity(policy.intents.len());
    for (part, intent) in policy.intents.iter().enumerate() {
        let circumstances = recipe::circumstances::of_request(part, policy, &index, resolved);
        let delivery = recipe::choose(intent, &policy.recipes, &circumstances)?;
        let params = recipe::params(intent, delivery.mode, &policy.recipes, &circumstances);
        let params = parameters::with_overrides(intent, delivery.mode, params)?;
        let mut notes = notes_on_cpus(intent, host)?;
        notes.extend(recipe::notes(intent, &delivery, &policy.recipes, &circumstances));
        notes.extend(resolved.notes_of(part).iter().cloned());
        let (queues, processes, objects) = (Vec::new(), Vec::new(), None);
        let (intent, runs) = (intent.clone(), ServiceState::Yes);
        parts.push(PlacedRequest {
            intent,
            circumstances,
            delivery,
            params,
            queues,
            processes,
            objects,
            notes,
            runs,
        });
    }
    let requests: Vec<ResolvedRequest<'_>> = policy
        .intents
        .iter()
        .zip(&parts)
        .map(|(intent, part)| ResolvedRequest {
            intent,
            delivery: part.delivery.mode,
            threading: part.delivery.mode.threading(),
            params: part.params,
        })
        .collect();

    let after = recreated_queues(&parts, &policy.recipes, policy.disruptive, &index);
    let mut queues = QueueClaims::new(&index, &after);
    let mut owned: BTreeMap<Pid, usize> = BTreeMap::new();
    let shares = EpollShares::of(policy, &index);
    let listeners = Listeners::new(&host.processes);
    let owners = owners_of_processes(policy, resolved, (&index, &listeners), &requests, &mut parts)?;
    let mut divisions = Vec::new();
    let of_sockets = shares.shares.iter().map(|(part, share)| (*part, share));
    let rests = owners.iter().map(|(part, process)| (*part, shares.rest(process)));
    let claiming: Vec<(usize, &Process)> = of_sockets.chain(rests).collect();
    for (device, claimants) in queues.to_divide(&claiming, &requests, &index, &mut parts) {
        let division = divided(device, claimants, &requests, (&index, &after), &mut parts)?;
        if after.remakes(device.id) {
            // The new queues do not exist yet, so only their number could be checked.
            queues.keep_back(device.id);
            continue;
        }
        queues.give(&division, &mut parts);
        divisions.push(division);
    }
    for (part, share) in &shares.shares {
        queues.claim_for_process(*part, share, &requests, &mut parts[*part])?;
        let placed = placed_process(share, &mut parts[*part])?;
        parts[*part].processes.push(placed);
    }
    for (part, process) in owners {
        owned.insert(process.id.pid, part);
        // A process that passes its connections to others receives no packet that would show a queue, so it
        // claims none.
        let hands_on = listeners.role(process) == Role::HandsOn;
        let process = shares.rest(process);
        if !hands_on {
            queues.claim_for_process(part, process, &requests, &mut parts[part])?;
        }
        let placed = placed_process(process, &mut parts[part])?;
        parts[part].processes.push(placed);
    }
    for (part, intent) in policy.intents.iter().enumerate() {
        if let Target::Device(name) = &intent.target {
            let device = device_named(name, intent, host)?;
            // The lower devices have their own requests.
            if host.is_upper(device) {
                continue;
            }
            queues.claim_for_device(part, device, &requests, &mut parts[part])?;
        }
    }
    note_those_without_epolls(&index, &mut parts);
    place_epolls_of_devices(&index, &queues, &owned, &requests, &mut parts)?;
    queues.settle(&mut parts);
    for part in &parts {
        let processes: Vec<&Process> =
            part.processes.iter().filter_map(|p| index.processes.get(&p.id.pid).copied()).collect();
        // Skip the budget if a kernel feature is missing: that is refused later, with an alternative, and no
        // budget could provide the feature.
        let busy = part.delivery.mode == DeliveryMode::ThreadedBusy && !host.capabilities.napi_threaded_busy;
        if busy || part.params.epoll.events_only && !host.capabilities.epoll_events_only {
            continue;
        }
        let napis = napis_after(part, host, &after);
        budget::check_polling(&part.intent, part.delivery.mode, &processes, napis)?;
    }
    let elsewhere: Vec<Vec<String>> = parts.iter().map(|part| set_by_others(part, &parts)).collect();
    for (part, elsewhere) in parts.iter_mut().zip(elsewhere) {
        note_halves(part, &elsewhere, host);
    }
    let recipes = Arc::clone(&policy.recipes);
    let (disruptive, inferred) = (policy.disruptive, policy.inferred);
    let placement = Placement { parts, divisions, recipes, disruptive, inferred, queues_after: after };
    laid_out(placement, &index)
}

/// Divides a device. If a `mix` device has too few queues, requests of sockets get none: the latest requests
/// are dropped first, with a note.
fn divided(
    device: &Device,
    mut claimants: Vec<Claimant<'_>>,
    requests: &[ResolvedRequest<'_>],
    (index, after): (&Index<'_>, &QueuesAfter),
    parts: &mut [PlacedRequest],
) -> Result<Division, Refusal> {
    let mut without = Vec::new();
    loop {
        let refusal = match divide::divide(device, &claimants, requests, index, after) {
            Ok(divided) => {
                for (part, note) in divided.notes.into_iter().chain(without) {
                    parts[part].notes.push(note);
                }
                return Ok(divided.division);
            }
            Err(refusal) => refusal,
        };
        let of_sockets = |claimant: &Claimant<'_>| divide::is_of_sockets(&requests[claimant.part]);
        let last = claimants.iter().rposition(of_sockets).filter(|_| divide::is_mixed(device, requests));
        let Some(last) = last else { return Err(refusal) };
        let claimant = claimants.remove(last);
        without.push((claimant.part, divide::no_own_queues(device, &refusal.message)));
    }
}

/// Returns the number of NAPIs that a part sets. For a device that is recreated, this is its future number of
/// queues.
fn napis_after(part: &PlacedRequest, host: &Host, after: &QueuesAfter) -> usize {
    let device = match &part.intent.target {
        Target::Device(name) => host.device_named(name).filter(|device| after.remakes(device.id)),
        Target::Devices(..) | Target::Service(..) | Target::Task(_) | Target::Epolls(..) => None,
    };
    match device {
        Some(device) => usize::try_from(after.rx(device)).unwrap_or(usize::MAX),
        None => part.queues.len(),
    }
}

/// Gives the request of each device its objects, if the request or its recipe has a layout. The objects
/// include all queues of the device, except those whose own request names CPUs.
fn laid_out(mut placement: Placement, index: &Index<'_>) -> Result<Placement, Refusal> {
    for at in 0..placement.parts.len() {
        let part = &placement.parts[at];
        let Target::Device(name) = &part.intent.target else { continue };
        let Some(device) = index.host.device_named(name).filter(|device| !index.host.is_upper(device)) else {
            continue;
        };
        let there = recipe::circumstances::of_device(device);
        let recipes = placement.recipes.under(part.intent.policy, &there);
        let of_recipe = recipes.get(&Mechanism::Layout).and_then(|entry| match &entry.value {
            RecipeValue::Layout(layout) => Some(layout),
            _ => None,
        });
        let Some(layout) = part.intent.layout.as_ref().or(of_recipe) else { continue };
        if placement.queues_after.remakes(device.id) {
            if let Some(layout) = &part.intent.layout {
                check_queues(layout, device, &placement.queues_after)
                    .map_err(|refusal| refusal.because(format!("requested at {}", part.intent.origin)))?;
            }
            continue;
        }
        let allowed = cpu_locality::allowed(&part.intent, index.host);
        let own = |(other, part): &(usize, &PlacedRequest)| *other == at || part.intent.cpus.is_none();
        let mut queues: Vec<&PlacedQueue> = placement
            .parts
            .iter()
            .enumerate()
            .filter(own)
            .flat_map(|(_, part)| &part.queues)
            .filter(|placed| placed.queue.device == device.id)
            .collect();
        queues.sort_by_key(|placed| placed.queue);
        let near = NearCores::new(device, &allowed, index.host);
        let made = match objects(layout, device, &queues, near, &allowed) {
            // Refuse only an explicit layout. A recipe's layout is omitted, with a note, if there are too few
            // CPUs.
            Err(refusal) if part.intent.layout.is_none() => {
                let note = format!("policy {}: {refusal}: interrupts are not moved", part.intent.policy);
                placement.parts[at].notes.push(note);
                continue;
            }
            made => {
                made.map_err(|refusal| refusal.because(format!("requested at {}", part.intent.origin)))?
            }
        };
        let part = &mut placement.parts[at];
        part.notes.extend(made.notes.iter().cloned());
        let without = queues_without_irq(&made, index);
        if part.intent.layout.is_some() && without > 0 {
            part.notes
                .push(format!("{without} queue(s) have no known interrupt: their affinity is unchanged"));
        }
        part.objects = Some(made);
    }
    Ok(placement)
}

fn queues_without_irq(objects: &Objects, index: &Index<'_>) -> usize {
    let rx = objects.objects.iter().flat_map(|object| &object.rx);
    rx.filter(|queue| index.napi_of(**queue).is_none_or(|napi| napi.irq.is_none())).count()
}

/// Adds notes on the service's processes that are not set, because they only hold sockets for others or are
/// in another namespace.
fn note_left_out(holders: Vec<String>, away: &[&Process], part: &mut PlacedRequest) {
    let more = holders.len().saturating_sub(ELSEWHERE_MAX);
    part.notes.extend(holders.into_iter().take(ELSEWHERE_MAX));
    if more > 0 {
        part.notes.push(format!("and {more} more likewise"));
    }
    let others_away = away.len().saturating_sub(ELSEWHERE_MAX);
    for process in away.iter().take(ELSEWHERE_MAX) {
        let path = Path::of(process);
        part.notes.push(format!(
            "{}{} is in another network namespace and is left alone: {}; {} (`netpolicy --netns pid:{} …` works there)",
            process.id,
            process.container.as_ref().map(|name| format!(" (container {name})")).unwrap_or_default(),
            path.why(),
            path.way(),
            process.id.pid
        ));
    }
    if others_away > 0 {
        part.notes.push(format!("and {others_away} more likewise"));
    }
}

/// Adds a note that no running process of a service was found. `left_out` says whether running processes were
/// left out.
fn note_absent(
    left_out: bool,
    unjudged: Option<&(usize, String)>,
    index: &Index<'_>,
    part: &mut PlacedRequest,
) {
    if left_out {
        part.runs = ServiceState::No;
        return;
    }
    let none =
        format!("no process of this service runs{}: nothing is set until one does", by(&part.intent.target));
    let (runs, note) = match unjudged {
        None => (ServiceState::No, none),
        // netpolicy may inspect all processes here, so it would have found a process of the service.
        Some((processes, first)) if index.host.capabilities.ptrace => {
            (ServiceState::No, format!("{none}; {processes} could not be inspected ({first})"))
        }
        Some((processes, first)) => (
            ServiceState::NotKnown,
            format!(
                "whether a process of this service runs{} is not known: {processes} could not be inspected \
                 ({first})",
                by(&part.intent.target)
            ),
        ),
    };
    part.runs = runs;
    part.notes.push(note);
}

/// Assigns each process to a part: the most specific request that matches the process.
fn owners_of_processes<'h>(
    policy: &Policy,
    resolved: &Resolved,
    (index, listeners): (&Index<'h>, &Listeners<'h>),
    requests: &[ResolvedRequest<'_>],
    parts: &mut [PlacedRequest],
) -> Result<Vec<(usize, &'h Process)>, Refusal> {
    let mut owners: BTreeMap<Pid, (u8, usize)> = BTreeMap::new();
    for (part, intent) in policy.intents.iter().enumerate() {
        let (rank, pids) = match &intent.target {
            Target::Device(_) | Target::Devices(..) | Target::Epolls(..) => continue,
            Target::Service(..) => (1, resolved.pids_of(part)),
            Target::Task(pid) => (2, BTreeSet::from([*pid])),
        };
        let (pids, away) = match &intent.target {
            Target::Service(..) => without_elsewhere(pids, index),
            _ => (pids, Vec::new()),
        };
        let (pids, holders) = match &intent.target {
            Target::Service(..) => without_holders(pids, index, listeners),
            _ => (pids, Vec::new()),
        };
        let left_out = !away.is_empty() || !holders.is_empty();
        note_left_out(holders, &away, &mut parts[part]);
        if pids.is_empty() {
            note_absent(left_out, resolved.unjudged_of(part), index, &mut parts[part]);
        }
        for pid in pids {
            let Some(&(other_rank, other)) = owners.get(&pid) else {
                owners.insert(pid, (rank, part));
                continue;
            };
            if rank > other_rank {
                owners.insert(pid, (rank, part));
            } else if rank == other_rank {
                let (theirs, ours) = (&requests[other], &requests[part]);
                let same = theirs.params == ours.params && theirs.of_kthread() == ours.of_kthread();
                if !same || theirs.cpus() != ours.cpus() {
                    let process = index.processes.get(&pid).map(|p| p.id.to_string());
                    let object = process.unwrap_or_else(|| format!("task {pid}"));
                    return Err(claim::conflict(object, theirs, ours));
                }
                parts[part].notes.push(format!("task {pid} already belongs to {}", theirs.intent.origin));
            }
        }
    }
    let mut found = Vec::with_capacity(owners.len());
    for (pid, (_, part)) in owners {
        found.push((part, process_with(pid, requests[part].intent, index)?));
    }
    Ok(found)
}

/// Returns the processes of a service except those that only hold its listener open, and a note on each of
/// these.
fn without_holders(
    pids: BTreeSet<Pid>,
    index: &Index<'_>,
    listeners: &Listeners<'_>,
) -> (BTreeSet<Pid>, Vec<String>) {
    let mut notes = Vec::new();
    let mut receive = BTreeSet::new();
    for pid in pids {
        let process = index.processes.get(&pid);
        let note = process.and_then(|process| match listeners.role(process) {
            Role::HoldsForUnit => Some(format!(
                "{} holds the listener of a socket unit and is skipped: the unit's service receives",
                process.id
            )),
            Role::HoldsFor(child) => {
                let child = index.processes.get(&child)?;
                Some(format!(
                    "{} only holds open the listener on which {} accepts, and is skipped",
                    process.id, child.id
                ))
            }
            Role::Receives | Role::HandsOn => None,
        });
        match note {
            Some(note) => notes.push(note),
            None => drop(receive.insert(pid)),
        }
    }
    (receive, notes)
}

/// The maximum number of processes in other namespaces to name individually.
const ELSEWHERE_MAX: usize = 3;

/// Returns the processes of a service without those in other network namespaces that receive on no device of
/// this one, and separately the processes that were left out.
fn without_elsewhere<'h>(pids: BTreeSet<Pid>, index: &Index<'h>) -> (BTreeSet<Pid>, Vec<&'h Process>) {
    let mut away = Vec::new();
    let mut here = BTreeSet::new();
    for pid in pids {
        match index.processes.get(&pid) {
            Some(&process) if is_in_other_netns(process, index.host) && !receives_here(process, index) => {
                away.push(process);
            }
            _ => drop(here.insert(pid)),
        }
    }
    (here, away)
}

/// Formats the criteria of a service in parentheses.
fn by(target: &Target) -> String {
    match target {
        Target::Service(_, matching) if *matching != Match::default() => format!(" ({matching})"),
        Target::Service(..)
        | Target::Device(_)
        | Target::Devices(..)
        | Target::Task(_)
        | Target::Epolls(..) => String::new(),
    }
}

fn process_with<'h>(pid: Pid, intent: &Intent, index: &Index<'h>) -> Result<&'h Process, Refusal> {
    let missing = |message: String| {
        Refusal::new(RefusalKind::Missing, format!("task {pid}"), message)
            .because(format!("requested at {}", intent.origin))
    };
    let Some(&process) = index.processes.get(&pid) else {
        let mut refusal = missing("there is no such process, or it could not be inspected".to_owned());
        for unread in
            index.host.unread.iter().filter(|unread| unread.process().is_none_or(|other| other == pid))
        {
            refusal = refusal.because(format!("{}: {}", unread.what, unread.why));
        }
        return Err(refusal);
    };
    match process.netns {
        Some(netns) if netns != index.host.netns && !receives_here(process, index) => Err(missing(format!(
            "{} is in network namespace {netns}, but the devices are in namespace {}",
            process.id, index.host.netns
        ))
        .because(Path::of(process).why())
        .nearest("run the same command in the process's namespace")),
        _ => Ok(process),
    }
}

fn device_named<'h>(name: &str, intent: &Intent, host: &'h Host) -> Result<&'h Device, Refusal> {
    host.device_named(name).ok_or_else(|| {
        let names: Vec<&str> = host.devices.iter().map(|d| d.id.name.as_str()).collect();
        let refusal = Refusal::new(RefusalKind::Missing, format!("device {name}"), "no such device");
        // `ip link` prints a stacked device as `name@lower`, so suggest `name`.
        let device = name.split_once('@').and_then(|(device, _)| host.device_named(device));
        let refusal = match device {
            Some(device) => refusal.because(format!(
                "the device is {}: `ip link` prints the lower device after the @",
                device.id.name
            )),
            None => refusal,
        };
        refusal
            .because(format!("requested at {}", intent.origin))
            .because(format!("devices here: {}", names.join(", ")))
    })
}

/// Checks that some of the request's CPUs are online. Returns a note on those that are offline.
fn notes_on_cpus(intent: &Intent, host: &Host) -> Result<Vec<String>, Refusal> {
    let Some(cpus) = &intent.cpus else { return Ok(Vec::new()) };
    let online = &host.topology.online;
    let offline = cpus.difference(online);
    if cpus.intersection(online).is_empty() {
        return Err(Refusal::new(
            RefusalKind::Missing,
            &intent.target,
            format!("none of its CPUs ({cpus}) is online"),
        )
        .because(format!("requested at {}", intent.origin))
        .because(format!("online: {online}")));
    }
    if offline.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![format!("CPUs {offline} are offline and left out")])
}

/// Adds notes on processes that have nothing yet that could busy-poll, except masters whose workers wait and
/// processes that wait with io_uring.
fn note_those_without_epolls(index: &Index<'_>, parts: &mut [PlacedRequest]) {
    let waits = |process: &PlacedProcess| {
        let known = index.processes.get(&process.id.pid);
        !process.sockets.is_empty()
            || known.is_some_and(|process| !process.epolls.is_empty() || !process.rings.is_empty())
    };
    // An attachment makes a separate request for each of its processes, so compare the requests' origins.
    let waiting: BTreeSet<String> = parts
        .iter()
        .filter(|part| part.processes.iter().any(waits))
        .map(|part| part.intent.origin.clone())
        .collect();
    for part in parts.iter_mut().filter(|part| part.params.epoll.waits_busily()) {
        if waiting.contains(&part.intent.origin) {
            continue;
        }
        let yet = part.processes.iter().map(|process| {
            format!(
                "{} has no epoll yet: only the queues are set; busy polling begins when it has one",
                process.id
            )
        });
        part.notes.extend(yet.collect::<Vec<_>>());
    }
}

/// Collects those objects of a process that the request sets.
fn placed_process(process: &Process, part: &mut PlacedRequest) -> Result<PlacedProcess, Refusal> {
    let busy = part.params.epoll.waits_busily();
    let closed: Vec<String> = process
        .rings
        .iter()
        .filter_map(|ring| ring.closed.as_ref().map(|why| format!("{}: {why}", ring.id)))
        .collect();
    let rings: Vec<RingId> = process.rings.iter().filter(|r| r.closed.is_none()).map(|r| r.id).collect();
    if busy && process.epolls.is_empty() && rings.is_empty() && !closed.is_empty() {
        let mut refusal = Refusal::new(
            RefusalKind::Unsupported,
            process.id,
            "it waits with io_uring, whose busy polling cannot be set from outside on this kernel",
        )
        .because(format!("requested at {}", part.intent.origin))
        .nearest(
            DeliveryMode::Defer { gro_flush: part.params.gro_flush_timeout }.to_string()
                + ", which requires nothing of the application",
        );
        refusal.evidence.extend(closed);
        return Err(refusal);
    }
    if busy {
        part.notes.extend(closed.into_iter().map(|line| format!("not changed: {line}")));
    }
    let threads = match part.intent.cpus {
        Some(_) => process.threads.iter().map(|t| t.id).collect(),
        None => Vec::new(),
    };
    // An epoll that does not count against the budget must not be set, because it could then busy-poll.
    let mode = part.delivery.mode;
    let set = |epoll: &&Epoll| !budget::only_accepts(process, epoll, mode);
    Ok(PlacedProcess {
        id: process.id,
        epolls: process.epolls.iter().filter(set).map(|e| e.id).collect(),
        rings,
        sockets: sockets_by_themselves(process, part),
        threads,
    })
}

/// The maximum number of sockets of one process to set individually. Each takes several system calls and a
/// scan of all the process's files.
pub(crate) const SOCKETS_MAX: usize = 256;

/// Returns the sockets that a process reads without an epoll: connections that receive on a NAPI, and UDP
/// sockets that do so or have not received yet. Returns none for a process with an io_uring, because waits on
/// the ring poll.
fn sockets_by_themselves(process: &Process, part: &mut PlacedRequest) -> Vec<SocketId> {
    let receives = |socket: &&Socket| {
        let awaits = || {
            let local = socket.local.is_some_and(|local| !local.ip().to_canonical().is_loopback());
            socket.state == SocketState::Udp && socket.remote.is_none() && local
        };
        socket.polling.is_some() && (socket.napi.is_some() || awaits())
    };
    if !process.rings.is_empty() {
        return Vec::new();
    }
    let own = process.sockets.iter().filter(receives);
    let mut sockets: Vec<SocketId> =
        own.map(|socket| SocketId { process: process.id, fd: socket.fd, inode: socket.inode }).collect();
    if let Some(more) = sockets.len().checked_sub(SOCKETS_MAX).filter(|more| *more > 0) {
        sockets.truncate(SOCKETS_MAX);
        part.notes.push(format!("{}: {more} more sockets that no epoll watches are not changed", process.id));
    }
    sockets
}

/// Assigns the epolls of processes that have no request of their own to the request for the device on which
/// their packets arrive. If that request's mode does not busy-poll, only epolls that prefer busy polling or
/// busy-wait for events are assigned, to turn that off. All other epolls keep the application's settings.
fn place_epolls_of_devices(
    index: &Index<'_>,
    queues: &QueueClaims<'_>,
    owned: &BTreeMap<Pid, usize>,
    requests: &[ResolvedRequest<'_>],
    parts: &mut [PlacedRequest],
) -> Result<(), Refusal> {
    let mut part_of: BTreeMap<DeviceId, usize> = BTreeMap::new();
    for (part, request) in requests.iter().enumerate() {
        let Target::Device(name) = &request.intent.target else { continue };
        if let Some(device) = index.host.device_named(name) {
            part_of.entry(device.id).or_insert(part);
        }
    }
    if part_of.is_empty() {
        return Ok(());
    }
    let shared: BTreeSet<EpollId> =
        parts.iter().flat_map(|part| &part.processes).flat_map(|p| &p.epolls).copied().collect();
    for process in index.host.processes.iter().filter(|p| !owned.contains_key(&p.id.pid)) {
        let mut device_of: BTreeMap<u64, usize> = BTreeMap::new();
        for socket in &process.sockets {
            let device = socket.napi.and_then(|id| queues.device_of(id));
            if let Some(&part) = device.and_then(|device| part_of.get(&device)) {
                device_of.insert(socket.inode, part);
            }
        }
        let mut found: BTreeMap<usize, Vec<EpollId>> = BTreeMap::new();
        for epoll in process.epolls.iter().filter(|epoll| !shared.contains(&epoll.id)) {
            let watching: BTreeSet<usize> =
                epoll.members.iter().filter_map(|m| device_of.get(&m.inode).copied()).collect();
            let mut watching = watching.into_iter();
            let Some(first) = watching.next() else { continue };
            let busy = epoll.params.is_some_and(EpollParams::waits_busily);
            if !requests[first].of_epoll().waits_busily() && !busy {
                continue;
            }
            if let Some(other) = watching.find(|&o| requests[o].of_epoll() != requests[first].of_epoll()) {
                return Err(claim::conflict(epoll.id, &requests[first], &requests[other])
                    .because(format!("{} watches sockets of both devices", epoll.id))
                    .nearest(format!("a request for {} itself", process.id)));
            }
            found.entry(first).or_default().push(epoll.id);
        }
        for (part, epolls) in found {
            let (rings, sockets, threads) = (Vec::new(), Vec::new(), Vec::new());
            parts[part].processes.push(PlacedProcess { id: process.id, epolls, rings, sockets, threads });
        }
    }
    Ok(())
}

/// Returns the targets of other requests that set the epolls for a device's mode, because their processes
/// receive on the device's queues.
fn set_by_others(part: &PlacedRequest, parts: &[PlacedRequest]) -> Vec<String> {
    let Target::Device(name) = &part.intent.target else { return Vec::new() };
    let here = |other: &&PlacedRequest| {
        let sets = other.params.epoll.waits_busily() && other.processes.iter().any(|p| !p.epolls.is_empty());
        let on_it = other.queues.iter().any(|placed| placed.queue.device.name.as_str() == name);
        other.intent != part.intent && sets && on_it
    };
    parts.iter().filter(here).map(|other| other.intent.target.to_string()).collect()
}

/// Adds notes on missing parts of a mode: busy polling needs settings in two places, and full busy polling in
/// three.
fn note_halves(part: &mut PlacedRequest, set_by: &[String], host: &Host) {
    let is_upper = |name: &str| host.device_named(name).is_some_and(|device| host.is_upper(device));
    match &part.intent.target {
        // The requests for the individual devices have this note.
        Target::Devices(..) => return,
        Target::Device(name) if is_upper(name) => return,
        _ => {}
    }
    let epolls: usize = part.processes.iter().map(|p| p.epolls.len()).sum();
    if let (Target::Device(name), true) = (&part.intent.target, part.params.epoll.waits_busily()) {
        let half = if part.params.epoll.events_only { "its busy wait" } else { "prefer_busy_poll" };
        part.notes.push(if epolls == 0 && !set_by.is_empty() {
            format!("the epolls' part of the mode is set by the request for {}", set_by.join(", "))
        } else if epolls == 0 {
            format!(
                "this sets only the NIC's part of the mode: no inspected epoll watches sockets of {name}, and {mode} needs {half} there (`netpolicy attach PID --delivery {mode}` sets both parts)",
                mode = part.delivery.mode
            )
        } else {
            format!("the epolls' part of the mode is set on {epolls} epoll(s) that watch sockets of {name}")
        });
    }
    if let Some(cap) = part.params.epoll_wait_cap {
        let never = if cap.is_zero() {
            "never to sleep".to_owned()
        } else {
            format!("never to sleep longer than {cap}")
        };
        part.notes.push(format!(
            "{} needs epoll_wait {never}: the application passes the timeout with each call, so only `netpolicy run`, which preloads a library, can change it",
            part.delivery.mode
        ));
    }
    let without = part.queues.iter().filter(|q| q.irq.is_none()).count();
    if part.intent.cpus.is_some() && without > 0 {
        part.notes.push(format!("{without} queue(s) have no known interrupt: their affinity is unchanged"));
    }
}
