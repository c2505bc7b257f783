//! Tests findings of `doctor` on applications that busy-wait for events and poll no NAPI.

use model::{CpuSet, DeliveryMode, Host, PolicyName, Severity};
use plan::{RequestFacts, Resolved, doctor, place};

use crate::doctor::{SOFTIRQ, found, memcached, rules};
use crate::made::{delivered, named, on_task, policy, set_epolls, set_napis};

/// Returns a host whose epolls and queues have the settings of this mode.
fn waiting(mode: DeliveryMode, workers: &[&[u32]]) -> Host {
    let mut host = memcached(&[328], workers);
    host.capabilities.epoll_events_only = true;
    set_napis(&mut host.devices[0], 0, 0, 0);
    set_epolls(&mut host.processes[0], mode);
    host
}

/// Returns the facts about a request for this mode, with a budget that allows every worker to keep a CPU
/// busy.
fn asked_to_wait(host: &Host, mode: DeliveryMode) -> Vec<RequestFacts> {
    let mut request = named(mode, on_task(2, 812, PolicyName::None));
    request.budget.polling_cpus = Some(64);
    place(&policy([request]), host, &Resolved::default()).expect("placed").asked()
}

#[test]
fn epolls_that_wait_for_events_only_are_reported_and_nothing_is_wrong() {
    let host = waiting(DeliveryMode::EventBusy, &[&[328; 20]]);
    let findings =
        doctor(&host, Some(&delivered([SOFTIRQ.on(328)])), &asked_to_wait(&host, DeliveryMode::EventBusy));
    assert_eq!(rules(&findings), ["events-only"]);
    assert_eq!(findings[0].severity, Severity::Ok);
    assert_eq!(findings[0].evidence, ["busy_poll usecs/budget/prefer is 200us/0/0/events-only"]);
}

#[test]
fn events_only_on_a_kernel_without_it_is_a_problem_that_names_the_patches() {
    let mut host = waiting(DeliveryMode::Interrupt, &[&[328; 20]]);
    host.capabilities.epoll_events_only = false;
    let findings = doctor(&host, None, &asked_to_wait(&host, DeliveryMode::EventBusy));
    let finding = found(&findings, "kernel-too-old");
    assert!(finding.summary.contains("kernel/epoll-event-busy-loop"), "{}", finding.summary);
    assert_eq!(finding.remedy.as_deref(), Some("netpolicy set device veth0 interrupt"));
}

#[test]
fn waiting_busily_for_events_that_are_put_off_is_a_problem() {
    let mut host = waiting(DeliveryMode::EventBusy, &[&[328; 20]]);
    set_napis(&mut host.devices[0], 100, 200, 0);
    let findings = doctor(&host, None, &[]);
    let finding = found(&findings, "events-only-deferred");
    assert!(finding.summary.contains("up to 200us late"), "{}", finding.summary);
    assert_eq!(finding.remedy.as_deref(), Some("netpolicy set task 812 eventbusy"));
}

#[test]
fn more_waiters_than_cpus_gain_nothing_and_those_of_user_space_hold_each_other_up() {
    let one_cpu = |mode| {
        let mut host = waiting(mode, &[&[328; 5], &[328; 5]]);
        for thread in &mut host.processes[0].threads {
            thread.affinity = CpuSet::from_iter([model::Cpu(1)]);
        }
        host
    };
    let host = one_cpu(DeliveryMode::EventBusy);
    assert!(found(&doctor(&host, None, &[]), "events-only-crowded").summary.contains("gains nothing"));
    let host = one_cpu(DeliveryMode::UserBusy);
    let findings = doctor(&host, None, &asked_to_wait(&host, DeliveryMode::UserBusy));
    assert!(found(&findings, "events-only-crowded").summary.contains("compete for CPU"));
    let findings = doctor(&waiting(DeliveryMode::EventBusy, &[&[328; 5]]), None, &[]);
    assert_eq!(rules(&findings), ["events-only"], "one epoll has a CPU of its own");
}

#[test]
fn userbusy_without_the_library_is_seen_asleep() {
    let mut host = waiting(DeliveryMode::UserBusy, &[&[328; 20]]);
    let asked = asked_to_wait(&host, DeliveryMode::UserBusy);
    for thread in &mut host.processes[0].threads {
        thread.waits_on = None;
    }
    assert_eq!(rules(&doctor(&host, None, &asked)), [""; 0], "the epoll spins, as intended");
    let epoll = host.processes[0].epolls[0].id.fd;
    host.processes[0].threads[0].waits_on = Some(epoll);
    let findings = doctor(&host, None, &asked);
    assert!(
        found(&findings, "userbusy-sleeps").remedy.as_deref().is_some_and(|r| r.contains("netpolicy run"))
    );
}
