//! Tests requests of applications in addition to the operator's policy.

use model::host::{AppRequest, Host, Requester, SocketState};
use model::{Fd, Pid, PolicyName, Target};
use plan::app_requests::{Joined, join};
use plan::{Placement, Resolved, place};

use crate::made::{device, host, on_device, on_service, on_task, policy, server, with_irqs};

/// eth0 with four queues, and a server with one epoll on the first two queues and another on the other two.
fn two_epolls() -> Host {
    let mut host = host();
    host.devices.push(device(2, "eth0", &[259, 260, 261, 262]));
    let mut host = with_irqs(host, 40);
    host.processes.push(server(812, "proxy", &[&[259, 260], &[261, 262]]));
    host
}

/// Returns a request of the n-th socket of `proxy`.
fn socket(n: u64, policy: PolicyName) -> AppRequest {
    AppRequest { of: Requester::Socket(812_000 + n), number: policy.number() }
}

fn task(policy: PolicyName) -> AppRequest {
    AppRequest { of: Requester::Task(Pid(812)), number: policy.number() }
}

fn placed(joined: &Joined, host: &Host, resolved: &Resolved) -> Placement {
    place(&joined.policy, host, resolved).expect("the joined requests can be placed")
}

/// Returns the policy, the epolls and the queues of every request, in the policy's order.
fn owned(placement: &Placement) -> Vec<(PolicyName, Vec<Fd>, Vec<u32>)> {
    let epolls =
        |part: &plan::PlacedRequest| part.processes.iter().flat_map(|p| &p.epolls).map(|e| e.fd).collect();
    let queues = |part: &plan::PlacedRequest| part.queues.iter().map(|q| q.queue.index.0).collect();
    placement.parts.iter().map(|part| (part.intent.policy, epolls(part), queues(part))).collect()
}

#[test]
fn sockets_are_more_specific_than_their_service_and_leave_it_the_rest() {
    let host = two_epolls();
    let policy = policy([on_service(2, "proxy", PolicyName::Bulk)]);
    let resolved = Resolved::default().with(0, [Pid(812)]);
    let joined = join(&policy, &[socket(1, PolicyName::Latency)], &host, &resolved);
    assert_eq!(joined.notes, [""; 0]);
    assert_eq!(
        owned(&placed(&joined, &host, &resolved)),
        [(PolicyName::Bulk, vec![Fd(8)], vec![2, 3]), (PolicyName::Latency, vec![Fd(7)], vec![0, 1]),]
    );
}

#[test]
fn sockets_are_more_specific_than_their_process_and_a_process_than_a_device() {
    let host = two_epolls();
    let policy = policy([on_device(2, "eth0", PolicyName::Bulk)]);
    let resolved = Resolved::default();
    let requests = [task(PolicyName::Cpu), socket(3, PolicyName::Latency), socket(1, PolicyName::Cpu)];
    let joined = join(&policy, &requests, &host, &resolved);
    assert_eq!(
        owned(&placed(&joined, &host, &resolved)),
        [
            (PolicyName::Bulk, vec![], vec![]),
            (PolicyName::Cpu, vec![Fd(7)], vec![0, 1]),
            (PolicyName::Latency, vec![Fd(8)], vec![2, 3]),
        ]
    );
}

#[test]
fn a_request_for_a_datagram_socket_claims_the_queue_of_the_socket_only() {
    let mut host = two_epolls();
    for socket in &mut host.processes[0].sockets {
        socket.state = SocketState::Udp;
        socket.local = Some("0.0.0.0:20000".parse().expect("an address"));
        socket.remote = None;
    }
    let policy = policy([on_device(2, "eth0", PolicyName::Cpu)]);
    let resolved = Resolved::default();
    let joined = join(&policy, &[socket(4, PolicyName::Latency)], &host, &resolved);
    assert_eq!(
        owned(&placed(&joined, &host, &resolved)),
        [(PolicyName::Cpu, vec![Fd(7)], vec![0, 1]), (PolicyName::Latency, vec![Fd(8)], vec![2, 3])]
    );
}

#[test]
fn what_a_device_asks_for_goes_on_for_the_epolls_that_ask_for_nothing() {
    let host = two_epolls();
    let policy = policy([on_device(2, "eth0", PolicyName::Cpu)]);
    let resolved = Resolved::default();
    let joined = join(&policy, &[socket(4, PolicyName::Latency)], &host, &resolved);
    assert_eq!(
        owned(&placed(&joined, &host, &resolved)),
        [(PolicyName::Cpu, vec![Fd(7)], vec![0, 1]), (PolicyName::Latency, vec![Fd(8)], vec![2, 3]),]
    );
}

#[test]
fn what_the_operator_asks_for_a_process_counts_more_than_its_own_requests() {
    let host = two_epolls();
    let policy = policy([on_task(2, 812, PolicyName::Bulk)]);
    let requests = [task(PolicyName::Latency), socket(1, PolicyName::Latency)];
    assert_eq!(join(&policy, &requests, &host, &Resolved::default()).policy, policy);
}

#[test]
fn an_epoll_whose_sockets_ask_for_different_things_is_left_out_and_said() {
    let host = two_epolls();
    let requests =
        [socket(1, PolicyName::Latency), socket(2, PolicyName::Bulk), socket(3, PolicyName::Latency)];
    let joined = join(&policy([]), &requests, &host, &Resolved::default());
    let targets: Vec<&Target> = joined.policy.intents.iter().map(|intent| &intent.target).collect();
    assert_eq!(targets, [&Target::Epolls(Pid(812), vec![Fd(8)])]);
    assert_eq!(joined.notes.len(), 1);
    assert!(joined.notes[0].contains("request latency and bulk"), "{}", joined.notes[0]);
}

#[test]
fn a_request_that_cannot_be_met_is_left_out_and_the_others_are_not() {
    let mut host = two_epolls();
    // Another process, for which the operator requests another policy, also receives on the first two queues.
    host.processes.push(server(901, "cache", &[&[259], &[260]]));
    let policy = policy([on_task(2, 901, PolicyName::Bulk)]);
    let resolved = Resolved::default();
    let requests = [socket(1, PolicyName::Latency), socket(3, PolicyName::Cpu)];
    let joined = join(&policy, &requests, &host, &resolved);
    assert_eq!(joined.notes.len(), 1, "{:?}", joined.notes);
    assert!(
        joined.notes[0].starts_with("epoll 7 of task 812: its request for latency"),
        "{}",
        joined.notes[0]
    );
    assert_eq!(
        owned(&placed(&joined, &host, &resolved)),
        [(PolicyName::Bulk, vec![Fd(7), Fd(8)], vec![0, 1]), (PolicyName::Cpu, vec![Fd(8)], vec![2, 3]),]
    );
}

#[test]
fn requests_that_change_nothing_leave_the_policy_as_it_is() {
    let host = two_epolls();
    let policy = policy([on_device(2, "eth0", PolicyName::Bulk)]);
    // The requests name a process that does not exist, a socket that no process holds, and an unknown number.
    let requests = [
        AppRequest { of: Requester::Task(Pid(1)), number: 3 },
        AppRequest { of: Requester::Socket(1), number: 3 },
        AppRequest { of: Requester::Task(Pid(812)), number: 4 },
    ];
    let joined = join(&policy, &requests, &host, &Resolved::default());
    assert_eq!(joined, Joined { policy, notes: Vec::new() });
}
