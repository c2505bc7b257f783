//! Tests sockets that no epoll watches, such as those of a server that waits in `recv`.

use std::net::SocketAddr;

use model::host::{PortRange, SharedListeners, Socket, SocketState};
use model::policy::Match;
use model::{
    DeliveryMode, Fd, Host, Intent, ListenerGroup, NapiId, NapiKnob, NetnsId, NicRequest, Pid, Policy,
    PolicyName, ProcessKnob, QueueListeners, RingId, Setting, SocketPolling, Spread, Sysctl, Target,
    Transport,
};
use plan::{Desired, Resolved, desired, diff, place};

use crate::made::{device, host, on_device, policy, server, write};

const SERVER: Pid = Pid(812);

const STILL: SocketPolling =
    SocketPolling { busy_poll_usecs: 0, prefer_busy_poll: false, busy_poll_budget: None };

fn udp(fd: u32, napi: Option<u32>, polling: Option<SocketPolling>) -> Socket {
    Socket {
        fd: Fd(fd),
        inode: 5000 + u64::from(fd),
        state: SocketState::Udp,
        local: Some("0.0.0.0:53".parse().expect("an address")),
        remote: None,
        napi: napi.map(NapiId),
        polling,
    }
}

/// A server without an epoll, on a host whose device has two queues.
fn with_sockets(sockets: Vec<Socket>) -> Host {
    let mut host = host();
    host.capabilities.bpf = true;
    host.devices.push(device(2, "eth0", &[300, 301]));
    let mut process = server(SERVER.0, "named", &[]);
    process.sockets = sockets;
    host.processes.push(process);
    host
}

fn asked(mode: DeliveryMode) -> Policy {
    let target = Target::Service("names".to_owned(), Match { port: Some(53), ..Match::default() });
    policy(vec![Intent { target, delivery: Some(mode), ..on_device(2, "eth0", PolicyName::Latency) }])
}

fn wanted(host: &Host, mode: DeliveryMode) -> Desired {
    let resolved = Resolved::default().with(0, [SERVER]);
    let placement = place(&asked(mode), host, &resolved).expect("a placement");
    desired(&placement, host).expect("what is wanted")
}

fn of_sockets(desired: &Desired) -> Vec<(u32, String)> {
    let of = |wanted: &plan::DesiredSetting| match &wanted.setting {
        Setting::Process(ProcessKnob::Socket(socket, polling)) => Some((socket.fd.0, polling.to_string())),
        _ => None,
    };
    desired.wanted.iter().filter_map(of).collect()
}

#[test]
fn a_server_that_waits_in_recv_polls_as_long_as_napibusy_and_what_is_set_is_no_change() {
    let mut host = with_sockets(vec![udp(3, Some(300), Some(STILL)), udp(4, None, Some(STILL))]);
    for mode in [DeliveryMode::NapiBusy, DeliveryMode::DOCUMENT[8]] {
        let found = wanted(&host, mode);
        assert_eq!(of_sockets(&found), [(3, "64us/64/1".to_owned()), (4, "64us/64/1".to_owned())], "{mode}");
        let said = found.notes.join("\n");
        assert!(said.contains("2 socket(s) that no epoll watches busy-poll while a receive waits"), "{said}");
        assert!(!said.contains("has no epoll yet"), "{said}");
    }
    let found = wanted(&host, DeliveryMode::NapiBusy);
    for wanted in &found.wanted {
        write(&mut host, &wanted.setting);
    }
    let again = wanted(&host, DeliveryMode::NapiBusy);
    let plan = diff(&again, &host).expect("a plan");
    assert_eq!(plan.steps.len(), 0, "{plan:?}");
}

#[test]
fn a_datagram_server_gets_its_mode_on_all_queues_of_the_device_of_its_first_packet() {
    let queues_in = |netns: Option<NetnsId>, socket: Socket, spread: Spread, local_ports: PortRange| {
        let mut host = with_sockets(vec![socket]);
        host.local_ports = local_ports;
        host.processes[0].netns = netns;
        let address = "0.0.0.0:53".parse().expect("an address");
        let id = ListenerGroup { netns: host.netns, transport: Transport::Udp, address };
        host.listeners =
            vec![SharedListeners { id, spread, sockets: 1, listeners: Vec::new(), counts: None }];
        let found = wanted(&host, DeliveryMode::DOCUMENT[8]);
        let of_napis = found.wanted.iter().filter_map(|wanted| match &wanted.setting {
            Setting::Napi(queue, NapiKnob::GroFlushTimeout(_)) => Some(queue.index.0),
            _ => None,
        });
        of_napis.collect::<Vec<u32>>()
    };
    let queues_with = |socket, spread, local_ports| queues_in(None, socket, spread, local_ports);
    let queues = |socket, spread| queues_with(socket, spread, PortRange::default());
    let at =
        |port: u16| Socket { local: Some(SocketAddr::from(([0, 0, 0, 0], port))), ..udp(3, Some(300), None) };
    let tuned = PortRange { first: 1_024, last: 65_535 };
    assert_eq!(queues_with(at(5_300), Spread::Hash, tuned), [0, 1], "a server on a host with a larger range");
    assert_eq!(queues_with(at(61_000), Spread::Hash, tuned), [0]);
    assert_eq!(queues(at(61_000), Spread::Hash), [0, 1], "above the range");
    assert_eq!(queues(udp(3, Some(300), None), Spread::Hash), [0, 1]);
    let client =
        Socket { local: Some("0.0.0.0:40000".parse().expect("an address")), ..udp(3, Some(300), None) };
    assert_eq!(queues(client.clone(), Spread::Hash), [0], "a resolver's own queries");
    let low = PortRange { first: 1_024, last: 32_767 };
    let other = Some(NetnsId(1));
    assert_eq!(queues_in(other, client.clone(), Spread::Hash, low), [0], "a namespace with its own range");
    assert_eq!(queues_with(client, Spread::Hash, low), [0, 1], "not a port that the kernel gives to clients");
    let connected =
        Socket { remote: Some("192.0.2.9:4000".parse().expect("an address")), ..udp(3, Some(300), None) };
    assert_eq!(queues(connected, Spread::Hash), [0]);
    let first = with_sockets(Vec::new()).devices[0].rx_queues[0].id;
    let list = QueueListeners { queue: first, listeners: vec![5003] };
    assert_eq!(
        queues(udp(3, Some(300), None), Spread::Queues(vec![list])),
        [0],
        "its queue's datagrams only"
    );
}

#[test]
fn a_socket_that_an_epoll_watches_or_that_is_of_loopback_is_left_as_it_is() {
    let local = Some("127.0.0.1:53".parse().expect("an address"));
    let of_loopback = Socket { local, ..udp(5, None, Some(STILL)) };
    let host = with_sockets(vec![udp(3, Some(300), None), of_loopback, udp(6, Some(301), Some(STILL))]);
    assert_eq!(of_sockets(&wanted(&host, DeliveryMode::NapiBusy)), [(6, "64us/64/1".to_owned())]);
}

#[test]
fn a_budget_that_could_not_be_put_back_is_not_set() {
    let mut host = with_sockets(vec![udp(3, Some(300), Some(STILL))]);
    host.capabilities.bpf = false;
    assert_eq!(of_sockets(&wanted(&host, DeliveryMode::NapiBusy)), [(3, "64us/-/1".to_owned())]);
}

#[test]
fn a_mode_that_does_not_poll_ends_the_polling_of_sockets_and_sets_no_other() {
    let polls = SocketPolling { busy_poll_usecs: 50, prefer_busy_poll: true, busy_poll_budget: Some(16) };
    let host = with_sockets(vec![udp(3, Some(300), Some(polls)), udp(4, Some(301), Some(STILL))]);
    let found = wanted(&host, DeliveryMode::Interrupt);
    assert_eq!(of_sockets(&found), [(3, "0us/0/0".to_owned())]);
    let plan = diff(&found, &host).expect("a plan");
    let changes: Vec<String> =
        plan.steps.iter().flat_map(|step| step.changes()).map(|change| change.from().value()).collect();
    assert!(changes.contains(&"50us/16/1".to_owned()), "{changes:?}");
}

#[test]
fn a_process_that_waits_by_io_uring_has_none_set_by_themselves() {
    let mut host = with_sockets(vec![udp(3, Some(300), Some(STILL))]);
    let process = &mut host.processes[0];
    process.rings.push(model::host::IoUring {
        id: RingId { process: process.id, fd: Fd(9) },
        napi: None,
        registered_sockets: 1,
        closed: None,
    });
    assert_eq!(of_sockets(&wanted(&host, DeliveryMode::NapiBusy)), []);
}

#[test]
fn of_very_many_sockets_the_first_are_set_and_the_others_reported() {
    let sockets = (3..303).map(|fd| udp(fd, Some(300), Some(STILL))).collect();
    let found = wanted(&with_sockets(sockets), DeliveryMode::NapiBusy);
    assert_eq!(of_sockets(&found).len(), 256);
    let host = with_sockets((3..303).map(|fd| udp(fd, Some(300), Some(STILL))).collect());
    let resolved = Resolved::default().with(0, [SERVER]);
    let placement = place(&asked(DeliveryMode::NapiBusy), &host, &resolved).expect("a placement");
    let notes = placement.parts[0].notes.join("\n");
    assert!(notes.contains("44 more sockets that no epoll watches are not changed"), "{notes}");
}

/// Returns what a plan reports about `poll` and `select`, and whether it warns about all epolls of the host.
fn said_of_poll(host: &Host, wants: Option<u64>) -> (String, bool) {
    let mut policy = asked(DeliveryMode::NapiBusy);
    if let Some(usecs) = wants {
        let nic = vec![NicRequest::Sysctl(Sysctl::BusyPoll, usecs)];
        policy.intents.push(Intent { nic, ..on_device(2, "eth0", PolicyName::None) });
    }
    let placement = place(&policy, host, &Resolved::default().with(0, [SERVER])).expect("a placement");
    let notes = desired(&placement, host).expect("what is wanted").notes;
    let (_, of_poll) = notes.iter().find_map(|note| note.split_once("poll and select ")).expect("a note");
    (of_poll.to_owned(), notes.iter().any(|note| note.contains("every epoll")))
}

#[test]
fn whether_poll_and_select_poll_is_said_as_the_host_has_it_and_as_the_plan_makes_it() {
    let mut host = with_sockets(vec![udp(3, Some(300), Some(STILL))]);
    let elsewhere =
        "are busy-polled only if net.core.busy_poll, visible only in the initial network namespace, is not 0";
    assert_eq!(said_of_poll(&host, None), (elsewhere.to_owned(), false));
    host.sysctls.insert(Sysctl::BusyPoll, 0);
    let off = "are not busy-polled, because net.core.busy_poll is 0; settings.busy_poll of a device section sets it for the whole host";
    assert_eq!(said_of_poll(&host, None), (off.to_owned(), false));
    assert_eq!(
        said_of_poll(&host, Some(70)),
        ("are busy-polled for 70 us (net.core.busy_poll)".to_owned(), true)
    );
    host.sysctls.insert(Sysctl::BusyPoll, 50);
    assert_eq!(
        said_of_poll(&host, None),
        ("are busy-polled for 50 us (net.core.busy_poll)".to_owned(), false)
    );
}
