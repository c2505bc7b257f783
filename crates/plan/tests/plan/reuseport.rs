//! Tests that connections are assigned to the listeners of their queues.

use std::sync::Arc;

use model::host::{Listener, Membership, SharedListeners, Socket, SocketState};
use model::policy::Match;
use model::{
    EpollParams, Fd, Finding, Host, Intent, KernelVersion, ListenerGroup, Mechanism, NapiId, Pid, Policy,
    PolicyName, ProcessKnob, Reason, RecipeEntry, RecipeValue, Setting, Severity, Spread, Target, Transport,
};
use plan::{Desired, Resolved, desired, diff, doctor, place};

use crate::made::{NETNS, device, host, on_device, policy, server, write};

const WORKERS: Pid = Pid(812);

/// Two workers of one process that listen on one address, on a host whose device has this many queues.
fn with_workers(queues: u32) -> Host {
    let mut host = host();
    let napis: Vec<u32> = (300..300 + queues).collect();
    host.devices.push(device(2, "eth0", &napis));
    host.processes.push(server(WORKERS.0, "memcached", &[&[], &[]]));
    let listener = |inode, fd| Listener { inode, held: vec![(WORKERS, Fd(fd))] };
    host.listeners.push(SharedListeners {
        id: ListenerGroup {
            netns: NETNS,
            transport: Transport::Tcp,
            address: "0.0.0.0:11211".parse().expect("an address"),
        },
        spread: Spread::Hash,
        sockets: 2,
        listeners: vec![listener(901, 6), listener(902, 7)],
        counts: None,
    });
    host
}

fn asked(policy_name: PolicyName) -> Policy {
    let target = Target::Service("workers".to_owned(), Match { port: Some(11_211), ..Match::default() });
    let service = Intent { target, ..on_device(2, "eth0", policy_name) };
    let mut policy = policy(vec![on_device(1, "eth0", PolicyName::Latency), service]);
    let because = Reason::new("one NAPI", "test");
    let entry = RecipeEntry::new(RecipeValue::ByQueue, because);
    let latency = Arc::make_mut(&mut policy.recipes).policies.entry(PolicyName::Latency).or_default();
    latency.entries.insert(Mechanism::Reuseport, entry);
    policy
}

fn wanted(host: &Host, policy: &Policy) -> Desired {
    let resolved = Resolved::default().with(1, [WORKERS]);
    let placement = place(policy, host, &resolved).expect("a placement");
    desired(&placement, host).expect("what is wanted")
}

fn spreads(desired: &Desired) -> Vec<String> {
    let spreads = desired.wanted.iter().map(|wanted| &wanted.setting);
    spreads
        .filter(|setting| matches!(setting, Setting::Process(ProcessKnob::Reuseport(..))))
        .map(ToString::to_string)
        .collect()
}

#[test]
fn each_worker_of_a_service_gets_a_queue_and_what_is_so_already_is_no_change() {
    let mut host = with_workers(2);
    let desired = wanted(&host, &asked(PolicyName::Latency));
    let both = "listeners 0.0.0.0:11211: reuseport eth0 rx-0 → socket 901, eth0 rx-1 → socket 902";
    assert_eq!(spreads(&desired), [both]);
    let plan = diff(&desired, &host).expect("a plan");
    for change in plan.changes() {
        write(&mut host, change.to());
    }
    let again = wanted(&host, &asked(PolicyName::Latency));
    assert!(diff(&again, &host).expect("a plan").is_empty());
    for change in plan.inverse().changes() {
        write(&mut host, change.to());
    }
    assert_eq!(host, with_workers(2), "and back");
}

#[test]
fn another_policy_leaves_connections_to_the_hash() {
    assert_eq!(spreads(&wanted(&with_workers(2), &asked(PolicyName::Bulk))), [""; 0]);
}

#[test]
fn with_one_queue_there_is_nothing_to_choose() {
    assert_eq!(spreads(&wanted(&with_workers(1), &asked(PolicyName::Latency))), [""; 0]);
}

/// Returns the note on a group that netpolicy leaves to the kernel's hash.
fn left(host: &Host) -> String {
    let desired = wanted(host, &asked(PolicyName::Latency));
    assert_eq!(spreads(&desired), [""; 0]);
    let about = desired.notes.iter().find(|note| note.starts_with("listeners 0.0.0.0:11211: left"));
    about.cloned().unwrap_or_else(|| panic!("{:?}", desired.notes))
}

#[test]
fn a_program_of_the_applications_own_stays_and_is_reported() {
    let mut host = with_workers(2);
    host.listeners[0].spread = Spread::Foreign;
    assert!(left(&host).contains("another program's BPF program"));
}

#[test]
fn sockets_of_others_in_the_group_would_starve_so_it_stays() {
    let mut host = with_workers(2);
    host.listeners[0].sockets = 3;
    assert!(left(&host).contains("1 of its 3 sockets do not belong to this request"));
}

#[test]
fn an_older_kernel_is_reported() {
    let mut host = with_workers(2);
    host.kernel = KernelVersion::since(6, 1);
    assert!(left(&host).contains("needs Linux 6.2"));
}

#[test]
fn a_group_on_the_loopback_address_has_no_queue() {
    let mut host = with_workers(2);
    host.listeners[0].id.address = "127.0.0.1:11211".parse().expect("an address");
    assert_eq!(spreads(&wanted(&host, &asked(PolicyName::Latency))), [""; 0]);
}

/// Two workers on one address. Their epolls prefer busy polling, and their connections are on these NAPIs.
fn busy_workers(of_first: &[u32], of_second: &[u32]) -> Host {
    let mut host = with_workers(2);
    let mut process = server(WORKERS.0, "memcached", &[of_first, of_second]);
    for (at, epoll) in process.epolls.iter_mut().enumerate() {
        let listener = &host.listeners[0].listeners[at];
        epoll.members.push(Membership { fd: listener.held[0].1, inode: listener.inode });
        epoll.params = Some(EpollParams { prefer_busy_poll: true, ..EpollParams::default() });
    }
    host.processes = vec![process];
    host
}

fn about_listeners(host: &Host) -> Vec<Finding> {
    let mut findings = doctor(host, None, &[]);
    findings.retain(|finding| finding.rule.starts_with("listeners-"));
    findings
}

#[test]
fn workers_that_poll_and_get_connections_of_other_queues_by_the_hash_are_reported() {
    let found = about_listeners(&busy_workers(&[300, 301], &[301, 301]));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].rule.as_str(), found[0].severity), ("listeners-mix-queues", Severity::Warning));
    assert!(found[0].summary.contains("1 of its 2 workers"), "{}", found[0].summary);
    assert_eq!(found[0].evidence, ["memcached[812] receives from NAPI 300, 301"]);
    assert_eq!(about_listeners(&busy_workers(&[300, 300], &[301])), [], "each worker has a queue of its own");

    let mut idle = busy_workers(&[300, 301], &[301]);
    for epoll in &mut idle.processes[0].epolls {
        epoll.params = Some(EpollParams::default());
    }
    assert_eq!(about_listeners(&idle), [], "a thread that does not poll may have connections of any queue");
}

#[test]
fn a_foreign_program_that_chooses_among_polling_workers_is_reported() {
    let mut host = busy_workers(&[300, 301], &[301]);
    host.listeners[0].spread = Spread::Foreign;
    let found = about_listeners(&host);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].rule.as_str(), found[0].severity), ("listeners-chosen-by-another", Severity::Note));
    assert!(found[0].evidence[0].contains("could not be restored"), "{found:?}");
    assert_eq!(found[0].evidence[1], "memcached[812] receives from NAPI 300, 301");
}

/// Tests that a UDP socket, which keeps the NAPI of its first packet, gets the queue of that NAPI, unless
/// another socket already has it.
#[test]
fn a_udp_socket_gets_the_queue_of_its_first_packet() {
    let spread = |napis: [Option<u32>; 2]| {
        let mut host = with_workers(2);
        host.listeners[0].id.transport = Transport::Udp;
        let process = &mut host.processes[0];
        for (inode, napi) in [901, 902].into_iter().zip(napis) {
            process.sockets.push(Socket {
                fd: Fd(u32::try_from(inode).expect("small")),
                inode,
                state: SocketState::Udp,
                local: Some("0.0.0.0:11211".parse().expect("an address")),
                remote: None,
                napi: napi.map(NapiId),
                polling: None,
            });
        }
        spreads(&wanted(&host, &asked(PolicyName::Latency))).concat()
    };
    let first = "eth0 rx-0 → socket 901, eth0 rx-1 → socket 902";
    let other = "eth0 rx-0 → socket 902, eth0 rx-1 → socket 901";
    for (napis, dealt) in [
        ([Some(300), Some(301)], first),
        ([Some(301), Some(300)], other),
        ([Some(301), None], other),
        ([None, Some(300)], other),
        ([None, None], first),
        ([Some(300), Some(300)], first),
    ] {
        assert!(spread(napis).contains(dealt), "{napis:?}: {}", spread(napis));
    }
}

#[test]
fn a_udp_server_that_steers_by_itself_is_left_alone_and_cut_off_clients_are_reported() {
    let mut host = with_workers(2);
    host.listeners[0].id.transport = Transport::Udp;
    let desired = wanted(&host, &asked(PolicyName::Latency));
    let said = desired.notes.join("\n");
    assert!(
        said.contains("UDP sockets 0.0.0.0:11211: each datagram goes to a socket of its queue"),
        "{said}"
    );
    host.listeners[0].spread = Spread::Foreign;
    let desired = wanted(&host, &asked(PolicyName::Latency));
    assert!(spreads(&desired).is_empty());
    let said = desired.notes.join("\n");
    assert!(said.contains("as QUIC servers steer by connection id"), "{said}");
}
