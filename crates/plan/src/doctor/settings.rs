//! Findings about values that contradict each other, or have no effect because they are set on the wrong
//! object.

use std::collections::BTreeSet;

use model::{DeliveryMode, DeviceId, Object, Severity, Sysctl, Threading, quoted, since};

use super::case::{Case, EpollCase, NapiCase, ProcessCase};
use super::remedy;
use super::rule::{Causes, DoctorRule, Found};

/// The rules of this family.
pub(super) const RULES: &[DoctorRule] = &[
    DoctorRule {
        id: "kernel-too-old",
        doc: "The requested mode needs a feature that this kernel lacks.",
        find: kernel_too_old,
    },
    DoctorRule {
        id: "suspension-without-deferral",
        doc: "irq-suspend-timeout is set while defer-hard-irqs or gro-flush-timeout is 0: every epoll_wait enables the IRQ again.",
        find: suspension_without_deferral,
    },
    DoctorRule {
        id: "suspension-too-short",
        doc: "irq-suspend-timeout is not longer than gro-flush-timeout: it ends before one iteration of the application's loop.",
        find: suspension_too_short,
    },
    DoctorRule {
        id: "irq-suspend-zero",
        doc: "irq-suspend-timeout is 0 although epolls prefer busy polling: they suspend no IRQ.",
        find: irq_suspend_zero,
    },
    DoctorRule {
        id: "deferral-half-set",
        doc: "Only one of defer-hard-irqs and gro-flush-timeout is set: IRQs are not deferred.",
        find: deferral_half_set,
    },
    DoctorRule {
        id: "prefer-without-deferral",
        doc: "prefer_busy_poll is set on epolls whose NAPI has no deferral: the IRQ still fires.",
        find: prefer_without_deferral,
    },
    DoctorRule {
        id: "prefer-off",
        doc: "irq-suspend-timeout is set, but an epoll that receives from the NAPI has prefer_busy_poll off.",
        find: prefer_off,
    },
    DoctorRule {
        id: "busy-poll-everywhere",
        doc: "net.core.busy_poll makes poll, select and every epoll without its own busy_poll_usecs busy-poll, on the whole host.",
        find: busy_poll_everywhere,
    },
    DoctorRule {
        id: "napi-threaded",
        doc: "A kernel thread polls the NAPI as well as the application.",
        find: napi_threaded,
    },
    DoctorRule {
        id: "set-on-another-device",
        doc: "Suspension is set on one device, and the process receives on another.",
        find: set_on_another_device,
    },
    DoctorRule {
        id: "queue-not-set",
        doc: "Suspension is set on some queues of a device, and the process also receives on others.",
        find: queue_not_set,
    },
];

fn kernel_too_old(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for asked in case.asked {
        let params = asked.mode.params();
        let lacks = if !params.irq_suspend_timeout.is_zero() && !case.host.capabilities.irq_suspend {
            format!("irq-suspend-timeout (Linux {})", since::NAPI_SET)
        } else if params.epoll.prefer_busy_poll && !case.host.capabilities.epoll_params {
            format!("busy-poll parameters of epolls (Linux {})", since::EPOLL_PARAMS)
        } else if params.epoll.events_only && !case.host.capabilities.epoll_events_only {
            "epolls that wait for events only, which need the patches in kernel/epoll-event-busy-loop"
                .to_owned()
        } else if asked.mode == DeliveryMode::ThreadedBusy && !case.host.capabilities.napi_threaded_busy {
            format!("kernel threads that poll continuously (Linux {})", since::BUSY_THREADS)
        } else {
            continue;
        };
        let instead = match asked.mode {
            DeliveryMode::EventBusy => DeliveryMode::Interrupt,
            DeliveryMode::ThreadedBusy => DeliveryMode::Threaded,
            _ => DeliveryMode::Defer { gro_flush: params.gro_flush_timeout },
        };
        let mut finding = Found::new(
            Severity::Problem,
            format!("Linux {}", case.host.release),
            format!("{} needs {lacks}", asked.mode),
        )
        .evidence(format!("requested at {}", asked.origin));
        if let Some(queue) = asked.queues.first() {
            finding = finding
                .remedy(format!("netpolicy set device {} {instead}", quoted(queue.device.name.as_str())));
        }
        let napis = case.napis.values().filter(|n| n.queues.iter().any(|q| asked.queues.contains(q)));
        found.push(finding.hinders(napis.map(|n| n.napi.id)));
    }
    found
}

fn suspension_without_deferral(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let silent = |napi: &&NapiCase<'_>| {
        napi.suspends() && napi.deferral().is_some_and(|(polls, span)| polls == 0 || span.is_zero())
    };
    let found = |napi: &NapiCase<'_>| {
        let mut found = Found::new(
            Severity::Problem,
            napi.name(),
            "irq-suspend-timeout is set but deferral is off: the IRQ is enabled again at every epoll_wait",
        )
        .evidence(napi.values());
        if let Some(counts) = &napi.counts {
            found = found.evidence(format!(
                "softirq polls {}, timer armed {}",
                case.rate(counts.softirq().polls),
                case.rate(counts.timer_armed)
            ));
        }
        found.remedy(remedy::set_device(napi.device, remedy::mode_of(napi))).hinders([napi.napi.id])
    };
    case.napis.values().filter(silent).map(found).collect()
}

fn suspension_too_short(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let short = |napi: &&NapiCase<'_>| {
        napi.suspends() && napi.defers() && napi.napi.irq_suspend_timeout <= napi.napi.gro_flush_timeout
    };
    let found = |napi: &NapiCase<'_>| {
        Found::new(
            Severity::Problem,
            napi.name(),
            "irq-suspend-timeout is not longer than gro-flush-timeout, so it does not outlast deferral",
        )
        .evidence(napi.values())
        .remedy(remedy::set_device(napi.device, remedy::mode_of(napi)))
        .hinders([napi.napi.id])
    };
    case.napis.values().filter(short).map(found).collect()
}

fn irq_suspend_zero(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let zero = |napi: &&NapiCase<'_>| {
        napi.napi.irq_suspend_timeout.is_some_and(|span| span.is_zero())
            && (napi.asked_to_suspend() || napi.preferred && napi.defers() && napi.asked.is_none())
    };
    let found = |napi: &NapiCase<'_>| {
        let asked = napi.asked.filter(|_| napi.asked_to_suspend());
        let severity = if asked.is_some() { Severity::Problem } else { Severity::Note };
        let mut found = Found::new(
            severity,
            napi.name(),
            "irq-suspend-timeout is 0: epolls busy-poll, but do not suspend IRQs",
        )
        .evidence(napi.values());
        if let Some(asked) = asked {
            found = found.evidence(format!("{} was requested at {}", asked.mode, asked.origin));
        }
        // fullbusy deliberately sets exactly these values, so its long timeout is no mistake.
        let busy = DeliveryMode::FullBusy.params();
        let polls_busily = napi.napi.defer_hard_irqs == Some(busy.defer_hard_irqs)
            && napi.napi.gro_flush_timeout == Some(busy.gro_flush_timeout);
        let found = match asked.is_none() && polls_busily {
            true => {
                found.evidence("these are the values of fullbusy, whose timeout is too long to suspend with")
            }
            false => found.remedy(remedy::set_device(napi.device, remedy::mode_of(napi))),
        };
        found.hinders([napi.napi.id])
    };
    case.napis.values().filter(zero).map(found).collect()
}

fn deferral_half_set(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let half = |napi: &&NapiCase<'_>| {
        let one = napi.deferral().is_some_and(|(polls, span)| (polls == 0) != span.is_zero());
        one && !napi.suspends()
    };
    let found = |napi: &NapiCase<'_>| {
        let mode = DeliveryMode::Defer {
            gro_flush: match remedy::mode_of(napi) {
                DeliveryMode::Suspend { gro_flush } | DeliveryMode::Defer { gro_flush } => gro_flush,
                other => other.params().gro_flush_timeout,
            },
        };
        Found::new(
            Severity::Warning,
            napi.name(),
            "only one of defer-hard-irqs and gro-flush-timeout is set; IRQs are deferred only if both are",
        )
        .evidence(napi.values())
        .remedy(remedy::set_device(napi.device, napi.asked.map_or(mode, |asked| asked.mode)))
        .hinders([napi.napi.id])
    };
    case.napis.values().filter(half).map(found).collect()
}

fn prefer_without_deferral(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let idle = |napi: &&NapiCase<'_>| {
        napi.preferred && !napi.suspends() && napi.deferral().is_some_and(|(polls, _)| polls == 0)
    };
    let found = |napi: &NapiCase<'_>| {
        let preferring = napi.epolls.keys().next().map(ToString::to_string).unwrap_or_default();
        Found::new(
            Severity::Warning,
            napi.name(),
            "epolls prefer busy polling here, but the NAPI has no deferral, so its IRQ still fires",
        )
        .evidence(napi.values())
        .evidence(format!("{preferring} has prefer_busy_poll on"))
        .remedy(remedy::set_device(napi.device, remedy::mode_of(napi)))
        .hinders([napi.napi.id])
    };
    case.napis.values().filter(idle).map(found).collect()
}

fn prefer_off(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let mut found = Vec::new();
    for process in case.processes.values() {
        for epoll in process.epolls.iter().filter(|epoll| !epoll.prefers()) {
            let Some(params) = epoll.epoll.params else { continue };
            let suspended: Vec<&NapiCase<'_>> = epoll
                .napis
                .keys()
                .filter_map(|id| case.napis.get(id))
                .filter(|napi| napi.suspends() || napi.asked_to_suspend())
                .collect();
            let Some(first) = suspended.first() else { continue };
            found.push(
                Found::new(
                    Severity::Problem,
                    epoll.epoll.id,
                    "prefer_busy_poll is off, and without it epoll_wait does not suspend IRQs",
                )
                .evidence(format!("busy_poll usecs/budget/prefer is {params}"))
                .evidence(case.spread(&epoll.napis))
                .remedy(remedy::set_task(process.process.id, remedy::mode_of(first)))
                .hinders(suspended.iter().map(|napi| napi.napi.id)),
            );
        }
    }
    found
}

fn busy_poll_everywhere(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let Some(usecs @ 1..) = case.host.sysctls.get(&Sysctl::BusyPoll) else { return Vec::new() };
    let with_a_napi = |epoll: &&EpollCase<'_>| {
        !epoll.napis.is_empty() && epoll.epoll.params.is_some_and(|params| params.busy_poll_usecs == 0)
    };
    let concerned = |process: &&ProcessCase<'_>| process.epolls.iter().any(|epoll| with_a_napi(&epoll));
    let processes: Vec<&ProcessCase<'_>> = case.processes.values().filter(concerned).collect();
    let Some(first) = processes.first() else { return Vec::new() };
    let epolls: usize =
        processes.iter().map(|process| process.epolls.iter().filter(with_a_napi).count()).sum();
    vec![
        Found::new(
            Severity::Note,
            Object::Host,
            format!(
                "net.core.busy_poll is {usecs}: {epolls} epoll(s) without their own busy_poll_usecs busy-poll for {usecs} us before they sleep"
            ),
        )
        .evidence(format!("of {} process(es), such as {}", processes.len(), first.process.id))
        .remedy("sysctl -w net.core.busy_poll=0, unless settings.busy_poll in a policy file requests it"),
    ]
}

fn napi_threaded(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let threaded = |napi: &&NapiCase<'_>| {
        let thread = napi.napi.threaded.is_some_and(|threaded| threaded != Threading::Off);
        let asked_for = |asked: &crate::RequestFacts| asked.mode.threading() == Threading::Off;
        thread && (napi.suspends() || napi.preferred || napi.asked.is_some_and(asked_for))
    };
    let found = |napi: &NapiCase<'_>| {
        let kthread =
            napi.napi.kthread.map_or_else(|| "a kernel thread".to_owned(), |pid| format!("task {pid}"));
        let mut found = Found::new(
            Severity::Warning,
            napi.name(),
            "a kernel thread polls this NAPI as well as the application",
        )
        .evidence(format!("threaded is {}, polled by {kthread}", napi.napi.threaded.unwrap_or_default()));
        if let Some(counts) = &napi.counts {
            found = found.evidence(format!(
                "packets by kthread {}, by the application {}",
                case.rate(counts.kthread.packets),
                case.rate(counts.application.packets)
            ));
        }
        found.remedy(remedy::set_device(napi.device, remedy::mode_of(napi))).hinders([napi.napi.id])
    };
    case.napis.values().filter(threaded).map(found).collect()
}

fn set_on_another_device(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let set: BTreeSet<DeviceId> = case.napis.values().filter(|n| n.suspends()).map(|n| n.device.id).collect();
    let mut found = Vec::new();
    for process in case.processes.values().filter(|process| case.concerns(process)) {
        let used: Vec<&NapiCase<'_>> = process.napis.keys().filter_map(|id| case.napis.get(id)).collect();
        let received_on: BTreeSet<DeviceId> = used.iter().map(|napi| napi.device.id).collect();
        let (Some(first), Some(elsewhere)) = (used.first(), set.iter().next()) else { continue };
        if !set.is_disjoint(&received_on) {
            continue;
        }
        let unpolled = case.napis.values().filter(|n| n.suspends() && n.epolls.is_empty());
        found.push(
            Found::new(
                Severity::Problem,
                process.process.id,
                format!("it receives on {}, and suspension is set on {elsewhere}", first.device.id),
            )
            .evidence(case.spread(&process.napis))
            .evidence(format!("{}: {}", first.name(), first.values()))
            .remedy(remedy::set_task(process.process.id, remedy::mode_for(process)))
            .hinders(process.napis.keys().copied().chain(unpolled.map(|n| n.napi.id))),
        );
    }
    found
}

fn queue_not_set(case: &Case<'_>, _: &Causes) -> Vec<Found> {
    let set: BTreeSet<DeviceId> = case.napis.values().filter(|n| n.suspends()).map(|n| n.device.id).collect();
    let mut found = Vec::new();
    for process in case.processes.values().filter(|process| case.concerns(process)) {
        let unset = process.napis.keys().filter_map(|id| case.napis.get(id)).filter(|napi| {
            let zero = napi.napi.irq_suspend_timeout.is_some_and(|span| span.is_zero());
            zero && set.contains(&napi.device.id) && !napi.asked_to_suspend()
        });
        let unset: Vec<&NapiCase<'_>> = unset.collect();
        let Some(first) = unset.first() else { continue };
        found.push(
            Found::new(
                Severity::Problem,
                process.process.id,
                format!("it also receives on {}, where IRQs are not suspended", first.name()),
            )
            .evidence(case.spread(&process.napis))
            .evidence(format!("{}: {}", first.name(), first.values()))
            .remedy(remedy::set_task(process.process.id, remedy::mode_for(process)))
            .hinders(unset.iter().map(|napi| napi.napi.id)),
        );
    }
    found
}
