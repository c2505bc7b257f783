//! Tests which requests are planned if some of them are refused, on a synthetic host.

use model::host::{AppRequest, Requester, Thread};
use model::{
    Budget, CpuSet, DeliveryMode, Fd, Host, Intent, IrqKnob, Pid, Policy, PolicyName, Setting, Target,
    ThreadId,
};

use crate::app_requests;
use crate::placing::{Placed, RequestMembers, place};
use crate::request_status;

/// The device in the fixture that has NAPIs and interrupts.
const NIC: &str = "eth0";

fn host() -> Host {
    let text = include_str!("../../netpolicy/tests/hosts/cache-server.json");
    let mut host: Host = serde_json::from_str(text).expect("a host");
    host.capabilities.epoll_events_only = true;
    host
}

fn policy(intents: Vec<Intent>) -> Policy {
    let recipes = policy_file::recipes(&[]).expect("the shipped recipes");
    Policy { intents, recipes, ..Policy::default() }
}

fn placed(policy: &Policy, host: &Host) -> Placed {
    place(&plan::select(policy, host), policy.intents.len(), host, &RequestMembers::new())
}

fn device(name: &str) -> Intent {
    let deferring = Some("defer50".parse().expect("a mode"));
    Intent { delivery: deferring, ..Intent::new(Target::Device(name.to_owned()), PolicyName::None, "test:1") }
}

fn waits_busily(pid: Pid, cpus: u32) -> Intent {
    Intent {
        delivery: Some(DeliveryMode::EventBusy),
        budget: Budget { polling_cpus: Some(cpus), ..Budget::default() },
        ..Intent::new(Target::Task(pid), PolicyName::None, "test:2")
    }
}

/// Adds an epoll, and a thread that waits in it.
fn another_epoll(host: &mut Host, pid: Pid) {
    let process = host.processes.iter_mut().find(|process| process.id.pid == pid).expect("it runs");
    let mut epoll = process.epolls[0].clone();
    epoll.id.fd = Fd(900);
    epoll.members.clear();
    process.epolls.push(epoll);
    let (affinity, waits_on) = (process.threads[0].affinity.clone(), None);
    let id = ThreadId { tid: Pid(pid.0 + 900), ..process.threads[0].id };
    process.threads.push(Thread { id, affinity, waits_on });
}

#[test]
fn an_epoll_too_many_for_a_budget_refuses_that_request_and_no_other() {
    let mut host = host();
    let process = &host.processes[0];
    let pid = process.id.pid;
    let waits = process.epolls.len().min(process.threads.len());
    let cpus = u32::try_from(waits).expect("few");
    let policy = policy(vec![device(NIC), waits_busily(pid, cpus)]);
    let before = placed(&policy, &host);
    assert_eq!(before.followed, [0, 1], "{:?}", before.refused);
    assert_eq!(request_status::polling(&before, &host).used, 0, "no setting of the request is in force yet");

    // Once the request is in force, it occupies a CPU per waiting thread, which uses up the budget.
    let params = DeliveryMode::EventBusy.params().epoll;
    for process in host.processes.iter_mut().filter(|process| process.id.pid == pid) {
        process.epolls.iter_mut().for_each(|epoll| epoll.params = Some(params));
    }
    let polling = request_status::polling(&placed(&policy, &host), &host);
    assert_eq!((polling.used, polling.allowed), (cpus, cpus));

    another_epoll(&mut host, pid);
    let after = placed(&policy, &host);
    assert_eq!(after.followed, [0]);
    let why = after.refused[&1].to_string();
    assert!(why.contains(&format!("the budget allows {cpus}")), "{why}");
    let requests = request_status::requests(&policy, &after);
    assert!(requests[1].notes[0].starts_with("refused: "), "{requests:?}");
    let settings = |placed: &Placed| -> Vec<Setting> {
        placed.desired.wanted.iter().map(|wanted| wanted.setting.clone()).collect()
    };
    let alone = Policy { intents: vec![device(NIC)], ..policy.clone() };
    assert_eq!(settings(&after), settings(&placed(&alone, &host)), "as if there were no such request");
}

#[test]
fn a_cpu_that_goes_off_line_is_in_no_plan_and_comes_back_into_it() {
    let mut host = host();
    let request = Intent { layout: Some("one-to-one".parse().expect("a layout")), ..device(NIC) };
    let policy = policy(vec![request]);
    let masks = |host: &Host| -> Vec<CpuSet> {
        let placed = placed(&policy, host);
        assert!(placed.refused.is_empty(), "{:?}", placed.refused);
        let wanted = placed.desired.wanted.iter();
        let masks = wanted.filter_map(|wanted| match &wanted.setting {
            Setting::Irq(_, IrqKnob::Affinity(cpus)) => Some(cpus.clone()),
            _ => None,
        });
        masks.collect()
    };
    let before = masks(&host);
    let gone = before[0].iter().next().expect("a CPU");
    let online = host.topology.online.clone();
    host.topology.online = online.iter().filter(|cpu| *cpu != gone).collect();
    let without = masks(&host);
    assert_eq!(without.len(), before.len());
    assert!(without.iter().all(|cpus| !cpus.contains(gone) && !cpus.is_empty()), "{without:?}");
    host.topology.online = online;
    assert_eq!(masks(&host), before);
}

#[test]
fn what_applications_cannot_have_keeps_no_request_of_the_operators_from_being_followed() {
    let mut host = host();
    let own = policy(vec![device(NIC)]);
    // Add more requesting processes than the number of requests that can be refused individually.
    let process = host.processes[0].clone();
    for number in 0..200 {
        let mut copy = process.clone();
        copy.id.pid = Pid(70_000 + number);
        host.app_requests
            .push(AppRequest { of: Requester::Task(copy.id.pid), number: PolicyName::Latency.number() });
        host.processes.push(copy);
    }
    let (joined, notes) = app_requests::joined(own.clone(), &host, &[]);
    assert_eq!((joined.intents.len(), notes.len()), (201, 0));
    let mut without = joined;
    // Without its recipes, the policy cannot be planned.
    without.recipes = std::sync::Arc::default();
    let placed = place(&plan::select(&without, &host), own.intents.len(), &host, &RequestMembers::new());
    assert_eq!(placed.followed, [0]);
    assert_eq!(placed.refused.len(), 200);
    assert_eq!(placed.own, 1);
}

#[test]
fn a_request_of_a_process_is_followed_beside_the_operators_requests_and_behind_what_names_the_process() {
    let mut host = host();
    let pid = host.processes[0].id.pid;
    host.app_requests.push(AppRequest { of: Requester::Task(pid), number: PolicyName::Latency.number() });
    let (joined, _) = app_requests::joined(policy(Vec::new()), &host, &[]);
    assert_eq!(joined.intents.len(), 1);
    assert_eq!(joined.intents[0].target, Target::Task(pid));
    let placed = place(&plan::select(&joined, &host), 0, &host, &RequestMembers::new());
    assert_eq!(placed.followed, [0], "{:?}", placed.refused);
    let named = Intent::new(Target::Task(pid), PolicyName::None, "test:1");
    assert_eq!(app_requests::joined(policy(vec![named.clone()]), &host, &[]).0.intents, [named]);
}

#[test]
fn who_asks_later_takes_nothing_from_whom_was_followed_before_whatever_its_number() {
    let mut host = host();
    let first = host.processes[0].clone();
    let mut later = first.clone();
    later.id.pid = Pid(first.id.pid.0 - 100);
    later.id.started = first.id.started + 1_000;
    host.app_requests
        .push(AppRequest { of: Requester::Task(first.id.pid), number: PolicyName::Latency.number() });
    host.app_requests
        .push(AppRequest { of: Requester::Task(later.id.pid), number: PolicyName::Bulk.number() });
    host.processes.insert(0, later.clone());
    let order = |followed: &[app_requests::Asker]| -> Vec<Target> {
        let (joined, _) = app_requests::joined(policy(Vec::new()), &host, followed);
        joined.intents.into_iter().map(|intent| intent.target).collect()
    };
    let (elder, younger) = (Target::Task(first.id.pid), Target::Task(later.id.pid));
    assert_eq!(order(&[]), [elder.clone(), younger.clone()], "ordered by how long they have been running");
    assert_eq!(order(&[(later.id.pid, PolicyName::Bulk)]), [younger, elder], "but settings in force stay");
}
