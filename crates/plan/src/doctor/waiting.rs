//! Findings about threads that busy-wait for events, in `epoll_wait` or around it, and poll no NAPI:
//! `eventbusy` and `userbusy`. Softirqs deliver their packets, so engagement is not judged per NAPI. The
//! rules find busy waits that cannot help, and requested busy waits that do not happen.

use model::{DeliveryMode, NapiId, Severity};

use super::case::{Case, EpollCase, NapiCase, ProcessCase};
use super::remedy;
use super::rule::{Causes, DoctorRule, Found};

/// The rules of this family.
pub(super) const RULES: &[DoctorRule] = &[
    DoctorRule {
        id: "events-only",
        doc: "Epolls busy-wait for events and leave polling to softirq.",
        find: events_only,
    },
    DoctorRule {
        id: "events-only-deferred",
        doc: "An epoll busy-waits for events of a NAPI whose IRQs are deferred: only the timer polls it.",
        find: events_only_deferred,
    },
    DoctorRule {
        id: "events-only-crowded",
        doc: "More epolls busy-wait for events than their threads have CPUs.",
        find: crowded,
    },
    DoctorRule {
        id: "userbusy-sleeps",
        doc: "userbusy was requested, but the process sleeps in epoll_wait: it runs without the library.",
        find: sleeps,
    },
];

impl EpollCase<'_> {
    /// Returns whether the epoll busy-waits only for events.
    fn events_only(&self) -> bool {
        self.epoll.params.is_some_and(|params| params.events_only)
    }
}

fn asked_for_userbusy(process: &ProcessCase<'_>) -> bool {
    process.asked.is_some_and(|asked| asked.mode == DeliveryMode::UserBusy)
}

fn events_only(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for process in case.processes.values() {
        let busy: Vec<&EpollCase<'_>> = process.epolls.iter().filter(|epoll| epoll.events_only()).collect();
        let Some(params) = busy.first().and_then(|epoll| epoll.epoll.params) else { continue };
        found.push(
            Found::new(
                Severity::Ok,
                process.process.id,
                format!(
                    "{} of its {} epolls busy-wait for events, and poll no NAPI",
                    busy.len(),
                    process.epolls.len()
                ),
            )
            .evidence(format!("busy_poll usecs/budget/prefer is {params}")),
        );
    }
    found
}

fn events_only_deferred(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for process in case.processes.values() {
        for epoll in process.epolls.iter().filter(|epoll| epoll.events_only()) {
            let late: Vec<&NapiCase<'_>> = epoll
                .napis
                .keys()
                .filter_map(|id| case.napis.get(id))
                .filter(|napi| napi.defers() && !napi.preferred)
                .collect();
            let Some(first) = late.first() else { continue };
            let flush = first.napi.gro_flush_timeout.unwrap_or_default();
            found.push(
                Found::new(
                    Severity::Problem,
                    epoll.epoll.id,
                    format!("it busy-waits for events that arrive up to {flush} late: IRQs are deferred, and it polls no NAPI"),
                )
                .evidence(format!("{}: {}", first.name(), first.values()))
                .remedy(remedy::set_task(process.process.id, DeliveryMode::EventBusy))
                .hinders(late.iter().map(|napi| napi.napi.id)),
            );
        }
    }
    found
}

fn crowded(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for process in case.processes.values() {
        let user = asked_for_userbusy(process);
        let busy: Vec<&EpollCase<'_>> =
            process.epolls.iter().filter(|epoll| user || epoll.events_only()).collect();
        let cpus = process.cpus();
        let spinning = busy.len().min(process.process.threads.len());
        if cpus.is_empty() || spinning <= cpus.len() {
            continue;
        }
        let summary = if user {
            format!(
                "{spinning} threads busy-poll their epolls on {} CPU(s) and compete for CPU time",
                cpus.len()
            )
        } else {
            format!(
                "{spinning} of its epolls busy-wait on {} CPU(s): each wait yields its CPU immediately, which gains nothing",
                cpus.len()
            )
        };
        let napis = busy.iter().flat_map(|epoll| epoll.napis.keys().copied());
        found.push(
            Found::new(Severity::Warning, process.process.id, summary)
                .evidence(format!("its threads may run on CPUs {cpus}"))
                .remedy(super::application::more_cpus(case, process, spinning))
                .hinders(napis.collect::<Vec<NapiId>>()),
        );
    }
    found
}

fn sleeps(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for process in case.processes.values().filter(|process| asked_for_userbusy(process)) {
        let asleep = process.epolls.iter().find(|epoll| {
            let fd = epoll.epoll.id.fd;
            process.process.threads.iter().any(|thread| thread.waits_on == Some(fd))
        });
        let Some(epoll) = asleep else { continue };
        found.push(
            Found::new(
                Severity::Problem,
                process.process.id,
                "userbusy was requested, but it sleeps in epoll_wait: it was started without the library",
            )
            .evidence(format!("a thread waits in {}", epoll.epoll.id))
            .remedy("netpolicy run --delivery userbusy --polling-cpus N -- CMD"),
        );
    }
    found
}
