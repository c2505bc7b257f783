//! Findings about applications that wait in a way that prevents IRQ suspension.

use std::collections::{BTreeMap, BTreeSet};

use model::{CpuSet, DeliveryMode, Nanoseconds, NapiId, Severity};

use crate::other_netns::Path;

use super::case::{Case, EpollCase, NapiCase, ProcessCase};
use super::remedy;
use super::rule::{Causes, DoctorRule, Found};

/// The rules of this family.
pub(super) const RULES: &[DoctorRule] = &[
    DoctorRule {
        id: "epoll-mixes-napis",
        doc: "One epoll watches connections of several NAPIs: only one of them stays suspended.",
        find: epoll_mixes_napis,
    },
    DoctorRule {
        id: "napi-shared-by-epolls",
        doc: "Several epolls receive from one NAPI: each resumes an IRQ that another epoll suspended.",
        find: napi_shared_by_epolls,
    },
    DoctorRule {
        id: "pollers-share-a-cpu",
        doc: "More epolls busy-poll than their threads have CPUs: while one runs, the NAPIs of the others wait.",
        find: pollers_share_a_cpu,
    },
    DoctorRule {
        id: "never-waits",
        doc: "The application calls epoll_wait with timeout 0, which never polls the NAPI.",
        find: never_waits,
    },
    DoctorRule {
        id: "no-epoll",
        doc: "The process waits in select, poll or a blocking read; only epoll_wait suspends IRQs.",
        find: no_epoll,
    },
    DoctorRule {
        id: "io-uring",
        doc: "The process waits with io_uring, which busy-polls but never suspends IRQs.",
        find: io_uring,
    },
    DoctorRule {
        id: "another-namespace",
        doc: "The process is in another network namespace than the devices; shows the path of its packets, and whether its epolls can suspend an interrupt here.",
        find: another_namespace,
    },
    DoctorRule {
        id: "not-readable",
        doc: "A part of the host could not be read, mostly for lack of permission.",
        find: not_readable,
    },
];

/// Returns whether suspension or preferred busy polling is set or requested on the epoll or on one of its
/// NAPIs.
fn polled(case: &Case<'_>, epoll: &EpollCase<'_>) -> bool {
    let set = |napi: &NapiCase<'_>| napi.suspends() || napi.asked_to_suspend();
    epoll.prefers() || epoll.napis.keys().any(|id| case.napis.get(id).is_some_and(set))
}

fn epoll_mixes_napis(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for process in case.processes.values() {
        for epoll in process.epolls.iter().filter(|e| e.napis.len() > 1 && polled(case, e)) {
            let names: Vec<String> = epoll.napis.keys().map(ToString::to_string).collect();
            found.push(
                Found::new(
                    Severity::Problem,
                    epoll.epoll.id,
                    format!(
                        "it mixes NAPIs {}: it polls only one at a time, so the IRQs of the others are resumed",
                        names.join(", ")
                    ),
                )
                .evidence(case.spread(&epoll.napis))
                .remedy(unmix(case, process, epoll))
                .hinders(epoll.napis.keys().copied()),
            );
        }
    }
    found
}

/// Returns the remedy for an epoll whose connections are on several NAPIs: fewer queues, or an application
/// that distributes connections by NAPI id.
fn unmix(case: &Case<'_>, process: &ProcessCase<'_>, epoll: &EpollCase<'_>) -> String {
    let cases: Vec<&NapiCase<'_>> = epoll.napis.keys().filter_map(|id| case.napis.get(id)).collect();
    let receiving = process.epolls.iter().filter(|e| !e.napis.is_empty()).count();
    let one_device = cases.windows(2).all(|pair| pair[0].device.id == pair[1].device.id);
    let fewer = cases.first().filter(|napi| one_device && receiving < napi.device.rx_queues.len());
    fewer.and_then(|napi| remedy::channels(napi.device, receiving)).unwrap_or_else(|| {
        format!(
            "give each worker the connections of one NAPI id (SO_INCOMING_NAPI_ID; memcached: -N {})",
            epoll.napis.len()
        )
    })
}

fn napi_shared_by_epolls(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let shared = |napi: &&NapiCase<'_>| {
        napi.epolls.len() > 1 && (napi.suspends() || napi.preferred || napi.asked_to_suspend())
    };
    let found = |napi: &NapiCase<'_>| {
        let each = napi.epolls.iter().map(|(epoll, connections)| format!("{epoll} with {connections}"));
        let finding = Found::new(
            Severity::Warning,
            napi.name(),
            format!(
                "{} epolls receive from this NAPI, and each resumes the IRQ that another one suspended",
                napi.epolls.len()
            ),
        )
        .evidence(format!("connections: {}", each.collect::<Vec<_>>().join(", ")))
        .hinders([napi.napi.id]);
        let more = remedy::channels(napi.device, napi.epolls.len());
        finding.remedy(more.unwrap_or_else(|| {
            let queues = napi.device.rx_queues.len();
            format!("as many workers as queues, {queues}, each with the connections of one NAPI (memcached: -t {queues})")
        }))
    };
    case.napis.values().filter(shared).map(found).collect()
}

fn pollers_share_a_cpu(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for process in case.processes.values() {
        let polling: Vec<&EpollCase<'_>> =
            process.epolls.iter().filter(|e| e.prefers() && !e.napis.is_empty()).collect();
        let cpus = process.cpus();
        if cpus.is_empty() || polling.len() <= cpus.len() {
            continue;
        }
        let napis: BTreeSet<NapiId> = polling.iter().flat_map(|e| e.napis.keys().copied()).collect();
        found.push(
            Found::new(
                Severity::Warning,
                process.process.id,
                format!("{} of its epolls busy-poll on {} CPU(s) and take turns", polling.len(), cpus.len()),
            )
            .evidence(format!("its threads may run on CPUs {cpus}"))
            .remedy(more_cpus(case, process, polling.len()))
            .hinders(napis),
        );
    }
    found
}

/// Returns the remedy for more busy-polling threads than CPUs: a CPU for each thread if the host has enough,
/// otherwise fewer threads.
pub(super) fn more_cpus(case: &Case<'_>, process: &ProcessCase<'_>, pollers: usize) -> String {
    let online = &case.host.topology.online;
    if online.len() < pollers {
        return format!("as many workers as CPUs, {} (memcached: -t {})", online.len(), online.len());
    }
    let own = process.cpus().intersection(online);
    let others = online.difference(&own);
    let cpus: CpuSet = own.iter().chain(others.iter()).take(pollers).collect();
    format!("taskset -acp {cpus} {}", process.process.id.pid)
}

fn never_waits(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for process in case.processes.values() {
        for epoll in process.epolls.iter().filter(|epoll| epoll.prefers()) {
            let waiting =
                process.process.threads.iter().any(|thread| thread.waits_on == Some(epoll.epoll.id.fd));
            let unpolled: Vec<&NapiCase<'_>> = epoll
                .napis
                .keys()
                .filter_map(|id| case.napis.get(id))
                .filter(|napi| {
                    let silent = |counts: &model::NapiDelivered| {
                        counts.application.polls == 0 && counts.total().packets > 0
                    };
                    napi.counts.as_ref().is_some_and(silent)
                })
                .collect();
            if waiting || unpolled.is_empty() || unpolled.len() < epoll.napis.len() {
                continue;
            }
            let packets = unpolled.iter().filter_map(|napi| napi.packets()).sum();
            found.push(
                Found::new(
                    Severity::Problem,
                    epoll.epoll.id,
                    "no thread ever waits in it: epoll_wait with timeout 0 returns before it polls the NAPI",
                )
                .evidence(format!("application polls 0/s, packets {}", case.rate(packets)))
                .evidence("no thread was waiting in epoll_wait")
                .hinders(unpolled.iter().map(|napi| napi.napi.id)),
            );
        }
    }
    found
}

fn no_epoll(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let without = |process: &&ProcessCase<'_>| {
        let waits_otherwise = process.process.epolls.is_empty() && process.process.rings.is_empty();
        waits_otherwise && process.connections() > 0 && case.concerns(process)
    };
    let found = |process: &ProcessCase<'_>| {
        let polling = process.process.sockets.iter().filter_map(|socket| socket.polling);
        let polling = polling.filter(|polling| polling.polls()).count();
        if polling > 0 {
            return Found::new(
                Severity::Note,
                process.process.id,
                "it has no epoll, and busy-polls while a receive waits; only epoll_wait suspends IRQs",
            )
            .evidence(format!("SO_BUSY_POLL is set on {polling} of its sockets"));
        }
        Found::new(
            Severity::Problem,
            process.process.id,
            "it has no epoll: it waits in select, poll or a blocking read, and only epoll_wait suspends IRQs",
        )
        .evidence(format!("{} connections, 0 epolls, 0 io_urings", process.connections()))
        .remedy(remedy::set_task(process.process.id, deferral(remedy::mode_for(process))))
        .hinders(process.napis.keys().copied())
    };
    case.processes.values().filter(without).map(found).collect()
}

fn io_uring(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    let uses_rings = |process: &&ProcessCase<'_>| {
        let receives = process.process.rings.iter().any(|ring| ring.registered_sockets > 0);
        case.concerns(process) || receives && case.suspended().next().is_some()
    };
    for process in case.processes.values().filter(uses_rings) {
        let napis = napis_of_rings(case, process);
        let suspended: Vec<&NapiCase<'_>> = napis
            .iter()
            .filter_map(|id| case.napis.get(id))
            .filter(|napi| napi.suspends() || napi.asked_to_suspend())
            .collect();
        let napibusy = || remedy::set_task(process.process.id, DeliveryMode::NapiBusy);
        for ring in &process.process.rings {
            let finding = match (&ring.closed, ring.napi) {
                (Some(why), _) => Found::new(
                    Severity::Problem,
                    ring.id,
                    "busy polling cannot be enabled from outside, and no io_uring suspends IRQs",
                )
                .evidence(why.clone())
                .remedy(remedy::set_task(process.process.id, deferral(remedy::mode_for(process)))),
                (None, None) => Found::new(
                    Severity::Warning,
                    ring.id,
                    "the ring does not busy-poll, and no io_uring suspends IRQs",
                )
                .evidence("no NAPI is registered with the ring")
                .remedy(napibusy()),
                (None, Some(napi)) => {
                    let polls = format!("busy_poll usecs/prefer is {napi}");
                    match suspended.first() {
                        None => {
                            Found::new(Severity::Note, ring.id, "the ring busy-polls, but no io_uring suspends IRQs")
                                .evidence(polls)
                        }
                        Some(first) => Found::new(
                            Severity::Warning,
                            ring.id,
                            "the ring busy-polls, but no io_uring suspends IRQs: between its waits the timer delivers packets",
                        )
                        .evidence(polls)
                        .evidence(format!("{}: {}", first.name(), first.values()))
                        .remedy(napibusy()),
                    }
                }
            };
            // In a process with epolls, the ring may only serve files. Without epolls, the process waits for
            // its connections in the ring, which prevents suspension.
            let alone = process.process.epolls.is_empty();
            found.push(finding.hinders(napis.iter().copied().filter(|_| alone)));
        }
    }
    found
}

/// Returns the NAPIs of a process with rings: those of its sockets, and those that it polled. A socket that
/// is registered with a ring may have no descriptor.
fn napis_of_rings(case: &Case<'_>, process: &ProcessCase<'_>) -> BTreeSet<NapiId> {
    let polls =
        |napi: &&NapiCase<'_>| case.pollers(napi).any(|poller| poller.process.id == process.process.id);
    let polled = case.napis.values().filter(polls).map(|napi| napi.napi.id);
    process.napis.keys().copied().chain(polled).collect()
}

fn another_namespace(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for process in case.processes.values() {
        let Some(netns) = process.process.netns.filter(|&netns| netns != case.host.netns) else { continue };
        let of = process.process.container.as_ref().map(|name| format!("container {name}; "));
        let of = of.unwrap_or_default();
        let namespaces = format!("{of}its namespace is {netns}, the devices' is {}", case.host.netns);
        let here: Vec<String> = process
            .napis
            .keys()
            .filter_map(|napi| case.napis.get(napi))
            .map(|napi| format!("{} napi {}", napi.device.id, napi.napi.id))
            .collect();
        found.push(if here.is_empty() {
            let path = Path::of(process.process);
            Found::new(
                Severity::Note,
                process.process.id,
                format!("it is in another network namespace, and {}", path.why()),
            )
            .evidence(namespaces)
            .evidence(path.way())
        } else {
            Found::new(
                Severity::Ok,
                process.process.id,
                format!("it is in another network namespace, and receives through {}", here.join(", ")),
            )
            .evidence(namespaces)
            .evidence(
                "SO_INCOMING_NAPI_ID of its sockets is that NAPI's: its epolls can suspend its interrupt",
            )
        });
    }
    found
}

fn not_readable(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let capabilities = &case.host.capabilities;
    let confined = capabilities.confined_by.as_ref();
    let remedy = match (capabilities.ptrace, capabilities.net_admin) {
        (false, false) => Some("run it as root, or with CAP_SYS_PTRACE and CAP_NET_ADMIN".to_owned()),
        (false, true) => Some("run it with CAP_SYS_PTRACE".to_owned()),
        (true, false) => Some("run it with CAP_NET_ADMIN".to_owned()),
        (true, true) => confined.map(|by| format!("run it without {by}, or let that allow ptrace")),
    };
    let advised = |found: Found| match &remedy {
        Some(remedy) => found.remedy(remedy.as_str()),
        None => found,
    };
    let (mut found, mut processes) = (Vec::new(), BTreeMap::<&str, Vec<&str>>::new());
    for unread in &case.host.unread {
        if unread.process().is_some() {
            processes.entry(unread.why.as_str()).or_default().push(unread.what.as_str());
        } else {
            let words = "this part could not be read, so it was not checked";
            found.push(advised(
                Found::new(Severity::Warning, &unread.what, words).evidence(unread.why.clone()),
            ));
        }
    }
    // Even root cannot inspect some processes. That is only worth a note, unless a security module denies it.
    let expected = capabilities.ptrace && confined.is_none();
    let severity = if expected { Severity::Note } else { Severity::Warning };
    for (why, parts) in processes {
        let (object, words) = match parts[..] {
            [one] => (one.to_owned(), "this part could not be read, so it was not checked"),
            _ => (
                format!("{} parts of processes", parts.len()),
                "these parts could not be read, so they were not checked",
            ),
        };
        let mut folded = Found::new(severity, object, words).evidence(why);
        if let [_, _, ..] = parts[..] {
            let more = parts.len().saturating_sub(UNREAD_NAMED_MAX);
            let named = parts[..parts.len() - more].join(", ");
            folded = folded.evidence(if more > 0 { format!("{named}, and {more} more") } else { named });
        }
        found.push(if expected { folded } else { advised(folded) });
    }
    found
}

/// How many processes that could not be read to name at most.
const UNREAD_NAMED_MAX: usize = 4;

/// Returns the mode with the same deferral for an application that does not wait in `epoll_wait`.
fn deferral(mode: DeliveryMode) -> DeliveryMode {
    match mode {
        DeliveryMode::Suspend { gro_flush } | DeliveryMode::Defer { gro_flush } => {
            DeliveryMode::Defer { gro_flush }
        }
        DeliveryMode::NapiBusy | DeliveryMode::FullBusy => {
            DeliveryMode::Defer { gro_flush: Nanoseconds::from_micros(20) }
        }
        DeliveryMode::Threaded | DeliveryMode::ThreadedBusy => mode,
        DeliveryMode::Interrupt | DeliveryMode::EventBusy | DeliveryMode::UserBusy => DeliveryMode::Interrupt,
    }
}
