//! Tests requests with different values on one device: they get separate queues, or a refusal that says what
//! is missing.

use insta::assert_snapshot;
use model::host::{Membership, Process, Socket, SocketState};
use model::nic::{NicRequest, Rss};
use model::policy::Match;
use model::{
    ChannelKind, Fd, Host, Intent, NapiId, NicKnob, Offload, Pid, Policy, PolicyName, Setting, Target,
};
use plan::{Refusal, RefusalKind, Resolved, place};

use crate::made::{
    device, host, on_device, on_service, policy, server, set_epolls, suspend, tx_queues, with_irqs, write,
};
use crate::read_aloud::{self, planned};

/// A NIC with this many queue pairs, whose driver has RSS contexts and rules.
pub(crate) fn with_nic(queues: u32) -> Host {
    let mut host = host();
    let napis: Vec<u32> = (300..300 + queues).collect();
    let mut nic = device(2, "eth0", &napis);
    nic.rss = Some(Rss { table: (0..queues).cycle().take(16).collect(), key: vec![1; 40] });
    nic.rss_contexts = Some(Vec::new());
    nic.flow_rules = Some(Vec::new());
    nic.offloads.insert(Offload::Ntuple, false);
    nic.tx_queues = tx_queues(queues);
    host.devices.push(nic);
    with_irqs(host, 40)
}

/// A server that listens on a port and receives on these NAPIs. Each list of NAPIs is one worker's.
fn listening(pid: u32, comm: &str, port: u16, workers: &[&[u32]]) -> Process {
    let mut process = server(pid, comm, workers);
    process.sockets.push(Socket {
        fd: Fd(90),
        inode: u64::from(pid) * 1000 + 900,
        state: SocketState::TcpListen,
        local: Some(format!("0.0.0.0:{port}").parse().expect("an address")),
        remote: None,
        napi: None,
        polling: None,
    });
    process
}

/// Two servers that receive on every queue: memcached with four workers, for latency, and nginx, for
/// throughput.
fn two_servers(queues: u32) -> Host {
    let mut host = with_nic(queues);
    host.processes.push(listening(812, "memcached", 11_211, &[&[300], &[301], &[300], &[301]]));
    host.processes.push(listening(901, "nginx", 80, &[&[300, 301]]));
    host
}

fn asked(device: Option<PolicyName>) -> Policy {
    let device = device.map(|policy| on_device(2, "eth0", policy));
    let services =
        [on_service(5, "memcached", PolicyName::Latency), on_service(9, "nginx", PolicyName::Bulk)];
    policy(device.into_iter().chain(services))
}

/// Resolves the services of [`asked`] to the processes of [`two_servers`].
fn resolved(policy: &Policy) -> Resolved {
    let services = policy.intents.iter().enumerate().filter(|(_, i)| matches!(i.target, Target::Service(..)));
    services.zip([812, 901]).fold(Resolved::default(), |all, ((at, _), pid)| all.with(at, [Pid(pid)]))
}

fn refused(policy: &Policy, host: &Host) -> Refusal {
    place(policy, host, &resolved(policy)).expect_err("refused")
}

fn settings(plan: &model::Plan) -> Vec<String> {
    plan.changes().map(|change| change.to().to_string()).collect()
}

#[test]
fn a_mixed_device_is_divided_between_its_services_and_the_rest() {
    let host = two_servers(8);
    let asked = asked(Some(PolicyName::Mix));
    let placement = place(&asked, &host, &resolved(&asked)).expect("placed");
    let plan = planned(&asked, &host, &resolved(&asked)).expect("planned");
    assert_snapshot!(format!("{}\n{}", read_aloud::placement(&placement), read_aloud::plan(&plan)));
}

#[test]
fn services_that_dispute_a_queue_divide_the_device_also_without_a_request_for_it() {
    let host = two_servers(8);
    let asked = asked(None);
    let placement = place(&asked, &host, &resolved(&asked)).expect("placed");
    let division = &placement.divisions[0];
    let spans: Vec<String> = division.shares.iter().map(|share| share.queues.to_string()).collect();
    assert_eq!(
        (division.rest.to_string(), spans),
        ("0-1".to_owned(), vec!["2-5".to_owned(), "6-7".to_owned()])
    );
    for (part, queues) in [(0, 2..6), (1, 6..8)] {
        let own: Vec<u32> = placement.parts[part].queues.iter().map(|q| q.queue.index.0).collect();
        assert_eq!(own, queues.collect::<Vec<u32>>());
    }
}

#[test]
fn a_division_stays_when_the_packets_have_moved_to_their_queues() {
    let mut host = two_servers(8);
    let asked = asked(None);
    let plan = planned(&asked, &host, &resolved(&asked)).expect("planned");
    for change in plan.changes() {
        write(&mut host, change.to());
    }
    let again = planned(&asked, &host, &resolved(&asked)).expect("planned");
    assert!(again.is_empty(), "{}", read_aloud::plan(&again));
    for (process, napi) in host.processes.iter_mut().zip([302, 306]) {
        for socket in process.sockets.iter_mut().filter(|socket| socket.napi.is_some()) {
            socket.napi = Some(NapiId(napi));
        }
    }
    let moved = planned(&asked, &host, &resolved(&asked)).expect("planned");
    assert!(moved.is_empty(), "{}", read_aloud::plan(&moved));
}

#[test]
fn services_that_want_what_the_device_wants_need_no_queues_of_their_own() {
    let host = two_servers(8);
    let asked = asked(Some(PolicyName::Bulk));
    let plan = planned(&asked, &host, &resolved(&asked)).expect("planned");
    let rules: Vec<String> =
        settings(&plan).into_iter().filter(|setting| setting.contains("dst-port")).collect();
    assert_eq!(rules.len(), 1, "memcached's alone: {rules:?}");
    assert!(rules[0].contains("11211"), "{rules:?}");
}

#[test]
fn too_few_queues_are_refused_with_what_is_missing_and_the_nearest_plan() {
    let host = two_servers(3);
    assert_snapshot!(read_aloud::refusal(&refused(&asked(None), &host)));
    let mut asked = asked(None);
    asked.intents[0].queues = Some(1);
    let placement = place(&asked, &host, &resolved(&asked)).expect("the proposed plan works");
    assert_eq!(placement.divisions[0].rest.count, 1);
}

#[test]
fn what_the_driver_or_the_service_lacks_is_named() {
    let mut host = two_servers(8);
    host.devices[0].rss_contexts = None;
    let refusal = refused(&asked(None), &host);
    assert!(refusal.message.contains("a rule selects only one"), "{refusal}");
    let mut single = asked(None);
    single.intents[0].queues = Some(1);
    let placement = place(&single, &host, &resolved(&single)).expect("one queue for each request");
    assert!(placement.divisions[0].shares.iter().all(|share| share.queues.count == 1));
    host.devices[0].flow_rules = None;
    let refusal = refused(&asked(None), &host);
    assert_eq!(refusal.kind, RefusalKind::Conflict);
    assert!(refusal.message.contains("has no ntuple rules"), "{refusal}");
    let mut host = two_servers(8);
    host.processes[1].sockets.retain(|socket| socket.state != SocketState::TcpListen);
    let refusal = refused(&asked(None), &host);
    assert!(refusal.message.contains("listens on no port"), "{refusal}");
    let mut named = asked(None);
    let matching = Match { port: Some(80), ..Match::default() };
    named.intents[1] =
        Intent { target: Target::Service("nginx".to_owned(), matching), ..named.intents[1].clone() };
    assert!(place(&named, &host, &resolved(&named)).is_ok(), "the request itself specifies the port");
}

#[test]
fn two_policies_for_one_port_are_refused() {
    let mut host = with_nic(8);
    host.processes.push(listening(812, "one", 80, &[&[300]]));
    host.processes.push(listening(901, "two", 80, &[&[300]]));
    let refusal = refused(&asked(None), &host);
    assert!(refusal.message.contains("listen on the same port (80)"), "{refusal}");
}

#[test]
fn a_service_of_which_nothing_runs_yet_gets_a_note_and_the_rest_is_planned() {
    let mut host = two_servers(8);
    host.processes.pop();
    let asked = asked(Some(PolicyName::Mix));
    let resolved = Resolved::default().with(1, [Pid(812)]);
    let placement = place(&asked, &host, &resolved).expect("placed");
    assert!(placement.parts[2].notes[0].contains("no process of this service runs"));
    assert_eq!(placement.divisions[0].shares.len(), 1);
    let plan = planned(&asked, &host, &resolved).expect("planned");
    assert!(plan.changes().any(|change| matches!(change.to(), Setting::Nic(_, NicKnob::FlowRule(..)))));
}

/// Tests a server like `memcached -t 1`, whose main thread accepts connections and passes them to the worker.
#[test]
fn a_thread_that_only_accepts_costs_no_queue() {
    let mut host = with_nic(3);
    let mut cache = listening(812, "memcached", 11_211, &[&[], &[300]]);
    let listener = cache.sockets.last().expect("a listener").inode;
    cache.epolls[0].members.push(Membership { fd: Fd(90), inode: listener });
    host.processes.push(cache);
    host.processes.push(listening(901, "nginx", 80, &[&[300]]));
    let asked = asked(Some(PolicyName::Mix));
    for busy in [false, true] {
        if busy {
            set_epolls(&mut host.processes[0], suspend(20));
        }
        let placement =
            place(&asked, &host, &resolved(&asked)).expect("two queues, and one for the other requests");
        let widths: Vec<u32> = placement.divisions[0].shares.iter().map(|share| share.queues.count).collect();
        assert_eq!(
            (placement.divisions[0].rest.count, widths),
            (1, vec![1, 1]),
            "waits busily already: {busy}"
        );
    }
}

#[test]
fn queues_that_the_same_policy_makes_are_counted_and_given_when_they_are_there() {
    let host = two_servers(2);
    let mut asked = asked(Some(PolicyName::Mix));
    let refusal = refused(&asked, &host);
    assert!(refusal.nearest.is_some_and(|nearest| nearest.contains("combined-channels = 6")));
    asked.intents[0].nic = vec![NicRequest::Channels(ChannelKind::Combined, 5)];
    let refusal = refused(&asked, &host);
    assert!(refusal.evidence[0].contains("will have 5 receive queues"), "{:?}", refusal.evidence);
    assert!(refusal.nearest.is_some_and(|nearest| nearest.contains("combined-channels = 6")));
    asked.intents[0].nic = vec![NicRequest::Channels(ChannelKind::Combined, 6)];
    let first = planned(&asked, &host, &resolved(&asked)).expect("planned");
    assert_eq!(settings(&first), ["eth0: combined-channels 6"]);
    let then = planned(&asked, &two_servers(6), &resolved(&asked)).expect("planned");
    assert!(then.changes().any(|change| matches!(change.to(), Setting::Nic(_, NicKnob::FlowRule(..)))));
}

#[test]
fn a_device_whose_rules_are_to_be_off_is_not_divided_also_while_they_are_on() {
    for on in [true, false] {
        let mut host = two_servers(6);
        host.devices[0].offloads.insert(Offload::Ntuple, on);
        let mut asked = asked(Some(PolicyName::Mix));
        planned(&asked, &host, &resolved(&asked)).expect("planned");
        asked.intents[0].nic = vec![NicRequest::Offload(Offload::Ntuple, false)];
        let refusal = planned(&asked, &host, &resolved(&asked)).expect_err("rules are needed");
        assert!(refusal.to_string().contains("rx-ntuple-filter: off and on"), "{on}: {refusal}");
    }
}

#[test]
fn of_services_that_share_queues_those_that_need_too_many_are_named() {
    let mut host = two_servers(4);
    host.processes.push(listening(950, "redis", 6379, &[&[300]]));
    let asked = policy([
        on_service(3, "redis", PolicyName::Latency),
        on_service(5, "memcached", PolicyName::Latency),
        on_service(9, "nginx", PolicyName::Bulk),
    ]);
    let resolved = [950, 812, 901].into_iter().enumerate();
    let resolved = resolved.fold(Resolved::default(), |all, (at, pid)| all.with(at, [Pid(pid)]));
    let refusal = place(&asked, &host, &resolved).expect_err("refused");
    let nearest = refusal.nearest.expect("what works");
    assert!(nearest.contains("`queues = 2` for service memcached,"), "{nearest}");
}
