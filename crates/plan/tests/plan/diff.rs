//! Tests which changes are planned, and in which order.

use insta::assert_snapshot;
use model::host::IoUring;
use model::{
    Budget, CpuSet, DeliveryMode, Fd, Host, IrqKnob, Nanoseconds, NapiKnob, Object, PolicyName, ProcessKnob,
    RingId, RingNapi, Setting, Threading,
};
use plan::{RefusalKind, Resolved};

use crate::made::{
    defer, device, host, named, on_device, on_task, policy, server, set_epolls, set_napis, suspend,
    with_irqs, with_kernel, write,
};
use crate::read_aloud::{self, planned};

/// eth0 with two queues, and a memcached with a worker on each.
fn cache() -> Host {
    let mut host = host();
    host.devices.push(device(2, "eth0", &[259, 260]));
    let mut host = with_irqs(host, 40);
    host.processes.push(server(812, "memcached", &[&[259], &[260]]));
    host
}

fn applied(policy: &model::Policy, mut host: Host) -> Host {
    let plan = planned(policy, &host, &Resolved::default()).expect("planned");
    for change in plan.changes() {
        write(&mut host, change.to());
    }
    host
}

#[test]
fn latency_for_memcached() {
    let mut intent = on_task(2, 812, PolicyName::Latency);
    intent.cpus = Some("2-3".parse::<CpuSet>().expect("cpulist"));
    let plan = planned(&policy([intent]), &cache(), &Resolved::default()).expect("planned");
    assert_snapshot!(read_aloud::plan(&plan));
}

#[test]
fn the_way_back_to_interrupts() {
    let latency = policy([on_task(2, 812, PolicyName::Latency)]);
    let host = applied(&latency, cache());
    let none = policy([on_task(2, 812, PolicyName::None)]);
    let plan = planned(&none, &host, &Resolved::default()).expect("planned");
    assert_snapshot!(read_aloud::plan(&plan));
}

#[test]
fn an_expert_mode_with_a_value_of_its_own() {
    let mut intent = named(suspend(20), on_device(4, "eth0", PolicyName::None));
    intent.overrides.irq_suspend_timeout = Some(Nanoseconds::from_millis(50));
    let plan = planned(&policy([intent]), &cache(), &Resolved::default()).expect("planned");
    assert_snapshot!(read_aloud::plan(&plan));
}

#[test]
fn only_what_differs_is_changed() {
    let mut host = cache();
    set_napis(&mut host.devices[0], 100, 20, 0);
    let plan = planned(
        &policy([named(suspend(20), on_device(2, "eth0", PolicyName::None))]),
        &host,
        &Resolved::default(),
    )
    .expect("planned");
    let queues: Vec<String> = plan
        .changes()
        .filter(|c| matches!(c.to().object(), Object::Queue(_)))
        .map(ToString::to_string)
        .collect();
    let expected = ["eth0 rx-0: irq-suspend-timeout 0 → 20ms", "eth0 rx-1: irq-suspend-timeout 0 → 20ms"];
    assert_eq!(queues, expected);
}

#[test]
fn a_napi_costs_one_step_in_either_direction() {
    let latency = policy([on_task(2, 812, PolicyName::Latency)]);
    let none = policy([on_task(2, 812, PolicyName::None)]);
    let raised = planned(&latency, &cache(), &Resolved::default()).expect("planned");
    let lowered = planned(&none, &applied(&latency, cache()), &Resolved::default()).expect("planned");
    for plan in [raised, lowered] {
        let queues = plan.steps.iter().filter(|s| matches!(s.object(), Object::Queue(_))).count();
        assert_eq!(queues, 2);
    }
}

#[test]
fn epolls_begin_before_their_queues_and_end_after_them() {
    let latency = policy([on_task(2, 812, PolicyName::Latency)]);
    let raised = planned(&latency, &cache(), &Resolved::default()).expect("planned");
    let kind = |step: &model::Step| match step.object() {
        Object::Epoll(_) => 'e',
        Object::Queue(_) => 'q',
        _ => '?',
    };
    let order = |plan: &model::Plan| plan.steps.iter().map(kind).collect::<String>();
    assert_eq!(order(&raised), "eeqq");
    assert_eq!(order(&raised.clone().inverse()), "qqee", "an undo has the reverse order of a plan");
    let none = policy([on_task(2, 812, PolicyName::None)]);
    let lowered = planned(&none, &applied(&latency, cache()), &Resolved::default()).expect("planned");
    assert_eq!(order(&lowered), "qqee");
}

#[test]
fn from_full_busy_polling_to_suspension_nothing_is_set_twice() {
    let mut busy = named(DeliveryMode::FullBusy, on_task(2, 812, PolicyName::None));
    busy.budget = Budget { polling_cpus: Some(2), ..Budget::default() };
    let host = applied(&policy([busy]), cache());
    let latency = policy([on_task(2, 812, PolicyName::Latency)]);
    let plan = planned(&latency, &host, &Resolved::default()).expect("planned");
    assert_snapshot!(read_aloud::plan(&plan));
}

#[test]
fn a_kernel_without_napi_set_is_set_by_whole_devices() {
    let host = with_kernel(cache(), "6.6.1");
    let bulk = policy([on_task(2, 812, PolicyName::Bulk)]);
    let plan = planned(&bulk, &host, &Resolved::default()).expect("planned");
    assert_snapshot!(read_aloud::plan(&plan));
}

#[test]
fn a_napi_with_a_kernel_thread_gives_it_up() {
    let mut host = cache();
    host.devices[0].napis[1].threaded = Some(Threading::On);
    let bulk = policy([on_device(2, "eth0", PolicyName::Bulk)]);
    let plan = planned(&bulk, &host, &Resolved::default()).expect("planned");
    let unthreaded: Vec<String> = plan
        .changes()
        .filter(|c| matches!(c.to(), Setting::Napi(_, NapiKnob::Threaded(..))))
        .map(ToString::to_string)
        .collect();
    assert_eq!(unthreaded, ["eth0 rx-1: threaded on → off"]);
}

#[test]
fn before_threading_was_per_napi_the_device_gives_up_its_kernel_threads() {
    let mut host = with_kernel(cache(), "6.14.1");
    host.devices[0].threaded = Some(Threading::On);
    for napi in &mut host.devices[0].napis {
        napi.threaded = Some(Threading::On);
    }
    let bulk = policy([on_device(2, "eth0", PolicyName::Bulk)]);
    let plan = planned(&bulk, &host, &Resolved::default()).expect("planned");
    assert_eq!(plan.changes().next().expect("a change").to_string(), "eth0: threaded on → off");
    assert!(!plan.changes().any(|c| matches!(c.to(), Setting::Napi(_, NapiKnob::Threaded(..)))));
}

#[test]
fn an_io_uring_that_polls_is_stopped_and_one_that_does_not_is_left_alone() {
    let mut host = cache();
    let process = &mut host.processes[0];
    let ring = |fd, napi| IoUring {
        id: RingId { process: process.id, fd: Fd(fd) },
        napi,
        registered_sockets: 4,
        closed: None,
    };
    let polls = RingNapi { busy_poll_usecs: 64, prefer_busy_poll: true };
    process.rings = vec![ring(9, Some(polls)), ring(10, None)];
    let none = policy([on_task(2, 812, PolicyName::None)]);
    let plan = planned(&none, &host, &Resolved::default()).expect("planned");
    let changes: Vec<String> = plan.changes().map(ToString::to_string).collect();
    assert_eq!(changes, ["memcached[812] io_uring 9: napi busy_poll usecs/prefer 64us/1 → off"]);
}

#[test]
fn two_queues_on_one_interrupt_get_one_cpu() {
    let mut host = cache();
    host.devices[0].napis[1].irq = host.devices[0].napis[0].irq;
    let mut intent = on_device(2, "eth0", PolicyName::Bulk);
    intent.cpus = Some("2-3".parse::<CpuSet>().expect("cpulist"));
    let plan = planned(&policy([intent]), &host, &Resolved::default()).expect("planned");
    let irqs: Vec<String> = plan
        .changes()
        .filter(|c| matches!(c.to(), Setting::Irq(_, IrqKnob::Affinity(..))))
        .map(ToString::to_string)
        .collect();
    assert_eq!(irqs, ["irq 40: smp_affinity 0-3 → 2"]);
}

#[test]
fn an_io_uring_is_given_the_time_that_an_epoll_has_in_napibusy() {
    let mut host = cache();
    let process = &mut host.processes[0];
    let id = RingId { process: process.id, fd: Fd(9) };
    process.rings.push(IoUring { id, napi: None, registered_sockets: 4, closed: None });
    let latency = policy([on_task(2, 812, PolicyName::Latency)]);
    let plan = planned(&latency, &host, &Resolved::default()).expect("planned");
    let ring = plan
        .changes()
        .find(|c| matches!(c.to(), Setting::Process(ProcessKnob::IoUring(..))))
        .expect("the ring");
    let napi = RingNapi { busy_poll_usecs: 64, prefer_busy_poll: true };
    assert_eq!(ring.to(), &Setting::Process(ProcessKnob::IoUring(id, Some(napi))));
}

#[test]
fn cpus_that_are_offline_are_never_dealt_out() {
    let mut host = cache();
    host.topology.online = "0-2".parse().expect("cpulist");
    let mut intent = on_task(2, 812, PolicyName::Bulk);
    intent.cpus = Some("2-3".parse::<CpuSet>().expect("cpulist"));
    let plan = planned(&policy([intent]), &host, &Resolved::default()).expect("planned");
    let affinity = plan.changes().filter_map(|c| match c.to() {
        Setting::Irq(_, IrqKnob::Affinity(cpus)) | Setting::Process(ProcessKnob::ThreadAffinity(_, cpus)) => {
            Some(cpus.to_string())
        }
        _ => None,
    });
    assert_eq!(affinity.collect::<Vec<_>>(), ["2", "2", "2", "2"]);
}

#[test]
fn a_value_that_was_not_read_is_not_changed() {
    let mut host = cache();
    host.devices[0].napis[1].gro_flush_timeout = None;
    let refusal = planned(&policy([on_device(2, "eth0", PolicyName::Bulk)]), &host, &Resolved::default())
        .expect_err("the setting could not be restored");
    assert_eq!(refusal.kind, RefusalKind::Missing);
    assert_eq!(
        refusal.to_string(),
        "eth0 rx-1: the value of gro-flush-timeout could not be read, so it could not be undone"
    );
}

#[test]
fn two_requests_for_one_interrupt_are_refused() {
    let mut host = cache();
    host.devices.push(device(3, "eth1", &[300]));
    host.devices[1].napis[0].irq = host.devices[0].napis[0].irq;
    let with_cpus = |intent: model::Intent, cpus: &str| model::Intent {
        cpus: Some(cpus.parse::<CpuSet>().expect("cpulist")),
        ..intent
    };
    let intents = [
        with_cpus(named(defer(20), on_device(2, "eth0", PolicyName::None)), "0-1"),
        with_cpus(named(defer(50), on_device(3, "eth1", PolicyName::None)), "2-3"),
    ];
    let refusal = planned(&policy(intents), &host, &Resolved::default()).expect_err("a conflict");
    assert_snapshot!(read_aloud::refusal(&refusal));
}

#[test]
fn epolls_that_prefer_by_themselves_are_put_back_to_that() {
    let mut host = cache();
    set_epolls(&mut host.processes[0], DeliveryMode::NapiBusy);
    let plan = planned(&policy([on_task(2, 812, PolicyName::Latency)]), &host, &Resolved::default())
        .expect("planned");
    let mut raised = host.clone();
    for change in plan.changes() {
        write(&mut raised, change.to());
    }
    for change in plan.inverse().changes() {
        write(&mut raised, change.to());
    }
    assert_eq!(raised, host);
}
