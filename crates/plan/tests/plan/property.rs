//! Tests properties of the planner on random hosts and policies.

use std::collections::BTreeSet;

use model::host::IoUring;
use model::{
    Budget, Cpu, CpuSet, DeliveryMode, EmptyPolls, Fd, Host, Intent, IrqKnob, Nanoseconds, NapiId, NapiKnob,
    Object, Pid, Plan, Policy, PolicyName, ProcessKnob, RingId, RingNapi, Setting, Threading,
};
use plan::{Resolved, desired, diff, place};
use proptest::prelude::*;
use proptest::sample::select;

use crate::made::{device, host, named, on_device, on_service, on_task, policy, server, with_irqs, write};

/// The NAPI ids of the generated hosts: eth0 has the first three, eth1 the others.
const NAPIS: [u32; 5] = [259, 260, 261, 300, 301];
const PIDS: [u32; 3] = [812, 901, 950];

fn modes() -> impl Strategy<Value = DeliveryMode> {
    select(DeliveryMode::DOCUMENT.into_iter().chain([DeliveryMode::Threaded]).collect::<Vec<_>>())
}

fn spans() -> impl Strategy<Value = Nanoseconds> {
    select(vec![0_u64, 20_000, 200_000, 20_000_000]).prop_map(Nanoseconds)
}

prop_compose! {
    fn napi_values()(
        defer in select(vec![0_u32, 2, 100]),
        flush in spans(),
        suspend in spans(),
        threaded in select(vec![Threading::Off, Threading::On, Threading::BusyPoll]),
    ) -> (EmptyPolls, Nanoseconds, Nanoseconds, Threading) {
        (EmptyPolls(defer), flush, suspend, threaded)
    }
}

prop_compose! {
    fn hosts()(
        values in prop::collection::vec(napi_values(), NAPIS.len()),
        epolls in prop::collection::vec(modes(), PIDS.len()),
        connections in prop::collection::vec(prop::collection::vec(select(NAPIS.to_vec()), 0..4), PIDS.len()),
        per_napi in prop::bool::weighted(0.8),
        ring in prop::option::of(modes()),
    ) -> Host {
        let mut host = host();
        host.capabilities.napi_set = per_napi;
        host.capabilities.irq_suspend = per_napi;
        host.devices.push(device(2, "eth0", &NAPIS[..3]));
        let mut host = with_irqs(host, 40);
        host.devices.push(device(3, "eth1", &NAPIS[3..]));
        let mut host = with_irqs(host, 50);
        for (napi, value) in host.devices.iter_mut().flat_map(|d| &mut d.napis).zip(values) {
            napi.defer_hard_irqs = Some(value.0);
            napi.gro_flush_timeout = Some(value.1);
            napi.irq_suspend_timeout = Some(value.2);
            // If NAPIs cannot be set individually, they have the value of their device.
            napi.threaded = Some(if per_napi { value.3 } else { Threading::Off });
        }
        for queue in host.devices.iter().flat_map(|d| &d.rx_queues).map(|q| q.id).collect::<Vec<_>>() {
            let threading = host.napi_of(queue).and_then(|napi| napi.threaded).expect("a NAPI");
            write(&mut host, &Setting::Napi(queue, NapiKnob::Threaded(threading)));
        }
        for ((&pid, mode), connections) in PIDS.iter().zip(epolls).zip(connections) {
            let (first, rest) = connections.split_at(connections.len() / 2);
            let mut process = server(pid, "server", &[first, rest]);
            for epoll in &mut process.epolls {
                epoll.params = Some(mode.params().epoll);
            }
            host.processes.push(process);
        }
        if let Some(mode) = ring {
            let id = RingId { process: host.processes[0].id, fd: Fd(9) };
            let params = mode.params().epoll;
            let napi = params.prefer_busy_poll.then_some(RingNapi {
                busy_poll_usecs: params.busy_poll_usecs,
                prefer_busy_poll: true,
            });
            host.processes[0].rings.push(IoUring { id, napi, registered_sockets: 1, closed: None });
        }
        host
    }
}

prop_compose! {
    fn intents()(
        target in 0_usize..6,
        line in 1_u32..99,
        mode in prop::option::of(modes()),
        name in select(vec![PolicyName::Latency, PolicyName::Bulk, PolicyName::Cpu, PolicyName::None]),
        cpus in prop::option::of(prop::collection::btree_set(0_u32..6, 1..4)),
    ) -> Intent {
        let intent = match target {
            0 => on_device(line, "eth0", name),
            1 => on_device(line, "eth1", name),
            2 => on_service(line, "service", name),
            other => on_task(line, PIDS[other - 3], name),
        };
        let intent = match mode {
            Some(mode) => named(mode, intent),
            None => intent,
        };
        Intent {
            budget: Budget { polling_cpus: Some(64), ..Budget::default() },
            cpus: cpus.map(|cpus: BTreeSet<u32>| cpus.into_iter().map(Cpu).collect::<CpuSet>()),
            ..intent
        }
    }
}

fn policies() -> impl Strategy<Value = Policy> {
    prop::collection::vec(intents(), 1..4).prop_map(policy)
}

/// Resolves every service of a generated policy to the first two processes.
fn resolved() -> Resolved {
    (0..4).fold(Resolved::default(), |all, part| all.with(part, [Pid(PIDS[0]), Pid(PIDS[1])]))
}

fn planned(policy: &Policy, host: &Host) -> Option<(plan::Desired, Plan)> {
    let placement = place(policy, host, &resolved()).ok()?;
    let desired = desired(&placement, host).ok()?;
    let plan = diff(&desired, host).expect("every setting of these hosts was read");
    Some((desired, plan))
}

fn written<'a>(mut host: Host, settings: impl Iterator<Item = &'a Setting>) -> Host {
    settings.for_each(|setting| write(&mut host, setting));
    host
}

/// Returns whether a NAPI suspends without deferral, which the kernel accepts but ignores.
fn unsound(host: &Host, napi: NapiId) -> bool {
    let (_, napi) = host.napi(napi).expect("a NAPI");
    let off = |span: Option<Nanoseconds>| span == Some(Nanoseconds::ZERO);
    !off(napi.irq_suspend_timeout)
        && (napi.defer_hard_irqs == Some(EmptyPolls(0)) || off(napi.gro_flush_timeout))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_applied_is_what_was_desired_and_leaves_nothing_to_do(host in hosts(), policy in policies()) {
        let Some((desired, plan)) = planned(&policy, &host) else { return Ok(()) };
        let applied = written(host, plan.changes().map(model::Change::to));
        for line in desired.explain(&applied) {
            prop_assert_eq!(line.in_force.as_ref(), Some(&line.wanted));
        }
        prop_assert!(diff(&desired, &applied).expect("read").is_empty());
        let (_, again) = planned(&policy, &applied).expect("a possible plan stays possible");
        prop_assert!(again.is_empty(), "the second time: {:?}", again);
    }

    #[test]
    fn a_plan_and_its_inverse_leave_the_host_as_it_was(host in hosts(), policy in policies()) {
        let Some((_, plan)) = planned(&policy, &host) else { return Ok(()) };
        let applied = written(host.clone(), plan.changes().map(model::Change::to));
        let back = written(applied, plan.inverse().changes().map(model::Change::to));
        prop_assert_eq!(back, host);
    }

    #[test]
    fn the_same_input_gives_the_same_bytes(host in hosts(), policy in policies()) {
        let bytes = || {
            let placement = place(&policy, &host, &resolved())?;
            let plan = diff(&desired(&placement, &host)?, &host)?;
            Ok::<_, plan::Refusal>(serde_json::to_string(&plan).expect("serialises"))
        };
        prop_assert_eq!(bytes(), bytes());
    }

    #[test]
    fn a_plan_changes_each_knob_once_and_only_if_it_differs(host in hosts(), policy in policies()) {
        let Some((_, plan)) = planned(&policy, &host) else { return Ok(()) };
        let mut objects = BTreeSet::new();
        for step in &plan.steps {
            prop_assert!(objects.insert(step.object()), "{} has two steps", step.object());
        }
        for change in plan.changes() {
            prop_assert_ne!(change.from(), change.to());
            prop_assert_eq!(&written(host.clone(), std::iter::once(change.from())), &host);
        }
    }

    #[test]
    fn no_queue_is_suspended_without_deferral_on_the_way(host in hosts(), policy in policies()) {
        let Some((_, plan)) = planned(&policy, &host) else { return Ok(()) };
        let sound: Vec<NapiId> =
            NAPIS.map(NapiId).into_iter().filter(|&napi| !unsound(&host, napi)).collect();
        for changes in [&plan, &plan.clone().inverse()] {
            let backwards = changes != &plan;
            let mut host = host.clone();
            if backwards {
                host = written(host, plan.changes().map(model::Change::to));
            }
            for change in changes.changes() {
                write(&mut host, change.to());
                for &napi in &sound {
                    prop_assert!(!unsound(&host, napi), "after {change}");
                }
            }
        }
    }

    #[test]
    fn no_epoll_stops_polling_before_the_queues_stop_relying_on_it(host in hosts(), policy in policies()) {
        let Some((_, plan)) = planned(&policy, &host) else { return Ok(()) };
        for plan in [plan.clone(), plan.inverse()] {
            let stops = |change: &model::Change| match (change.from(), change.to()) {
                (Setting::Process(ProcessKnob::Epoll(_, from)), Setting::Process(ProcessKnob::Epoll(_, to))) => {
                    from.prefer_busy_poll && !to.prefer_busy_poll
                }
                (Setting::Process(ProcessKnob::IoUring(_, from)), Setting::Process(ProcessKnob::IoUring(_, to))) => {
                    from.is_some() && to.is_none()
                }
                _ => false,
            };
            let first_stop = plan.changes().position(stops);
            let is_queue =
                |c: &model::Change| matches!(c.to().object(), Object::Queue(_) | Object::Device(_));
            let last_queue =
                plan.changes().enumerate().filter(|(_, c)| is_queue(c)).map(|(at, _)| at).last();
            if let Some(first_stop) = first_stop {
                prop_assert!(last_queue.is_none_or(|last_queue| last_queue < first_stop));
            }
        }
    }

    #[test]
    fn only_cpus_that_were_asked_for_and_run_are_dealt_out(host in hosts(), policy in policies()) {
        let Some((_, plan)) = planned(&policy, &host) else { return Ok(()) };
        let asked: CpuSet =
            policy.intents.iter().filter_map(|i| i.cpus.as_ref()).flat_map(CpuSet::iter).collect();
        for change in plan.changes() {
            if let Setting::Irq(_, IrqKnob::Affinity(cpus)) | Setting::Process(ProcessKnob::ThreadAffinity(_, cpus)) = change.to() {
                prop_assert!(!cpus.is_empty());
                prop_assert!(cpus.is_subset(&asked) && cpus.is_subset(&host.topology.online));
            }
        }
    }
}
