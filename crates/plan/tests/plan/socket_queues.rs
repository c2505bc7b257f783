//! Tests queues for the requests of sockets and tasks on a `mix` device: for servers by port, for clients by
//! connection.

use model::host::{AppRequest, Host, PlacedRule, Process, Requester, Socket, SocketState};
use model::{FlowRule, NapiId, NicKnob, Pid, Policy, PolicyName, Setting, SteerTo, Target};
use plan::app_requests::join;
use plan::{Placement, Resolved, place};

use crate::divide::with_nic;
use crate::made::{host, listen, on_device, on_task, policy, server, veth, write};
use crate::read_aloud::{self, planned};

/// A process whose epoll watches connections to a database, from consecutive local ports.
fn client(pid: u32, comm: &str, connections: u16) -> Process {
    let napis: Vec<u32> = (0..connections).map(|_| 300).collect();
    let mut process = server(pid, comm, &[&napis]);
    for (socket, port) in process.sockets.iter_mut().zip(40_000..) {
        socket.local = Some(([10, 0, 0, 1], port).into());
        socket.remote = Some(([10, 0, 0, 9], 3306).into());
    }
    process
}

/// A server on port 11211 with one connection on the first queue, and a client with three connections.
fn server_and_client() -> Host {
    let mut host = with_nic(8);
    let mut cache = server(812, "cache", &[&[300]]);
    listen(&mut cache, 0);
    host.processes.extend([cache, client(901, "shop", 3)]);
    host
}

/// A request for each socket of a process.
fn requests(host: &Host, pid: u32, policy: PolicyName) -> Vec<AppRequest> {
    let sockets = &host.process(Pid(pid)).expect("a process").sockets;
    let of = |socket: &Socket| Requester::Socket(socket.inode);
    sockets.iter().map(|socket| AppRequest { of: of(socket), number: policy.number() }).collect()
}

/// Returns the policy `mix` for the device with these requests, all of which can be met.
fn joined(host: &Host, requests: &[AppRequest]) -> Policy {
    let joined = join(&policy([on_device(2, "eth0", PolicyName::Mix)]), requests, host, &Resolved::default());
    assert_eq!(joined.notes, [""; 0]);
    joined.policy
}

fn placed(policy: &Policy, host: &Host) -> Placement {
    place(policy, host, &Resolved::default()).expect("placed")
}

/// The queues and the rules of each share.
fn shares(placement: &Placement) -> Vec<(String, Vec<String>)> {
    let of = |share: &plan::Share| {
        (share.queues.to_string(), share.rules.iter().map(FlowRule::to_string).collect::<Vec<_>>())
    };
    placement.divisions.iter().flat_map(|division| division.shares.iter().map(of)).collect()
}

fn notes(placement: &Placement, pid: u32) -> Vec<String> {
    let of =
        |part: &&plan::PlacedRequest| matches!(part.intent.target, Target::Epolls(Pid(p), _) if p == pid);
    placement.parts.iter().filter(of).flat_map(|part| part.notes.clone()).collect()
}

const TO_SERVER: &str = "tcp4 dst-port 11211";

fn to_client(port: u16) -> String {
    format!("tcp4 src-ip 10.0.0.9 dst-ip 10.0.0.1 src-port 3306 dst-port {port}")
}

#[test]
fn a_server_gets_queues_by_its_port_and_a_client_by_its_connections() {
    let mut host = server_and_client();
    let mut asked = requests(&host, 812, PolicyName::Latency);
    asked.extend(requests(&host, 901, PolicyName::Bulk));
    let policy = joined(&host, &asked);
    let placement = placed(&policy, &host);
    assert_eq!(placement.divisions[0].rest.to_string(), "0-4");
    assert_eq!(
        shares(&placement),
        [
            ("5".to_owned(), vec![format!("{TO_SERVER} queue 5")]),
            (
                "6-7".to_owned(),
                [40_000, 40_001, 40_002].map(|port| format!("{} context 6-7", to_client(port))).to_vec()
            ),
        ]
    );
    let queues: Vec<Vec<u32>> =
        placement.parts.iter().map(|part| part.queues.iter().map(|q| q.queue.index.0).collect()).collect();
    assert_eq!(queues, [vec![0, 1, 2, 3, 4], vec![5], vec![6, 7]]);

    // Once the plan is applied and packets arrive on the new queues, planning again changes nothing.
    for change in planned(&policy, &host, &Resolved::default()).expect("planned").changes() {
        write(&mut host, change.to());
    }
    for (process, napi) in host.processes.iter_mut().zip([305, 306]) {
        for socket in process.sockets.iter_mut().filter(|socket| socket.napi.is_some()) {
            socket.napi = Some(NapiId(napi));
        }
    }
    let again = planned(&joined(&host, &asked), &host, &Resolved::default()).expect("planned");
    assert!(again.is_empty(), "{}", read_aloud::plan(&again));

    // If one connection ends and another begins, only their rules change.
    let socket = host.processes[1].sockets.first_mut().expect("a connection");
    socket.local = Some(([10, 0, 0, 1], 50_000).into());
    let policy = joined(&host, &asked);
    assert_eq!(
        shares(&placed(&policy, &host))[1].1,
        [40_001, 40_002, 50_000].map(|port| format!("{} context 6-7", to_client(port)))
    );
    let next = planned(&policy, &host, &Resolved::default()).expect("planned");
    let written: Vec<&Setting> = next.changes().map(model::Change::to).collect();
    assert!(matches!(written[..], [Setting::Nic(_, NicKnob::FlowRule(..))]), "{}", read_aloud::plan(&next));
}

#[test]
fn requests_for_the_same_policy_share_a_queue_group() {
    let host = server_and_client();
    let mut asked = requests(&host, 812, PolicyName::Latency);
    asked.extend(requests(&host, 901, PolicyName::Latency));
    let shares = shares(&placed(&joined(&host, &asked), &host));
    let [(queues, rules)] = &shares[..] else { panic!("{shares:?}") };
    assert_eq!((queues.as_str(), rules.len()), ("7", 4));
}

#[test]
fn each_busy_polling_epoll_whose_sockets_have_a_request_gets_a_queue() {
    let mut host = with_nic(8);
    host.processes.push(server(812, "cache", &[&[300], &[301], &[302]]));
    listen(&mut host.processes[0], 0);
    let asked = requests(&host, 812, PolicyName::Latency);
    assert_eq!(shares(&placed(&joined(&host, &asked), &host))[0].0, "5-7");
}

#[test]
fn a_task_that_is_a_client_gets_queues_by_its_connections() {
    let host = server_and_client();
    let policy = policy([on_device(2, "eth0", PolicyName::Mix), on_task(3, 901, PolicyName::Bulk)]);
    assert_eq!(shares(&placed(&policy, &host))[0].1.len(), 3);
}

#[test]
fn a_connection_accepted_by_a_listener_without_a_request_gets_a_rule() {
    let host = server_and_client();
    let accepted: Vec<AppRequest> = requests(&host, 812, PolicyName::Latency)
        .into_iter()
        .filter(|request| request.of == Requester::Socket(812_001))
        .collect();
    let mut host = host;
    // Let another process hold the listener.
    host.processes[0].sockets.retain(|socket| socket.state != SocketState::TcpListen);
    let shares = shares(&placed(&joined(&host, &accepted), &host));
    assert_eq!(shares[0].1, ["tcp4 src-ip 10.0.0.2 dst-ip 10.0.0.1 src-port 40000 dst-port 11211 queue 7"]);
}

#[test]
fn a_connection_on_the_port_of_another_request_keeps_that_requests_queue() {
    let mut host = server_and_client();
    let socket = host.processes[1].sockets.first_mut().expect("a connection");
    socket.local = Some(([10, 0, 0, 1], 11_211).into());
    let mut asked = requests(&host, 812, PolicyName::Latency);
    asked.extend(requests(&host, 901, PolicyName::Bulk));
    let placement = placed(&joined(&host, &asked), &host);
    assert_eq!(shares(&placement)[1].1.len(), 2);
    let notes = notes(&placement, 901);
    assert!(
        notes.iter().any(|note| note.contains(
            "no dedicated queues on eth0: 1 connection(s) arrive on port 11211, whose rule is for another request"
        )),
        "{notes:?}"
    );
}

#[test]
fn a_request_whose_queues_the_device_cannot_give_says_why_and_is_met_otherwise() {
    let without_rules = |host: &mut Host| host.devices[0].flow_rules = None;
    let on_loopback = |host: &mut Host| {
        for socket in &mut host.processes[1].sockets {
            socket.remote = socket.local;
        }
    };
    let one_queue = |host: &mut Host| *host = Host { processes: host.processes.clone(), ..with_nic(1) };
    type Change<'c> = (&'c dyn Fn(&mut Host), &'c str);
    let cases: [Change<'_>; 3] = [
        (&without_rules, "its driver has no ntuple rules"),
        (&on_loopback, "none of its sockets listens on a port or is connected to another host"),
        (&one_queue, "needs 1 queues for latency (epoll 7 of task 901), none are left"),
    ];
    for (change, why) in cases {
        let mut host = server_and_client();
        change(&mut host);
        let asked = requests(&host, 901, PolicyName::Latency);
        let placement = placed(&joined(&host, &asked), &host);
        assert_eq!(shares(&placement), [], "{why}");
        let notes = notes(&placement, 901);
        let expected = format!("it gets no dedicated queues on eth0: {why}");
        assert!(notes.contains(&expected), "{notes:?}");
        assert_eq!(placement.parts[1].processes[0].epolls.len(), 1, "{why}: its epoll is set");
    }
}

#[test]
fn a_device_that_is_not_mixed_is_left_as_it_is() {
    let host = server_and_client();
    let asked = requests(&host, 901, PolicyName::Latency);
    let joined = join(&policy([]), &asked, &host, &Resolved::default());
    let placement = placed(&joined.policy, &host);
    assert_eq!(
        (placement.divisions.len(), notes(&placement, 901).len()),
        (0, 0),
        "{:?}",
        notes(&placement, 901)
    );
}

#[test]
fn sockets_that_disagree_do_not_divide_a_device_that_is_not_mixed() {
    let host = server_and_client();
    let mut asked = requests(&host, 812, PolicyName::Latency);
    asked.extend(requests(&host, 901, PolicyName::Bulk));
    let joined = join(&policy([]), &asked, &host, &Resolved::default());
    assert_eq!(joined.notes.len(), 1, "the later request conflicts: {:?}", joined.notes);
    assert!(placed(&joined.policy, &host).divisions.is_empty());
}

#[test]
fn a_veth_says_that_its_driver_has_no_rules() {
    let mut host = Host { processes: vec![client(901, "shop", 1)], ..host() };
    host.devices.push(veth(2, "eth0", &[300]));
    let asked = requests(&host, 901, PolicyName::Latency);
    let notes = notes(&placed(&joined(&host, &asked), &host), 901);
    assert!(
        notes.contains(&"it gets no dedicated queues on eth0: its driver has no ntuple rules".to_owned()),
        "{notes:?}"
    );
}

#[test]
fn connections_beyond_the_limit_are_counted_and_those_with_a_rule_keep_it() {
    let most = FlowRule::OF_A_DEVICE_MAX;
    let mut host = with_nic(8);
    host.processes.push(client(901, "shop", u16::try_from(most + 5).expect("few")));
    let asked = requests(&host, 901, PolicyName::Bulk);
    // Of all connections, only the last one already has a rule.
    let last = to_client(40_000 + u16::try_from(most + 4).expect("few"));
    let rule: FlowRule = format!("{last} queue 7").parse().expect("a rule");
    host.devices[0].flow_rules = Some(vec![PlacedRule { location: 3, flow: Some(rule.flow), to: rule.to }]);
    let placement = placed(&joined(&host, &asked), &host);
    let share = &placement.divisions[0].shares[0];
    assert_eq!(share.rules.len(), most);
    assert!(
        share.rules.iter().any(|kept| kept.flow == rule.flow && kept.to == SteerTo::Context(share.queues))
    );
    let expected = format!(
        "eth0: 5 of its connections get no rule, because netpolicy adds at most {most} per device, as many for each user"
    );
    assert!(notes(&placement, 901).contains(&expected), "{:?}", notes(&placement, 901));
}

#[test]
fn a_user_with_many_connections_leaves_rules_for_the_others() {
    let most = u16::try_from(FlowRule::OF_A_DEVICE_MAX).expect("few");
    let mut host = with_nic(8);
    // The second user has fewer connections than a third of the limit, so the other users share what is left.
    for (pid, uid, from, connections) in
        [(901, 1001, 20_000, most), (902, 1002, 30_000, 4), (903, 1001, 40_000, 30), (904, 1003, 50_000, 50)]
    {
        let mut process = client(pid, "shop", connections);
        process.uid = uid;
        for (socket, port) in process.sockets.iter_mut().zip(from..) {
            socket.local = Some(([10, 0, 0, 1], port).into());
        }
        host.processes.push(process);
    }
    let asked: Vec<AppRequest> = (901..=904).flat_map(|pid| requests(&host, pid, PolicyName::Bulk)).collect();
    let placement = placed(&joined(&host, &asked), &host);
    let rules = shares(&placement).remove(0).1;
    let from = |port: &str| rules.iter().filter(|rule| rule.contains(&format!("dst-port {port}"))).count();
    assert_eq!((rules.len(), from("3"), from("5")), (usize::from(most), 4, 30), "{rules:?}");
    assert!(notes(&placement, 904)[0].starts_with("eth0: 20 of its connections get no rule"));
}

#[test]
fn an_application_with_many_epolls_gets_no_more_queues_than_it_has_threads_or_than_is_fair() {
    let mut host = with_nic(8);
    let epolls: Vec<&[u32]> = vec![&[300]; 7];
    host.processes.push(server(812, "cache", &epolls));
    listen(&mut host.processes[0], 0);
    let asked = requests(&host, 812, PolicyName::Latency);
    let placement = placed(&joined(&host, &asked), &host);
    assert_eq!(shares(&placement)[0].0, "4-7");
    let expected = "eth0: 7 threads of it share 4 of 8 queues, the fair share of a request of an application";
    assert!(notes(&placement, 812).contains(&expected.to_owned()), "{:?}", notes(&placement, 812));
    host.processes[0].threads.truncate(2);
    assert_eq!(shares(&placed(&joined(&host, &asked), &host))[0].0, "6-7");
    // The fair share also applies to a process's own request, but not to the operator's request for the
    // process.
    host.processes[0] = server(812, "cache", &epolls);
    listen(&mut host.processes[0], 0);
    let own = [AppRequest { of: Requester::Task(Pid(812)), number: PolicyName::Latency.number() }];
    assert_eq!(shares(&placed(&joined(&host, &own), &host))[0].0, "4-7");
    let of_operator = policy([on_device(2, "eth0", PolicyName::Mix), on_task(3, 812, PolicyName::Latency)]);
    assert_eq!(shares(&placed(&of_operator, &host))[0].0, "1-7");
}
