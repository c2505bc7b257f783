//! Tests which objects each request gets, and refusals.

use std::collections::BTreeSet;
use std::sync::Arc;

use insta::assert_snapshot;
use model::host::{IoUring, SocketState};
use model::policy::{Match, Overrides};
use model::{
    Budget, CpuSet, DeliveryMode, EpollParams, Fd, Host, Intent, Nanoseconds, NapiId, NapiKnob, NetnsId, Pid,
    Policy, PolicyName, ProcessKnob, RingId, Setting, Target,
};
use plan::{Refusal, RefusalKind, Resolved, ServiceState, desired, place};

use crate::made::{
    defer, device, host, listen, named, on_device, on_service, on_task, policy, server, set_epolls, suspend,
    veth, with_irqs, with_kernel,
};
use crate::read_aloud;

/// eth0 with four queues, memcached on two of them, and nginx on the other two.
fn two_services() -> Host {
    let mut host = host();
    host.devices.push(device(2, "eth0", &[259, 260, 261, 262]));
    let mut host = with_irqs(host, 40);
    host.processes.push(server(812, "memcached", &[&[259, 259], &[260]]));
    host.processes.push(server(901, "nginx", &[&[261], &[262, 262]]));
    host
}

fn refused(policy: &Policy, host: &Host, resolved: &Resolved) -> Refusal {
    match place(policy, host, resolved).and_then(|placement| desired(&placement, host)) {
        Ok(_) => panic!("this must be refused"),
        Err(refusal) => refusal,
    }
}

#[test]
fn a_device_whose_queues_could_not_be_read_is_not_said_to_have_no_napi() {
    let mut host = host();
    host.devices.push(device(2, "eth0", &[]));
    host.devices[0].rx_queues.clear();
    let policy = policy([named(defer(50), on_device(2, "eth0", PolicyName::None))]);
    let refusal = refused(&policy, &host, &Resolved::default());
    assert_eq!(refusal.kind, RefusalKind::Missing, "unreadable objects are listed with it");
    assert!(refusal.message.contains("none of the queues of eth0 could be read"), "{refusal}");
    assert!(!refusal.message.contains("has no NAPI"), "{refusal}");
}

#[test]
fn a_service_has_the_queues_that_its_sockets_lead_to_and_the_device_has_the_rest() {
    let policy =
        policy([on_device(2, "eth0", PolicyName::Bulk), on_service(5, "memcached", PolicyName::Latency)]);
    let resolved = Resolved::default().with(1, [Pid(812)]);
    let placement = place(&policy, &two_services(), &resolved).expect("placed");
    assert_snapshot!(read_aloud::placement(&placement));
}

#[test]
fn a_pod_that_receives_by_queues_here_is_placed_and_one_that_does_not_is_explained() {
    let mut host = two_services();
    host.processes[0].netns = Some(NetnsId(7));
    let policy = policy([on_service(2, "cache", PolicyName::Latency)]);
    let resolved = Resolved::default().with(0, [Pid(812)]);
    let placed = place(&policy, &host, &resolved).expect("placed");
    assert_eq!(placed.parts[0].queues.len(), 2, "the queues that its sockets name");
    for socket in &mut host.processes[0].sockets {
        socket.napi = None;
    }
    let left = place(&policy, &host, &resolved).expect("placed");
    assert!(left.parts[0].queues.is_empty() && left.parts[0].runs == ServiceState::No);
    assert!(left.parts[0].notes[0].contains("is left alone"), "{:?}", left.parts[0].notes);
}

#[test]
fn a_task_is_more_specific_than_the_service_it_belongs_to() {
    let policy = policy([
        on_service(2, "cache", PolicyName::Bulk),
        named(suspend(50), on_task(5, 901, PolicyName::None)),
    ]);
    let resolved = Resolved::default().with(0, [Pid(812), Pid(901)]);
    let placement = place(&policy, &two_services(), &resolved).expect("placed");
    let owner = |pid| placement.parts.iter().position(|p| p.processes.iter().any(|q| q.id.pid == Pid(pid)));
    assert_eq!((owner(812), owner(901)), (Some(0), Some(1)));
    let queues =
        |part: usize| placement.parts[part].queues.iter().map(|q| q.queue.index.0).collect::<Vec<_>>();
    assert_eq!((queues(0), queues(1)), (vec![0, 1], vec![2, 3]));
}

#[test]
fn two_services_on_one_queue_with_different_policies_are_refused_by_both_origins() {
    let mut host = two_services();
    host.processes[1].sockets[0].napi = Some(NapiId(260));
    let policy =
        policy([on_service(2, "memcached", PolicyName::Latency), on_service(7, "nginx", PolicyName::Bulk)]);
    let resolved = Resolved::default().with(0, [Pid(812)]).with(1, [Pid(901)]);
    assert_snapshot!(read_aloud::refusal(&refused(&policy, &host, &resolved)));
}

#[test]
fn two_services_on_one_queue_with_the_same_policy_share_it() {
    let mut host = two_services();
    host.processes[1].sockets[0].napi = Some(NapiId(260));
    let policy = policy([
        on_service(2, "memcached", PolicyName::Latency),
        on_service(7, "nginx", PolicyName::Latency),
    ]);
    let resolved = Resolved::default().with(0, [Pid(812)]).with(1, [Pid(901)]);
    let placement = place(&policy, &host, &resolved).expect("placed");
    assert_eq!(placement.parts[0].queues.len(), 2);
    assert!(placement.parts[1].notes[0].contains("10-cache.toml:2"), "{:?}", placement.parts[1].notes);
}

#[test]
fn two_services_on_one_queue_must_want_its_interrupt_on_the_same_cpus() {
    let mut host = two_services();
    host.processes[1].sockets[0].napi = Some(NapiId(260));
    let with_cpus = |intent, cpus: &str| Intent { cpus: Some(cpus.parse().expect("cpulist")), ..intent };
    let tasks = |cpus| {
        policy([
            with_cpus(on_task(2, 812, PolicyName::Latency), "0-1"),
            with_cpus(on_task(7, 901, PolicyName::Latency), cpus),
        ])
    };
    let refusal = refused(&tasks("2-3"), &host, &Resolved::default());
    assert_eq!((refusal.kind, refusal.object.as_str()), (RefusalKind::Conflict, "eth0 rx-1"));
    assert!(place(&tasks("0-1"), &host, &Resolved::default()).is_ok());
    for napi in &mut host.devices[0].napis {
        napi.irq = None;
    }
    assert!(
        place(&tasks("2-3"), &host, &Resolved::default()).is_ok(),
        "without interrupts, no queue is shared"
    );
}

#[test]
fn an_epoll_that_watches_two_devices_cannot_serve_two_policies() {
    let mut host = two_services();
    host.devices.push(device(3, "eth1", &[300]));
    host.processes.push(server(950, "redis", &[&[259, 300]]));
    let both = |second| policy([on_device(2, "eth0", PolicyName::Latency), on_device(3, "eth1", second)]);
    let refusal = refused(&both(PolicyName::Bulk), &host, &Resolved::default());
    assert_eq!(
        (refusal.kind, refusal.object.as_str()),
        (RefusalKind::Conflict, "redis[950] epoll 7"),
        "{refusal:?}"
    );
    assert!(
        place(&both(PolicyName::Cpu), &host, &Resolved::default()).is_ok(),
        "both requests prefer busy polling"
    );
}

#[test]
fn a_queue_without_a_napi_is_left_out_and_counted() {
    let mut host = two_services();
    host.devices[0].rx_queues[3].napi = None;
    let bulk = policy([on_device(2, "eth0", PolicyName::Bulk)]);
    let part = &place(&bulk, &host, &Resolved::default()).expect("placed").parts[0];
    assert_eq!(part.queues.len(), 3);
    assert!(
        part.notes
            .contains(&"1 queue(s) of eth0 have no NAPI: the delivery mode is not set there".to_owned())
    );
}

#[test]
fn without_settings_for_single_queues_two_tasks_cannot_divide_a_device() {
    let tasks =
        policy([on_task(2, 812, PolicyName::Bulk), named(defer(20), on_task(7, 901, PolicyName::None))]);
    assert!(
        place(&tasks, &two_services(), &Resolved::default()).is_ok(),
        "each service has dedicated queues"
    );
    let refusal = place(&tasks, &with_kernel(two_services(), "6.6.1"), &Resolved::default())
        .expect_err("both requests need the whole device");
    assert_eq!((refusal.kind, refusal.object.as_str()), (RefusalKind::Conflict, "eth0 rx-0"));
}

#[test]
fn loopback_is_never_taken_for_a_device_that_could_bring_traffic() {
    let mut host = with_kernel(two_services(), "6.6.1");
    let mut lo = device(1, "lo", &[0]);
    (lo.rx_queues[0].napi, lo.kind) = (None, String::new());
    lo.napis.clear();
    host.devices.insert(0, lo);
    host.processes = vec![server(812, "memcached", &[&[]])];
    listen(&mut host.processes[0], 0);
    let bulk = policy([on_task(2, 812, PolicyName::Bulk)]);
    let part = &place(&bulk, &host, &Resolved::default()).expect("placed").parts[0];
    assert!(part.queues.iter().all(|q| q.queue.device.name.as_str() == "eth0"), "{:?}", part.queues);
}

#[test]
fn every_thread_that_could_poll_counts_against_the_budget() {
    let needed = |host: &Host, intent: Intent| {
        let needed = (0..9).find(|&cpus| {
            let budget = Budget { polling_cpus: Some(cpus), ..Budget::default() };
            let busy = named(DeliveryMode::FullBusy, Intent { budget, ..intent.clone() });
            place(&policy([busy]), host, &Resolved::default()).is_ok()
        });
        needed.expect("nine CPUs are enough")
    };
    let mut host = two_services();
    let task = || on_task(2, 812, PolicyName::None);
    host.processes[0] = server(812, "memcached", &[&[259], &[260], &[]]);
    assert_eq!(needed(&host, task()), 3, "an epoll without connections may get some");
    host.processes[0].threads.truncate(1);
    assert_eq!(needed(&host, task()), 1, "one thread waits in one epoll at a time");
    host.processes[0].epolls.clear();
    assert_eq!(needed(&host, task()), 1, "the process's first epoll will come");
    let both = on_device(2, "eth0", PolicyName::None);
    assert_eq!(needed(&host, both.clone()), 2, "nginx has two");
    host.processes.clear();
    assert_eq!(needed(&host, both), 1, "a thread will poll, or the queues wait 5 ms");
}

#[test]
fn an_epoll_that_only_accepts_neither_counts_nor_is_set_to_poll_all_the_time() {
    let mut host = two_services();
    host.processes[0] = server(812, "memcached", &[&[], &[259, 260]]);
    listen(&mut host.processes[0], 0);
    let mut busy = named(DeliveryMode::FullBusy, on_task(2, 812, PolicyName::None));
    busy.budget.polling_cpus = Some(1);
    let busy = policy([busy]);
    let epolls = |host: &Host| -> Result<Vec<Fd>, Refusal> {
        let part = place(&busy, host, &Resolved::default())?.parts.remove(0);
        Ok(part.processes[0].epolls.iter().map(|epoll| epoll.fd).collect())
    };
    assert_eq!(
        epolls(&host),
        Ok(vec![Fd(8)]),
        "memcached -t 1: the epoll of the worker, not that of the thread that accepts"
    );
    let mut userbusy = named(DeliveryMode::UserBusy, on_task(2, 812, PolicyName::None));
    userbusy.budget.polling_cpus = Some(1);
    let refusal = refused(&policy([userbusy]), &host, &Resolved::default());
    assert_eq!(
        refusal.kind,
        RefusalKind::Safety,
        "an epoll_wait that never sleeps spins, whatever it waits for"
    );
    // suspend20 does not poll without traffic, so it is set on both epolls.
    let resting = policy([named(suspend(20), on_task(2, 812, PolicyName::None))]);
    let placed = place(&resting, &host, &Resolved::default()).expect("placed");
    assert_eq!(placed.parts[0].processes[0].epolls.len(), 2);

    let params = DeliveryMode::FullBusy.params().epoll;
    host.processes[0].epolls[0].params = Some(params);
    assert_eq!(epolls(&host).expect_err("it may poll").kind, RefusalKind::Safety);

    host.processes[0] = server(812, "redis", &[&[]]);
    listen(&mut host.processes[0], 0);
    assert_eq!(epolls(&host), Ok(vec![Fd(7)]), "the only epoll will have the connections, too");
    host.processes[0] = server(812, "envoy", &[&[259], &[260]]);
    listen(&mut host.processes[0], 0);
    assert_eq!(
        epolls(&host).expect_err("two poll").kind,
        RefusalKind::Safety,
        "the thread accepts and serves"
    );
}

#[test]
fn a_process_without_epolls_counts_beside_others_that_have_some() {
    let mut host = two_services();
    host.processes[0].epolls.clear();
    let mut busy = named(DeliveryMode::FullBusy, on_service(2, "both", PolicyName::None));
    let resolved = Resolved::default().with(0, [Pid(812), Pid(901)]);
    busy.budget.polling_cpus = Some(2);
    assert_eq!(refused(&policy([busy.clone()]), &host, &resolved).kind, RefusalKind::Safety);
    busy.budget.polling_cpus = Some(3);
    assert!(place(&policy([busy]), &host, &resolved).is_ok());
}

#[test]
fn two_tasks_that_are_one_process_must_want_the_same() {
    let tasks = [on_task(2, 812, PolicyName::Latency), on_task(3, 812, PolicyName::Bulk)];
    let refusal = refused(&policy(tasks), &two_services(), &Resolved::default());
    assert_eq!(refusal.kind, RefusalKind::Conflict);
    assert!(refusal.message.contains("10-cache.toml:2 and 10-cache.toml:3"), "{refusal}");
}

#[test]
fn a_device_alone_sets_the_nics_half_and_says_so() {
    let mut host = two_services();
    host.processes.clear();
    let latency = policy([on_device(2, "eth0", PolicyName::Latency)]);
    let placement = place(&latency, &host, &Resolved::default()).expect("placed");
    assert_snapshot!(read_aloud::placement(&placement));
}

#[test]
fn a_device_whose_other_half_a_service_sets_says_so() {
    let mut host = two_services();
    host.processes.truncate(1);
    let both =
        policy([on_device(2, "eth0", PolicyName::Latency), on_service(5, "memcached", PolicyName::Latency)]);
    let placement = place(&both, &host, &Resolved::default().with(1, [Pid(812)])).expect("placed");
    let notes = &placement.parts[0].notes;
    assert!(
        notes
            .contains(&"the epolls' part of the mode is set by the request for service memcached".to_owned()),
        "{notes:?}"
    );
    assert!(!notes.iter().any(|note| note.contains("only the NIC's part of the mode")), "{notes:?}");
}

#[test]
fn a_device_takes_along_the_epolls_that_watch_its_sockets() {
    let mut host = two_services();
    host.devices.push(device(3, "eth1", &[300]));
    host.processes.push(server(950, "redis", &[&[300]]));
    let latency = policy([on_device(2, "eth0", PolicyName::Latency)]);
    let placement = place(&latency, &host, &Resolved::default()).expect("placed");
    let pids: Vec<u32> = placement.parts[0].processes.iter().map(|p| p.id.pid.0).collect();
    assert_eq!(pids, [812, 901], "redis receives on eth1");
}

#[test]
fn a_device_that_defers_leaves_alone_what_applications_set_for_themselves() {
    let mut host = two_services();
    set_epolls(&mut host.processes[0], DeliveryMode::NapiBusy);
    host.processes[1].epolls[0].params = Some(EpollParams {
        busy_poll_usecs: 50,
        busy_poll_budget: 8,
        prefer_busy_poll: false,
        events_only: false,
    });
    let placement = place(&policy([on_device(2, "eth0", PolicyName::Bulk)]), &host, &Resolved::default())
        .expect("placed");
    let pids: Vec<u32> = placement.parts[0].processes.iter().map(|p| p.id.pid.0).collect();
    assert_eq!(pids, [812], "only memcached prefers busy polling, for nothing");
}

#[test]
fn a_server_without_traffic_takes_every_device_that_could_bring_some() {
    let mut host = two_services();
    host.devices.push(device(1, "lo", &[]));
    let mut down = device(3, "eth1", &[300]);
    down.up = false;
    host.devices.push(down);
    host.processes = vec![server(812, "memcached", &[&[], &[]])];
    listen(&mut host.processes[0], 0);
    let placement =
        place(&policy([on_task(2, 812, PolicyName::Latency)]), &host, &Resolved::default()).expect("placed");
    assert_snapshot!(read_aloud::placement(&placement));
}

#[test]
fn a_process_that_no_packet_can_come_to_takes_no_queues() {
    let mut host = two_services();
    host.processes = vec![server(812, "sleep", &[&[]])];
    host.processes[0].epolls.clear();
    let asked = policy([on_task(2, 812, PolicyName::Latency)]);
    let part = place(&asked, &host, &Resolved::default()).expect("placed").parts.remove(0);
    assert!(part.queues.is_empty(), "{:?}", part.queues);
    assert!(
        part.notes[0].contains("sleep[812] has no socket that could receive packets"),
        "{:?}",
        part.notes
    );
}

#[test]
fn a_socket_that_is_neither_bound_nor_connected_takes_no_queues_until_it_is() {
    let mut host = two_services();
    host.processes = vec![server(812, "ifconfig", &[&[]])];
    listen(&mut host.processes[0], 0);
    let socket = &mut host.processes[0].sockets[0];
    (socket.state, socket.local, socket.remote, socket.napi) = (SocketState::Udp, None, None, None);
    let asked = policy([on_task(2, 812, PolicyName::Latency)]);
    let queues =
        |host: &Host| place(&asked, host, &Resolved::default()).expect("placed").parts.remove(0).queues.len();
    assert_eq!(queues(&host), 0, "programs have such sockets for an ioctl");
    host.processes[0].sockets[0].state = SocketState::TcpOther;
    assert_eq!(queues(&host), 0);
    let socket = &mut host.processes[0].sockets[0];
    (socket.state, socket.local) = (SocketState::Udp, "0.0.0.0:53".parse().ok());
    assert!(queues(&host) > 0, "any host may send to the socket");
}

#[test]
fn queues_that_share_a_napi_are_placed_once() {
    let mut host = host();
    host.devices.push(device(2, "eth0", &[259, 260]));
    host.devices[0].rx_queues[1].napi = host.devices[0].rx_queues[0].napi;
    let placement = place(&policy([on_device(2, "eth0", PolicyName::Bulk)]), &host, &Resolved::default())
        .expect("placed");
    let queues = &placement.parts[0].queues;
    assert_eq!((queues.len(), queues[0].also.len()), (1, 1));
}

#[test]
fn an_idle_service_is_no_fault() {
    let matching =
        Match { exe: Some("memcached".parse().expect("a pattern")), port: Some(11211), ..Match::default() };
    let mut service = on_service(2, "memcached", PolicyName::Latency);
    service.target = Target::Service("memcached".to_owned(), matching);
    let placement = place(&policy([service]), &two_services(), &Resolved::default()).expect("placed");
    assert!(placement.parts[0].queues.is_empty());
    assert!(
        placement.parts[0].notes[0].contains("no process of this service runs (exe memcached, port 11211)")
    );
    assert_eq!(placement.parts[0].runs, ServiceState::No);
}

#[test]
fn a_service_that_could_not_be_looked_for_is_not_said_not_to_run() {
    let resolved = Resolved::default().unjudged(0, 148, "process 1: Permission denied (EACCES)");
    let policy = policy([on_service(2, "memcached", PolicyName::Latency)]);
    let mut host = two_services();
    host.capabilities.ptrace = true;
    let placement = place(&policy, &host, &resolved).expect("placed");
    assert_eq!(
        placement.parts[0].runs,
        ServiceState::No,
        "a process that not even root may inspect is not a service"
    );
    host.capabilities.ptrace = false;
    let placement = place(&policy, &host, &resolved).expect("placed");
    let note = &placement.parts[0].notes[0];
    assert!(
        note.contains("is not known: 148 could not be inspected (process 1: Permission denied"),
        "{note}"
    );
    assert_eq!(placement.parts[0].runs, ServiceState::NotKnown);
}

#[test]
fn a_policy_without_a_recipe_and_mix_for_a_task_are_refused_with_what_works_instead() {
    let mut unread = policy([on_device(2, "eth0", PolicyName::Power)]);
    Arc::make_mut(&mut unread.recipes).policies.remove(&PolicyName::Power);
    let refusal = refused(&unread, &two_services(), &Resolved::default());
    assert_eq!(refusal.kind, RefusalKind::Missing);
    assert!(refusal.message.contains("power has no recipe"), "{refusal}");
    let mix = policy([on_task(2, 812, PolicyName::Mix)]);
    let refusal = refused(&mix, &two_services(), &Resolved::default());
    assert_eq!((refusal.kind, refusal.nearest.is_some()), (RefusalKind::Usage, true));
}

#[test]
fn full_busy_polling_needs_a_budget() {
    let mut intent = named(DeliveryMode::FullBusy, on_task(2, 812, PolicyName::None));
    let refusal = refused(&policy([intent.clone()]), &two_services(), &Resolved::default());
    assert_snapshot!(read_aloud::refusal(&refusal));
    intent.budget = Budget { polling_cpus: Some(1), ..Budget::default() };
    let refusal = refused(&policy([intent.clone()]), &two_services(), &Resolved::default());
    assert_eq!(refusal.kind, RefusalKind::Safety, "two threads poll");
    intent.budget.polling_cpus = Some(2);
    let placement = place(&policy([intent]), &two_services(), &Resolved::default()).expect("affordable");
    let note = placement.parts[0].notes.last().expect("a note");
    assert!(note.contains("epoll_wait never to sleep longer than 1ms"), "{note}");
}

#[test]
fn a_delay_that_cuts_a_host_off_must_be_asked_for() {
    let mut intent = on_device(2, "eth0", PolicyName::Bulk);
    intent.overrides.gro_flush_timeout = Some(Nanoseconds::from_millis(20_000));
    let refusal = refused(&policy([intent.clone()]), &two_services(), &Resolved::default());
    assert_eq!(refusal.kind, RefusalKind::Safety);
    intent.budget.added_delay = Some(Nanoseconds::from_millis(20_000));
    assert!(place(&policy([intent]), &two_services(), &Resolved::default()).is_ok());
}

#[test]
fn deferral_may_not_delay_beyond_the_budget() {
    let mut intent = on_device(2, "eth0", PolicyName::Cpu);
    intent.budget.added_delay = Some(Nanoseconds::from_micros(50));
    let refusal = refused(&policy([intent.clone()]), &two_services(), &Resolved::default());
    assert_snapshot!(read_aloud::refusal(&refusal));
    intent.budget.added_delay = Some(Nanoseconds::from_micros(200));
    assert!(place(&policy([intent]), &two_services(), &Resolved::default()).is_ok());
}

#[test]
fn values_that_contradict_each_other_are_refused_before_anything_is_looked_at() {
    let us = |n| Some(Nanoseconds::from_micros(n));
    let own = |defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout| Overrides {
        defer_hard_irqs,
        gro_flush_timeout,
        irq_suspend_timeout,
    };
    let mut text = String::new();
    for (mode, overrides) in [
        (suspend(20), own(Some(0), None, None)),
        (suspend(20), own(None, us(0), None)),
        (suspend(20), own(None, None, us(0))),
        (suspend(20), own(None, us(30_000), None)),
        (suspend(20), own(None, None, us(20))),
        (defer(20), own(None, None, us(20_000))),
        (DeliveryMode::Interrupt, own(Some(100), None, None)),
        (defer(20), own(Some(u32::MAX), None, None)),
        (defer(20), own(None, Some(Nanoseconds(u64::MAX)), None)),
    ] {
        let intent = Intent { overrides, ..named(mode, on_device(2, "eth0", PolicyName::None)) };
        let refusal = refused(&policy([intent]), &host(), &Resolved::default());
        assert_eq!(refusal.kind, RefusalKind::Usage);
        text += &read_aloud::refusal(&refusal);
    }
    assert_snapshot!(text);
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let mut elsewhere = two_services();
    elsewhere.processes[0].netns = Some(NetnsId(4_026_532_000));
    elsewhere.processes[0].sockets.iter_mut().for_each(|socket| socket.napi = None);
    let mut bare = host();
    bare.devices.push(veth(2, "veth0", &[300]));
    bare.devices[0].napis.clear();
    bare.devices[0].rx_queues[0].napi = None;
    bare.processes.push(server(812, "memcached", &[&[]]));
    listen(&mut bare.processes[0], 0);
    let mut cpus = on_device(2, "eth0", PolicyName::Latency);
    cpus.cpus = Some("8-11".parse::<CpuSet>().expect("cpulist"));
    let text: String = [
        (policy([on_device(2, "eth7", PolicyName::Latency)]), two_services()),
        (policy([on_task(2, 4711, PolicyName::Latency)]), two_services()),
        (policy([on_task(2, 812, PolicyName::Latency)]), elsewhere),
        (policy([on_device(2, "veth0", PolicyName::Latency)]), bare.clone()),
        (policy([on_task(2, 812, PolicyName::Latency)]), bare),
        (policy([cpus]), two_services()),
    ]
    .iter()
    .map(|(policy, host)| refused(policy, host, &Resolved::default()))
    .inspect(|refusal| {
        // If the device is up, the cause is its driver or its state, so the refusal has another kind.
        let is_bare = refusal.object == "device veth0";
        let kind = if is_bare { RefusalKind::Unsupported } else { RefusalKind::Missing };
        assert_eq!(refusal.kind, kind, "{refusal}");
    })
    .map(|refusal| read_aloud::refusal(&refusal))
    .collect();
    assert_snapshot!(text);
}

#[test]
fn a_device_named_as_ip_link_prints_it_is_told_its_name() {
    let request = policy([on_device(2, "eth0@lower", PolicyName::Latency)]);
    let refusal = refused(&request, &two_services(), &Resolved::default());
    assert_eq!(refusal.kind, RefusalKind::Missing);
    assert!(
        refusal.evidence.iter().any(|line| line.starts_with("the device is eth0: ")),
        "{:?}",
        refusal.evidence
    );
}

#[test]
fn an_older_kernel_gets_the_nearest_mode_offered() {
    let task = || on_task(2, 812, PolicyName::None);
    let text: String = [
        ("6.12.9", named(suspend(20), task())),
        ("6.6.1", named(suspend(20), task())),
        ("6.6.1", named(DeliveryMode::NapiBusy, task())),
        ("5.4.0", named(defer(50), task())),
    ]
    .map(|(release, intent)| {
        refused(&policy([intent]), &with_kernel(two_services(), release), &Resolved::default())
    })
    .iter()
    .inspect(|refusal| assert_eq!(refusal.kind, RefusalKind::Unsupported))
    .map(read_aloud::refusal)
    .collect();
    assert_snapshot!(text);
}

#[test]
fn a_busy_server_without_a_napi_is_refused_for_that_and_not_for_silence() {
    let mut host = host();
    host.devices.push(veth(2, "veth0", &[]));
    host.processes.push(server(812, "redis-server", &[&[0; 20]]));
    let request = policy([named(suspend(20), on_task(2, 812, PolicyName::None))]);
    let refused =
        |host: &Host| place(&request, host, &Resolved::default()).expect_err("the device has no NAPI");
    let refusal = refused(&host);
    assert_eq!(refusal.kind, RefusalKind::Missing);
    assert_snapshot!(read_aloud::refusal(&refusal));

    // netpolicy knows no command that gives other kinds of devices a NAPI, so it suggests none.
    host.devices[0].kind = "bridge".to_owned();
    let refusal = refused(&host);
    assert_eq!(refusal.kind, RefusalKind::Unsupported);
    assert!(!refusal.evidence.iter().any(|line| line.contains("ethtool")), "{refusal:?}");

    for socket in &mut host.processes[0].sockets {
        socket.remote = Some("[::ffff:127.0.0.1]:40000".parse().expect("address"));
    }
    let refusal = refused(&host);
    assert!(refusal.to_string().contains("receives only over loopback (20 connections)"), "{refusal}");
}

#[test]
fn connections_on_no_napi_are_not_called_silence_either() {
    let mut host = host();
    host.devices.push(veth(2, "veth0", &[328]));
    host.processes.push(server(812, "redis-server", &[&[0; 20]]));
    let request = policy([named(suspend(20), on_task(2, 812, PolicyName::None))]);
    let placement = place(&request, &host, &Resolved::default()).expect("placed");
    let notes = placement.parts[0].notes.join("\n");
    assert!(notes.contains("20 connection(s) of redis-server[812] receive on no NAPI"), "{notes}");
    assert!(!notes.contains("is unknown until a packet arrives"), "{notes}");
}

#[test]
fn the_first_connection_is_awaited_where_nothing_has_shown_by_which_napi_a_server_receives() {
    let pid = Pid(812);
    let away = NetnsId(4_026_532_000);
    let mut host = two_services();
    let process = &mut host.processes[0];
    process.sockets.iter_mut().for_each(|socket| socket.napi = None);
    process.sockets[0].state = SocketState::TcpListen;
    process.sockets[0].local = Some("10.77.0.2:6379".parse().expect("address"));
    process.sockets[0].remote = None;
    process.sockets.truncate(1);
    let awaited = |host: &Host| -> BTreeSet<(NetnsId, u16)> {
        plan::without_packets([pid], host).flat_map(plan::listened_ports).collect()
    };
    host.processes[0].netns = Some(host.netns);
    let port = 6379;
    assert_eq!(
        awaited(&host),
        [(host.netns, port)].into(),
        "of this namespace all queues are taken meanwhile"
    );
    host.processes[0].netns = Some(away);
    assert_eq!(awaited(&host), [(away, port)].into());
    let mut connection = host.processes[0].sockets[0].clone();
    connection.state = SocketState::TcpEstablished;
    connection.remote = Some("10.77.0.1:40000".parse().expect("address"));
    host.processes[0].sockets.push(connection);
    assert!(awaited(&host).is_empty(), "a connection that arrived through a backlog has shown it");
    host.processes[0].sockets[1].napi = Some(NapiId(513));
    assert!(awaited(&host).is_empty());
    assert_eq!(plan::without_packets([], &host).count(), 0);
}

#[test]
fn a_pods_udp_server_waits_for_its_first_datagram_and_a_client_for_none() {
    let pid = Pid(812);
    let mut host = two_services();
    let process = &mut host.processes[0];
    process.netns = Some(NetnsId(4_026_532_000));
    process.sockets.truncate(1);
    let socket = &mut process.sockets[0];
    (socket.state, socket.napi, socket.remote) = (SocketState::Udp, None, None);
    socket.local = "10.77.0.2:53".parse().ok();
    let waits = |host: &Host| plan::without_packets([pid], host).count();
    assert_eq!(waits(&host), 1);
    let process = plan::without_packets([pid], &host).next().expect("one");
    assert!(plan::listened_ports(process).is_empty(), "no connection will arrive");
    host.processes[0].sockets[0].napi = Some(NapiId(513));
    assert_eq!(waits(&host), 0, "one came");
    host.processes[0].sockets[0].napi = None;
    host.processes[0].sockets[0].local = "0.0.0.0:0".parse().ok();
    assert_eq!(waits(&host), 0, "the service has no port");
}

#[test]
fn an_io_uring_that_cannot_be_reached_is_refused_with_its_reason() {
    let mut host = two_services();
    let process = &mut host.processes[0];
    process.epolls.clear();
    process.rings.push(IoUring {
        id: RingId { process: process.id, fd: Fd(9) },
        napi: None,
        registered_sockets: 4,
        closed: Some("IORING_SETUP_SINGLE_ISSUER: only its own thread may register (EEXIST)".to_owned()),
    });
    let refusal = refused(&policy([on_task(2, 812, PolicyName::Latency)]), &host, &Resolved::default());
    assert_snapshot!(read_aloud::refusal(&refusal));
}

#[test]
fn the_origin_of_a_refusal_is_always_reported() {
    let target = Target::Device("eth0".to_owned());
    let refusal = refused(&policy([on_device(9, "eth0", PolicyName::Mix)]), &host(), &Resolved::default());
    assert_eq!(refusal.object, target.to_string());
    assert!(refusal.evidence.iter().any(|line| line.contains("10-cache.toml:9")), "{refusal:?}");
}

#[test]
fn waiting_busily_for_events_is_refused_where_the_kernel_was_asked_and_said_no() {
    let mut intent = named(DeliveryMode::EventBusy, on_task(2, 812, PolicyName::None));
    let mut patched = two_services();
    patched.capabilities.epoll_events_only = true;
    let refusal = refused(&policy([intent.clone()]), &patched, &Resolved::default());
    assert_eq!(refusal.kind, RefusalKind::Safety, "the polling CPU counts against the budget: {refusal}");
    let placement = place(&policy([intent.clone()]), &two_services(), &Resolved::default());
    let refusal =
        desired(&placement.expect("no budget could allow it"), &two_services()).expect_err("not here");
    assert_eq!(
        refusal.kind,
        RefusalKind::Unsupported,
        "a missing kernel feature is reported first: {refusal}"
    );
    intent.budget.polling_cpus = Some(2);
    let mut host = two_services();
    let placement = place(&policy([intent]), &host, &Resolved::default()).expect("affordable");
    let refusal = desired(&placement, &host).expect_err("no release of Linux has the feature");
    assert_eq!(refusal.kind, RefusalKind::Unsupported);
    assert_snapshot!(read_aloud::refusal(&refusal));
    host.capabilities.epoll_events_only = true;
    let wanted = desired(&placement, &host).expect("this kernel has the feature").wanted;
    let epolls: Vec<String> = wanted
        .iter()
        .filter(|wanted| matches!(wanted.setting, Setting::Process(ProcessKnob::Epoll(..))))
        .map(|wanted| format!("{}: {}", wanted.setting.value(), wanted.because))
        .collect();
    assert_eq!(epolls.len(), placement.parts[0].processes[0].epolls.len());
    assert!(
        epolls[0].starts_with("200us/0/0/events-only: epoll_wait checks for events for 200 us"),
        "{epolls:?}"
    );
    let deferred = wanted.iter().any(|wanted| match wanted.setting {
        Setting::Napi(_, NapiKnob::DeferHardIrqs(polls)) => polls.0 > 0,
        Setting::Napi(_, NapiKnob::GroFlushTimeout(span))
        | Setting::Napi(_, NapiKnob::IrqSuspendTimeout(span)) => !span.is_zero(),
        _ => false,
    });
    assert!(!deferred, "the interrupt must deliver the events, as the application does not");
}

#[test]
fn a_mode_that_polls_no_napi_takes_no_timeouts() {
    for mode in DeliveryMode::EPOLL_DOCUMENT {
        let mut intent = named(mode, on_task(2, 812, PolicyName::None));
        intent.budget.polling_cpus = Some(2);
        intent.overrides.gro_flush_timeout = Some(Nanoseconds::from_micros(50));
        let refusal = refused(&policy([intent]), &two_services(), &Resolved::default());
        assert_eq!(refusal.kind, RefusalKind::Usage);
        assert!(refusal.message.contains("they would delay events"), "{refusal}");
    }
}

#[test]
fn asking_for_events_from_user_space_needs_a_budget_and_a_start_under_netpolicy() {
    let mut intent = named(DeliveryMode::UserBusy, on_task(2, 812, PolicyName::None));
    let refusal = refused(&policy([intent.clone()]), &two_services(), &Resolved::default());
    assert!(refusal.message.contains("keeps 2 CPU(s) busy-waiting when idle"), "{refusal}");
    intent.budget.polling_cpus = Some(2);
    let placement = place(&policy([intent]), &two_services(), &Resolved::default()).expect("affordable");
    let note = placement.parts[0].notes.last().expect("a note");
    assert!(note.contains("userbusy needs epoll_wait never to sleep: "), "{note}");
}

#[test]
fn an_attachment_is_not_said_to_share_with_itself_nor_to_wait_for_its_master() {
    let mut host = host();
    host.devices.push(veth(2, "veth0", &[328]));
    host.processes.push(server(812, "nginx", &[&[328; 4]]));
    host.processes.push(server(813, "nginx", &[&[328; 4]]));
    let mut master = server(811, "nginx", &[&[328; 4]]);
    master.epolls.clear();
    host.processes.insert(0, master);
    let attached = |pid| Intent {
        origin: "netpolicy attach".to_owned(),
        ..named(suspend(20), on_task(1, pid, PolicyName::None))
    };
    let notes = |host: &Host, pids: &[u32]| -> Vec<String> {
        let policy = policy(pids.iter().map(|pid| attached(*pid)));
        let placement = place(&policy, host, &Resolved::default()).expect("placed");
        placement.parts.into_iter().flat_map(|part| part.notes).collect()
    };
    let all = notes(&host, &[811, 812, 813]);
    assert!(!all.iter().any(|note| note.contains("are set by the request of")), "{all:?}");
    assert!(!all.iter().any(|note| note.contains("has no epoll yet")), "{all:?}");
    let alone = notes(&host, &[811]);
    assert!(alone.iter().any(|note| note.contains("nginx[811] has no epoll yet")), "{alone:?}");
}
