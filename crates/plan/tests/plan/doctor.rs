//! Tests `doctor` with the figures of a feasibility study, which measured one condition after another.

use std::collections::BTreeSet;

use insta::assert_snapshot;
use model::host::{DevicePressure, IoUring, Pressure, SocketState, Unread};
use model::{
    BatchesOf, CpuWait, Delivered, DeliveryMode, EventBatches, Fd, Finding, Host, Label, Nanoseconds, NapiId,
    NetnsId, Pid, PolicyName, PollCounts, RingId, RingNapi, Severity, Sysctl, Threading,
};
use plan::doctor::{CommandPrefix, HostContext, VethPeer};
use plan::{RequestFacts, Resolved, doctor, doctor_with, place};

use crate::made::{
    Counted, defer, delivered, device, host, named, on_task, policy, server, set_epolls, set_napis, suspend,
    veth, with_kernel,
};
use crate::read_aloud;

/// Returns a host with memcached behind a veth with these NAPIs and with all settings of suspend200. Each
/// list has the NAPIs of one worker's connections.
pub(crate) fn memcached(napis: &[u32], workers: &[&[u32]]) -> Host {
    let mut host = host();
    host.devices.push(veth(2, "veth0", napis));
    set_napis(&mut host.devices[0], 100, 200, 20);
    host.processes.push(server(812, "memcached", workers));
    set_epolls(&mut host.processes[0], suspend(200));
    host
}

/// The healthy condition: 60 000 requests per second, 88 % of the packets delivered by the application, and
/// the timer armed with `irq-suspend-timeout` 1249 times. For every condition, the shares, suspensions and
/// softirq polls are those of the study. The study did not report other polls; their numbers here are
/// consistent with its results.
pub(crate) const HEALTHY: Counted = Counted {
    packets: 60_000,
    share: 88,
    interrupt_polls: 30,
    timer_polls: 400,
    timer_empty: 90,
    application_polls: 1_300,
    armed: 2_900,
    suspended: 1249,
};

/// The condition without suspension: softirqs deliver every packet.
pub(crate) const SOFTIRQ: Counted = Counted {
    packets: 60_000,
    share: 0,
    interrupt_polls: 38_000,
    timer_polls: 0,
    timer_empty: 0,
    application_polls: 0,
    armed: 0,
    suspended: 0,
};

/// Returns the facts about a request for the server in this mode, as a placement provides them.
fn asked(host: &Host, mode: DeliveryMode) -> Vec<RequestFacts> {
    let request = policy([named(mode, on_task(2, 812, PolicyName::None))]);
    place(&request, host, &Resolved::default()).expect("placed").asked()
}

pub(crate) fn rules(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|f| f.rule.as_str()).collect()
}

pub(crate) fn found<'f>(findings: &'f [Finding], rule: &str) -> &'f Finding {
    findings.iter().find(|f| f.rule == rule).unwrap_or_else(|| panic!("no {rule} in {:?}", rules(findings)))
}

#[test]
fn one_queue_one_worker_and_all_settings_is_engaged() {
    let host = memcached(&[328], &[&[328; 20]]);
    let findings = doctor(&host, Some(&delivered([HEALTHY.on(328)])), &asked(&host, suspend(200)));
    assert_eq!(rules(&findings), ["engaged"]);
    assert_snapshot!(read_aloud::findings(&findings));
}

#[test]
fn a_sender_with_tso_on_or_a_server_without_gro_puts_packets_on_no_napi() {
    let mut no_tso = memcached(&[328], &[&[0; 20]]);
    let backlog = PollCounts { polls: 38_000, packets: 60_000, empty: 0 };
    let counts = Delivered { backlog, ..delivered([]) };
    let findings = doctor(&no_tso, Some(&counts), &[]);
    assert_eq!(rules(&findings), ["packets-on-no-napi", "not-engaged"]);
    assert_snapshot!(read_aloud::findings(&findings));

    no_tso.devices[0].features.gro = Some(false);
    let findings = doctor(&no_tso, Some(&counts), &[]);
    let remedy = found(&findings, "packets-on-no-napi").remedy.clone().expect("a command");
    assert_eq!(
        remedy,
        "ethtool -K veth0 gro on; at the other end (if7 of netnsid 0), whose device is PEER: ethtool -K PEER tso off"
    );

    no_tso.processes.clear();
    let findings = doctor(&no_tso, Some(&counts), &[]);
    assert_eq!(rules(&findings), ["packets-on-no-napi", "idle"], "the counts alone are only a hint");
}

#[test]
fn a_veth_without_gro_has_no_napi_to_engage_on() {
    let mut host = memcached(&[], &[&[0; 20]]);
    host.devices[0].features.gro = Some(false);
    let findings = doctor(&host, Some(&delivered([])), &[]);
    assert_eq!(rules(&findings), ["packets-on-no-napi", "not-engaged"]);
    assert_eq!(found(&findings, "not-engaged").object, "memcached[812]");
}

/// Makes the first device of a host receive this many packets per second.
fn under_load(mut host: Host, rx_packets: u64) -> Host {
    let device = host.devices[0].id;
    let devices = vec![DevicePressure { device, rx_packets, rx_dropped: 0, rx_missed: 0 }];
    host.pressure = Some(Pressure { interval: Nanoseconds(1_000_000_000), cpus: Vec::new(), devices });
    host
}

#[test]
fn a_veth_under_load_whose_packets_come_by_the_backlog_is_named_also_where_nothing_is_set() {
    let mut host = host();
    host.devices.push(veth(2, "veth0", &[]));
    host.devices[0].features.gro = Some(false);
    host.devices[0].peer = Some("veth1".to_owned());
    host.devices.push(veth(3, "veth1", &[]));
    host.devices[1].peer = Some("veth0".to_owned());
    host.devices[1].features.tso = Some(true);
    assert_eq!(rules(&doctor(&under_load(host.clone(), 100), Some(&delivered([])), &[])), [""; 0]);
    let findings = doctor(&under_load(host.clone(), 50_000), Some(&delivered([])), &[]);
    let finding = found(&findings, "veth-without-napi");
    assert_eq!((finding.severity, finding.object.as_str()), (Severity::Warning, "veth0"));
    assert!(finding.summary.starts_with("it has no NAPI"), "{}", finding.summary);
    let both = "ethtool -K veth0 gro on && ethtool -K veth1 tso off";
    assert_eq!(finding.remedy.as_deref().map(|remedy| remedy.replace("; ", " && ")), Some(both.to_owned()));

    // With GRO, the veth has a NAPI, but the sender's TSO makes packets bypass it.
    host.devices[0] = veth(2, "veth0", &[328]);
    host.devices[0].peer = Some("veth1".to_owned());
    let loaded = under_load(host.clone(), 50_000);
    let findings = doctor(&loaded, Some(&delivered([])), &[]);
    let finding = found(&findings, "veth-without-napi");
    assert!(finding.summary.starts_with("its sender has TSO on"), "{}", finding.summary);
    assert_eq!(finding.remedy.as_deref(), Some("ethtool -K veth1 tso off"));
    let by_napi = Some(&delivered([SOFTIRQ.on(328)])).map(|counts| doctor(&loaded, Some(counts), &[]));
    assert!(!rules(&by_napi.unwrap_or_default()).contains(&"veth-without-napi"), "its NAPI delivers");

    // The host's end of a container's veth is a bridge port, which only forwards packets.
    host.devices[0].link.master = Some(model::IfIndex(9));
    let findings = doctor(&under_load(host, 50_000), Some(&delivered([])), &[]);
    assert!(!rules(&findings).contains(&"veth-without-napi"), "{:?}", rules(&findings));
}

#[test]
fn both_ends_of_a_veth_are_named_where_both_are_here() {
    let mut host = memcached(&[328], &[&[0; 20]]);
    host.devices[0].peer = Some("veth1".to_owned());
    host.devices.push(veth(3, "veth1", &[]));
    host.devices[1].peer = Some("veth0".to_owned());
    let findings = doctor(&host, Some(&delivered([])), &[]);
    let finding = found(&findings, "packets-on-no-napi");
    assert_eq!(finding.remedy.as_deref(), Some("ethtool -K veth1 tso off"));
}

#[test]
fn a_peer_in_another_namespace_is_named_with_the_way_there() {
    let host = memcached(&[328], &[&[0; 20]]);
    let mut context = HostContext::default();
    let mut peer =
        VethPeer { name: Label::new("client0"), netns: "/proc/77/ns/net".to_owned(), tso: Some(true) };
    context.peers.insert(host.devices[0].id, peer.clone());
    context.command_prefix =
        CommandPrefix { options: "--netns web".to_owned(), netns: Some("/run/netns/web".to_owned()) };
    let findings = doctor_with(&host, Some(&delivered([])), &[], &context);
    let finding = found(&findings, "packets-on-no-napi");
    assert_eq!(
        finding.remedy.as_deref(),
        Some("nsenter --net=/proc/77/ns/net ethtool -K client0 tso off"),
        "there, not in the namespace that was looked at"
    );
    peer.tso = Some(false);
    context.peers.insert(host.devices[0].id, peer);
    let findings = doctor_with(&host, Some(&delivered([])), &[], &context);
    let finding = found(&findings, "packets-on-no-napi");
    assert_eq!(finding.remedy, None, "TSO is off already");
    assert!(finding.evidence.iter().any(|line| line.contains("both ends are fixed now")), "{finding:?}");
}

#[test]
fn one_old_connection_without_a_napi_is_no_fault_while_the_others_arrive() {
    let mut connections = [328; 20];
    connections[7] = 0;
    let host = memcached(&[328], &[&connections]);
    let findings = doctor(&host, Some(&delivered([HEALTHY.on(328)])), &[]);
    let finding = found(&findings, "packets-on-no-napi");
    assert_eq!((finding.severity, &finding.remedy), (Severity::Note, &None), "{finding:?}");
    assert_eq!(rules(&findings), ["packets-on-no-napi", "engaged"]);
    // If the NAPI delivered no packet in the interval, the other connections' NAPI ids are stale.
    let findings = doctor(&host, Some(&delivered([])), &[]);
    assert_eq!(found(&findings, "packets-on-no-napi").severity, Severity::Problem);
}

#[test]
fn the_backlog_is_said_to_be_the_whole_machines() {
    let host = memcached(&[328], &[&[0; 20]]);
    let backlog = PollCounts { polls: 1, packets: 60_000, empty: 0 };
    let findings = doctor(&host, Some(&Delivered { backlog, ..delivered([]) }), &[]);
    let evidence = &found(&findings, "packets-on-no-napi").evidence;
    assert!(evidence.iter().any(|line| line.contains("of the whole machine") && line.ends_with("60000/s")));
}

/// Returns measured batches of the first worker: on average 8 events of 50 µs each; the longest batch takes
/// `longest`.
fn batches(host: &Host, longest: Nanoseconds) -> HostContext {
    let epoll = host.processes[0].epolls[0].id;
    let batches = EventBatches {
        count: 5_000,
        events: 40_000,
        total: Nanoseconds::from_millis(2_000),
        longest,
        longest_events: 17,
        maxevents: 32,
        outlasted: 0,
        unfinished: None,
    };
    HostContext {
        batches: [((epoll.process.pid, BatchesOf::Epoll(epoll.fd)), batches)].into_iter().collect(),
        ..HostContext::default()
    }
}

#[test]
fn the_suspension_timeout_that_an_application_needs_follows_from_its_longest_batch() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    let counts = delivered([HEALTHY.on(328)]);
    let judged = |host: &Host, longest| doctor_with(host, Some(&counts), &[], &batches(host, longest));
    let findings = judged(&host, Nanoseconds(1_234_567));
    assert_eq!(rules(&findings), ["engaged"]);
    assert_snapshot!(read_aloud::findings(&findings));

    // A batch of 30 ms exceeds the timeout of 20 ms.
    let findings = judged(&host, Nanoseconds::from_millis(30));
    assert_eq!(rules(&findings), ["suspension-shorter-than-batch", "engaged"]);
    assert_snapshot!(read_aloud::findings(&findings));
    // If the application stalls, `doctor` proposes no timeout.
    let findings = judged(&host, Nanoseconds::from_millis(70));
    let remedy = found(&findings, "suspension-shorter-than-batch").remedy.clone().expect("a remedy");
    assert!(remedy.starts_with("make the application call epoll_wait more often"), "{remedy}");

    // The delivery modes always set 20 ms, so `doctor` does not report a timeout near that, although 5 ms
    // would suffice here.
    set_napis(&mut host.devices[0], 100, 200, 49);
    assert_eq!(rules(&judged(&host, Nanoseconds(1_234_567))), ["engaged"]);
    set_napis(&mut host.devices[0], 100, 200, 50);
    let findings = judged(&host, Nanoseconds(1_234_567));
    assert_eq!(rules(&findings), ["suspension-longer-than-needed", "engaged"]);
    assert_snapshot!(read_aloud::findings(&findings));
}

#[test]
fn a_batch_that_has_not_ended_counts_and_a_few_batches_do_not_say_how_long_one_is() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    let counts = delivered([HEALTHY.on(328)]);
    let mut context = batches(&host, Nanoseconds::from_millis(1));
    for measured in context.batches.values_mut() {
        measured.unfinished = Some(Nanoseconds::from_millis(900));
    }
    let findings = doctor_with(&host, Some(&counts), &[], &context);
    let evidence = &found(&findings, "suspension-shorter-than-batch").evidence;
    assert!(
        evidence.iter().any(|line| line.ends_with("has not called epoll_wait again for 900ms")),
        "{evidence:?}"
    );

    // If only the NAPI was observed, the number of events is unknown, but a batch that outlasted the timeout
    // is certain.
    let by_napi = EventBatches {
        count: 5_000,
        total: Nanoseconds::from_millis(9_000),
        longest: Nanoseconds::from_millis(20),
        outlasted: 3,
        ..EventBatches::default()
    };
    let of = (Pid(812), BatchesOf::Napi(NapiId(328)));
    let context = HostContext { batches: [(of, by_napi)].into_iter().collect(), ..HostContext::default() };
    let findings = doctor_with(&host, Some(&counts), &[], &context);
    assert_snapshot!(read_aloud::findings(&findings[..1]));

    set_napis(&mut host.devices[0], 100, 200, 500);
    let mut context = batches(&host, Nanoseconds::from_millis(1));
    for measured in context.batches.values_mut() {
        measured.count = 99;
    }
    let findings = doctor_with(&host, Some(&counts), &[], &context);
    assert_eq!(rules(&findings), ["engaged"]);
    assert!(!findings[0].evidence.iter().any(|line| line.contains("needs")), "{findings:?}");
}

/// Returns the wait of a server for its CPU: this long in total, 45 µs each time.
fn waited(watched: Nanoseconds, millis: u64) -> HostContext {
    let wait = CpuWait { waited: Nanoseconds::from_millis(millis), turns: millis * 1_000 / 45 };
    HostContext { watched, cpu_waits: [(Pid(812), wait)].into_iter().collect(), ..HostContext::default() }
}

#[test]
fn an_application_that_waits_for_its_cpu_is_not_called_idle() {
    let host = memcached(&[328], &[&[328; 20]]);
    let late = Counted { packets: 30_000, share: 3, timer_polls: 5_000, timer_empty: 2_600, ..HEALTHY };
    let counts = delivered([late.on(328)]);
    // The wait covers the whole interval, while the counts cover only samples of it.
    let waited = |millis| waited(Nanoseconds(counts.interval.0 * 20), millis);
    let findings = doctor_with(&host, Some(&counts), &[], &waited(9_600));
    assert_eq!(rules(&findings), ["waits-for-cpu"]);
    let summary = &findings[0].summary;
    assert!(summary.contains("memcached[812] waits for its CPU 48 % of the time"), "{summary}");
    assert_eq!(rules(&doctor_with(&host, Some(&counts), &[], &waited(400))), ["idle"]);
}

#[test]
fn remedies_work_from_where_the_operator_is() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    set_epolls(&mut host.processes[0], DeliveryMode::Interrupt);
    let command_prefix =
        CommandPrefix { options: "--netns web".to_owned(), netns: Some("/run/netns/web".to_owned()) };
    let findings = doctor_with(
        &host,
        Some(&delivered([SOFTIRQ.on(328)])),
        &[],
        &HostContext { command_prefix, ..HostContext::default() },
    );
    for rule in ["prefer-off", "not-engaged"] {
        let remedy = found(&findings, rule).remedy.as_deref();
        assert_eq!(remedy, Some("netpolicy --netns web set task 812 suspend200"), "{rule}");
    }
}

#[test]
fn four_workers_on_one_napi_resume_each_other() {
    let host = memcached(&[328], &[&[328; 5], &[328; 5], &[328; 5], &[328; 5]]);
    let counts =
        Counted { share: 76, timer_polls: 620, application_polls: 17_000, suspended: 1017, ..HEALTHY };
    let findings = doctor(&host, Some(&delivered([counts.on(328)])), &[]);
    assert_eq!(rules(&findings), ["napi-shared-by-epolls", "partly-engaged"]);
    assert_snapshot!(read_aloud::findings(&findings));
}

#[test]
fn two_napis_on_one_epoll_flap() {
    let host = memcached(&[259, 260], &[&[259, 260, 259, 260]]);
    let counts = |share| Counted { packets: 30_000, share, suspended: 940, timer_polls: 2_000, ..HEALTHY };
    let findings = doctor(&host, Some(&delivered([counts(56).on(259), counts(62).on(260)])), &[]);
    assert_eq!(rules(&findings), ["epoll-mixes-napis", "partly-engaged", "partly-engaged"]);
    assert_snapshot!(read_aloud::findings(&findings));
}

#[test]
fn two_napis_and_two_workers_dealt_by_turns_mix_too() {
    let host = memcached(&[259, 260], &[&[259, 260], &[260, 259]]);
    let counts = |share, suspended| Counted { packets: 30_000, share, suspended, ..HEALTHY };
    let findings = doctor(&host, Some(&delivered([counts(61, 814).on(259), counts(66, 1440).on(260)])), &[]);
    let expected: BTreeSet<&str> =
        ["epoll-mixes-napis", "napi-shared-by-epolls", "partly-engaged"].into_iter().collect();
    assert_eq!(rules(&findings).into_iter().collect::<BTreeSet<_>>(), expected);
    let remedy = found(&findings, "epoll-mixes-napis").remedy.as_deref();
    assert_eq!(
        remedy,
        Some("give each worker the connections of one NAPI id (SO_INCOMING_NAPI_ID; memcached: -N 2)")
    );
}

#[test]
fn two_workers_by_napi_id_on_one_cpu_take_turns() {
    let mut host = memcached(&[259, 260], &[&[259, 259], &[260, 260]]);
    for thread in &mut host.processes[0].threads {
        thread.affinity = "1".parse().expect("cpulist");
    }
    let counts = |share, suspended| Counted { packets: 30_000, share, suspended, ..HEALTHY };
    let findings = doctor(&host, Some(&delivered([counts(59, 620).on(259), counts(67, 869).on(260)])), &[]);
    assert_eq!(rules(&findings), ["pollers-share-a-cpu", "partly-engaged", "partly-engaged"]);
    assert_snapshot!(read_aloud::findings(&findings));
}

#[test]
fn an_epoll_that_does_not_prefer_busy_polling_is_not_engaged() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    set_epolls(&mut host.processes[0], DeliveryMode::Interrupt);
    let findings = doctor(&host, Some(&delivered([SOFTIRQ.on(328)])), &[]);
    assert_eq!(rules(&findings), ["prefer-off", "not-engaged"]);
    assert_eq!(
        found(&findings, "prefer-off").remedy.as_deref(),
        Some("netpolicy set task 812 suspend200"),
        "both halves are set by the process"
    );
    assert_snapshot!(read_aloud::findings(&findings));
}

#[test]
fn without_irq_suspend_timeout_it_is_ordinary_preferred_busy_polling() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    let wanted = asked(&host, suspend(200));
    set_napis(&mut host.devices[0], 100, 200, 0);
    let counts = Counted { share: 8, timer_polls: 3_900, application_polls: 2_400, suspended: 0, ..HEALTHY };
    let counts = delivered([counts.on(328)]);
    let findings = doctor(&host, Some(&counts), &wanted);
    assert_eq!(rules(&findings), ["irq-suspend-zero", "not-engaged"]);
    assert_snapshot!(read_aloud::findings(&findings));

    let findings = doctor(&host, Some(&counts), &[]);
    assert_eq!(rules(&findings), ["irq-suspend-zero", "busy-polled"], "no request asked for more");
    assert!(findings.iter().all(|f| f.severity == Severity::Note), "{findings:?}");
}

#[test]
fn suspension_without_deferral_is_called_what_it_is() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    set_napis(&mut host.devices[0], 0, 0, 20);
    let counts = Counted {
        interrupt_polls: 74_700,
        application_polls: 9_000,
        armed: 9_532,
        suspended: 9_532,
        ..SOFTIRQ
    };
    let findings = doctor(&host, Some(&delivered([counts.on(328)])), &[]);
    assert_eq!(rules(&findings), ["suspension-without-deferral", "not-engaged"]);
    assert_snapshot!(read_aloud::findings(&findings));
    for (polls, flush) in [(100, 0), (0, 200)] {
        set_napis(&mut host.devices[0], polls, flush, 20);
        let findings = doctor(&host, None, &[]);
        assert_eq!(rules(&findings), ["suspension-without-deferral", "not-counted"], "{polls}/{flush}");
    }
}

#[test]
fn low_load_is_idle_and_no_fault() {
    let host = memcached(&[328], &[&[328; 20]]);
    let counts = Counted {
        packets: 1_000,
        share: 5,
        interrupt_polls: 0,
        timer_polls: 5_300,
        timer_empty: 4_400,
        application_polls: 743,
        armed: 6_000,
        suspended: 743,
    };
    let counts = delivered([counts.on(328)]);
    let findings = doctor(&host, Some(&counts), &[]);
    assert_eq!(rules(&findings), ["idle"]);
    assert_eq!(findings[0].severity, Severity::Note);
    assert_snapshot!(read_aloud::findings(&findings));

    let silent = delivered([]);
    let findings = doctor(&host, Some(&silent), &[]);
    assert_eq!(rules(&findings), ["idle"], "no traffic at all");
    assert_eq!(findings[0].summary, "suspension is set and idle: no packet arrived");

    // Even with more traffic, a server may finish before the next packet arrives.
    let counts =
        Counted { packets: 10_000, timer_polls: 42_000, timer_empty: 33_000, suspended: 9_000, ..HEALTHY };
    let findings = doctor(&host, Some(&delivered([counts.on(328)])), &[]);
    assert_eq!(rules(&findings), ["engaged"]);
    let findings = doctor(&host, Some(&delivered([Counted { share: 5, ..counts }.on(328)])), &[]);
    assert_eq!(rules(&findings), ["idle"]);
    assert_snapshot!("idle_at_10000_packets_a_second", read_aloud::findings(&findings));
}

#[test]
fn what_only_hinders_under_load_does_not_make_a_quiet_napi_a_fault() {
    let host = memcached(&[328], &[&[328; 5], &[328; 5]]);
    let quiet = Counted { packets: 1_000, share: 5, timer_polls: 5_300, timer_empty: 4_400, ..HEALTHY };
    let findings = doctor(&host, Some(&delivered([quiet.on(328)])), &[]);
    assert_eq!(rules(&findings), ["napi-shared-by-epolls", "idle"]);
}

#[test]
fn suspension_that_was_never_taken_up_is_not_idle() {
    let host = memcached(&[328], &[&[328; 20]]);
    let quiet =
        Counted { packets: 1_000, share: 5, timer_polls: 5_300, timer_empty: 4_400, suspended: 0, ..HEALTHY };
    let findings = doctor(&host, Some(&delivered([quiet.on(328)])), &[]);
    assert_eq!(rules(&findings), ["not-engaged"]);
}

#[test]
fn a_problem_is_reported_at_low_load_too() {
    let host = memcached(&[259, 260], &[&[259, 260]]);
    let quiet = Counted { packets: 1_000, share: 5, timer_polls: 5_300, timer_empty: 4_400, ..HEALTHY };
    let findings = doctor(&host, Some(&delivered([quiet.on(259), quiet.on(260)])), &[]);
    assert_eq!(rules(&findings), ["epoll-mixes-napis", "not-engaged", "not-engaged"]);
}

#[test]
fn only_sockets_that_packets_come_to_are_connections() {
    let mut host = memcached(&[259, 260], &[&[259, 260, 0, 259]]);
    let sockets = &mut host.processes[0].sockets;
    (sockets[1].state, sockets[1].remote) = (SocketState::TcpListen, None);
    (sockets[2].state, sockets[2].remote) = (SocketState::Udp, None);
    sockets[3].state = SocketState::Udp;
    let healthy = Counted { packets: 1_000, ..HEALTHY };
    let findings = doctor(&host, Some(&delivered([healthy.on(259)])), &[]);
    assert_eq!(rules(&findings), ["engaged", "idle"], "no mixture, and nothing off its NAPI");
}

#[test]
fn an_epoll_that_polled_one_of_its_napis_does_wait() {
    let mut host = memcached(&[259, 260], &[&[259, 260]]);
    host.processes[0].threads[0].waits_on = None;
    let findings = doctor(&host, Some(&delivered([HEALTHY.on(259), SOFTIRQ.on(260)])), &[]);
    assert!(!rules(&findings).contains(&"never-waits"), "{findings:?}");
}

#[test]
fn of_many_veths_a_finding_names_eight_and_those_with_a_wrong_setting_first() {
    let of = |right: u32, wrong: u32| {
        let mut host = memcached(&[328], &[&[0; 20]]);
        host.devices.clear();
        for at in 0..right {
            host.devices.push(veth(2 + at, &format!("right{at}"), &[328 + at]));
        }
        host.devices.iter_mut().for_each(|device| device.xdp = true); // creates the NAPI, and disables TSO
        for at in 0..wrong {
            host.devices.push(veth(100 + at, &format!("wrong{at}"), &[]));
        }
        set_napis(&mut host.devices[0], 100, 200, 20);
        let findings = doctor(&host, Some(&delivered([])), &[]);
        let Finding { evidence, remedy, .. } = found(&findings, "packets-on-no-napi").clone();
        let veths = evidence.iter().filter_map(|line| line.split_once(" (veth)"));
        let veths = veths.map(|(name, _)| name.to_owned()).collect::<Vec<_>>().join(" ");
        let others = evidence.into_iter().filter(|line| line.contains("veth(s)") || line.contains("too:"));
        (veths, others.collect::<Vec<_>>(), remedy.expect("commands"))
    };
    let (veths, others, remedy) = of(3, 10);
    assert_eq!(veths, "wrong0 wrong1 wrong2 wrong3 wrong4 wrong5 wrong6 wrong7");
    let too = "2 of the other veths have a wrong setting, too: run doctor again after these commands";
    assert_eq!(others, ["and 5 more veth(s)", too]);
    assert!(remedy.contains("ethtool -K wrong7 gro on") && !remedy.contains("wrong8"), "{remedy}");
    assert!(remedy.ends_with("; netpolicy doctor"), "{remedy}");

    let (veths, others, remedy) = of(3, 6);
    assert_eq!(veths, "wrong0 wrong1 wrong2 wrong3 wrong4 wrong5 right0 right1");
    assert_eq!(others, ["and 1 more veth(s)"]);
    assert!(remedy.contains("ethtool -K wrong5 gro on") && !remedy.contains("netpolicy doctor"), "{remedy}");
    assert_eq!(of(2, 6).1, [""; 0]);
}

#[test]
fn of_many_causes_a_finding_names_eight() {
    let mut host = memcached(&[328], &[&[0; 20]]);
    host.processes.extend((0..9).map(|at| server(900 + at, "worker", &[&[0; 20]])));
    let findings = doctor(&host, Some(&delivered([])), &[]);
    let evidence = &found(&findings, "not-engaged").evidence;
    assert_eq!(evidence.iter().filter(|line| line.starts_with("cause: ")).count(), 8, "{evidence:?}");
    assert!(evidence.contains(&"and 2 more cause(s)".to_owned()), "{evidence:?}");
}

#[test]
fn a_veth_that_is_right_at_an_end_gets_no_remedy_there() {
    let mut host = memcached(&[328], &[&[0; 20]]);
    host.devices[0].xdp = true;
    host.devices[0].features.gro = Some(false);
    let findings = doctor(&host, Some(&delivered([])), &[]);
    assert_eq!(found(&findings, "packets-on-no-napi").remedy, None, "XDP creates the NAPI and disables TSO");

    host.devices[0].xdp = false;
    host.devices[0].peer = Some("veth1".to_owned());
    host.devices.push(veth(3, "veth1", &[]));
    host.devices[1].peer = Some("veth0".to_owned());
    host.devices[1].features.tso = Some(false);
    let findings = doctor(&host, Some(&delivered([])), &[]);
    let remedy = found(&findings, "packets-on-no-napi").remedy.as_deref();
    assert_eq!(remedy, Some("ethtool -K veth0 gro on"), "TSO is off at the other end");
}

#[test]
fn timers_that_could_not_be_watched_do_not_change_the_verdict() {
    let host = memcached(&[328], &[&[328; 20]]);
    let mut counts = HEALTHY.on(328);
    counts.interrupt.polls += counts.timer.polls;
    counts.interrupt.packets += counts.timer.packets;
    counts.interrupt.empty += counts.timer.empty;
    (counts.timer, counts.timer_armed, counts.timer_expired, counts.suspended) = Default::default();
    let hidden = |counts| Delivered { timers_hidden: true, ..delivered([counts]) };
    assert_eq!(rules(&doctor(&host, Some(&hidden(counts.clone())), &[])), ["timers-hidden", "engaged"]);
    counts.application = PollCounts { polls: 743, packets: 50, empty: 0 };
    counts.interrupt = PollCounts { polls: 5_300, packets: 950, empty: 4_400 };
    assert_eq!(rules(&doctor(&host, Some(&hidden(counts)), &[])), ["timers-hidden", "idle"]);
}

#[test]
fn a_busy_poll_of_the_whole_host_is_noted_while_epolls_have_no_time_of_their_own() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    let epoll = |host: &mut Host, usecs| {
        let params = host.processes[0].epolls[0].params.get_or_insert_default();
        params.busy_poll_usecs = usecs;
    };
    epoll(&mut host, 0);
    assert!(!rules(&doctor(&host, None, &[])).contains(&"busy-poll-everywhere"));
    host.sysctls.insert(Sysctl::BusyPoll, 50);
    let findings = doctor(&host, None, &[]);
    let summary = &found(&findings, "busy-poll-everywhere").summary;
    let words = "net.core.busy_poll is 50: 1 epoll(s) without their own busy_poll_usecs busy-poll for 50 us before they sleep";
    assert_eq!(summary, words);
    epoll(&mut host, 20);
    assert!(
        !rules(&doctor(&host, None, &[])).contains(&"busy-poll-everywhere"),
        "the epoll has its own time"
    );
}

#[test]
fn rps_is_found_although_the_napi_looks_engaged() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    host.devices[0].rx_queues[0].rps_cpus = "0".parse().expect("cpulist");
    let counts = Counted { suspended: 886, ..HEALTHY };
    let backlog = PollCounts { polls: 20_000, packets: 56_000, empty: 0 };
    let counts = Delivered { backlog, ..delivered([counts.on(328)]) };
    let findings = doctor(&host, Some(&counts), &[]);
    assert_eq!(rules(&findings), ["rps-on", "engaged"]);
    let rps = found(&findings, "rps-on");
    assert_eq!(rps.severity, Severity::Problem);
    assert_eq!(rps.remedy.as_deref(), Some("echo 0 > /sys/class/net/veth0/queues/rx-0/rps_cpus"));
}

#[test]
fn an_application_that_never_waits_never_polls() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    host.processes[0].threads[0].waits_on = None;
    let counts = Counted { interrupt_polls: 0, timer_polls: 4_200, ..SOFTIRQ };
    let counts = delivered([counts.on(328)]);
    let findings = doctor(&host, Some(&counts), &[]);
    assert_eq!(rules(&findings), ["never-waits", "not-engaged"]);
    host.processes[0].threads[0].waits_on = Some(Fd(7));
    assert!(
        !rules(&doctor(&host, Some(&counts), &[])).contains(&"never-waits"),
        "the thread waits nevertheless"
    );
}

#[test]
fn an_application_without_epoll_is_named() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    host.processes[0].epolls.clear();
    let findings = doctor(&host, Some(&delivered([SOFTIRQ.on(328)])), &[]);
    assert_eq!(rules(&findings), ["no-epoll", "not-engaged"]);
    assert_eq!(found(&findings, "no-epoll").remedy.as_deref(), Some("netpolicy set task 812 defer20"));
}

#[test]
fn io_urings_are_named_with_their_reason() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    let process = &mut host.processes[0];
    process.epolls.clear();
    let ring = |fd, napi, closed: Option<&str>| IoUring {
        id: RingId { process: process.id, fd: Fd(fd) },
        napi,
        registered_sockets: 4,
        closed: closed.map(str::to_owned),
    };
    let registered = RingNapi { busy_poll_usecs: 64, prefer_busy_poll: true };
    process.rings = vec![
        ring(9, None, Some("EEXIST: single issuer")),
        ring(10, None, None),
        ring(11, Some(registered), None),
    ];
    let findings = doctor(&host, Some(&delivered([SOFTIRQ.on(328)])), &[]);
    assert_eq!(rules(&findings), ["io-uring", "io-uring", "io-uring", "not-engaged"]);
    assert_snapshot!(read_aloud::findings(&findings));
}

/// redis on a veth with suspend20 and other work: it uses suspension, but the timer of 20 µs delivers two
/// thirds of the packets.
const TOO_SHORT: Counted = Counted {
    packets: 97_000,
    share: 33,
    interrupt_polls: 20,
    timer_polls: 21_000,
    timer_empty: 4_100,
    application_polls: 11_000,
    armed: 33_000,
    suspended: 10_200,
};

#[test]
fn a_timer_that_runs_out_before_the_application_runs_is_named_with_one_that_does_not() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    let counts = delivered([TOO_SHORT.on(328)]);
    let remedy = |host: &Host, context: &HostContext| {
        let findings = doctor_with(host, Some(&counts), &[], context);
        assert_eq!(rules(&findings), ["timer-before-application", "partly-engaged"]);
        assert_eq!(findings[0].remedy, findings[1].remedy);
        (findings[0].remedy.clone(), findings)
    };
    set_napis(&mut host.devices[0], 100, 20, 20);
    let context = waited(Nanoseconds(1_000_000_000), 90);
    let (command, findings) = remedy(&host, &context);
    assert_eq!(command.as_deref(), Some("netpolicy set device veth0 suspend200"));
    assert_snapshot!(read_aloud::findings(&findings));
    assert_eq!(remedy(&host, &HostContext::default()).0, command, "also without a measured wait");

    // The proposed timer is longer than the current one and outlasts the waits, but is shorter than the
    // suspension timeout.
    set_napis(&mut host.devices[0], 100, 200, 20);
    assert_eq!(remedy(&host, &context).0.as_deref(), Some("netpolicy set device veth0 suspend1000"));
    let mut long = context.clone();
    long.cpu_waits.insert(Pid(812), CpuWait { waited: Nanoseconds::from_millis(90), turns: 60 });
    assert_eq!(remedy(&host, &long).0.as_deref(), Some("netpolicy set device veth0 suspend5000"));
    set_napis(&mut host.devices[0], 100, 200, 1);
    assert!(remedy(&host, &context).0.is_some_and(|remedy| remedy.contains("taskset")));
}

#[test]
fn where_the_application_delivers_most_it_does_not_rest() {
    // The counts were measured on virtio-net in an emulated machine: few timer polls, half of them empty.
    let host = memcached(&[328], &[&[328; 20]]);
    let counts =
        Counted { packets: 988, share: 77, interrupt_polls: 5, timer_polls: 6, timer_empty: 3, ..TOO_SHORT };
    assert_eq!(rules(&doctor(&host, Some(&delivered([counts.on(328)])), &[])), ["partly-engaged"]);
}

#[test]
fn what_is_partly_engaged_says_who_delivers_the_rest() {
    let host = memcached(&[328], &[&[328; 20]]);
    let counts = Counted { interrupt_polls: 40_000, timer_polls: 0, timer_empty: 0, ..TOO_SHORT };
    let findings = doctor(&host, Some(&delivered([counts.on(328)])), &[]);
    assert_eq!(rules(&findings), ["partly-engaged"]);
    let summary = &findings[0].summary;
    assert!(summary.ends_with("most of the rest is delivered by interrupts, 64990/s"), "{summary}");
}

#[test]
fn busy_polling_without_a_suspended_irq_is_never_called_engaged() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    let process = &mut host.processes[0];
    process.epolls.clear();
    process.rings = vec![IoUring {
        id: RingId { process: process.id, fd: Fd(9) },
        napi: Some(RingNapi { busy_poll_usecs: 64, prefer_busy_poll: true }),
        registered_sockets: 0,
        closed: None,
    }];
    let busy = Counted { share: 99, suspended: 0, application_polls: 30_000, ..HEALTHY };
    let judged = |host: &Host, counts: Counted| doctor(host, Some(&delivered([counts.on(328)])), &[]);
    let findings = judged(&host, busy);
    assert_eq!(rules(&findings), ["io-uring", "polled-not-suspended"]);
    assert_eq!(found(&findings, "polled-not-suspended").severity, Severity::Warning);
    assert_snapshot!(read_aloud::findings(&findings));
    // If a timer of 20 µs delivers most of the packets, suspension does not count as partly engaged either.
    set_napis(&mut host.devices[0], 100, 20, 20);
    let findings = judged(&host, Counted { share: 20, timer_polls: 40_000, ..busy });
    assert_eq!(rules(&findings), ["io-uring", "polled-not-suspended"]);
    assert_eq!(found(&findings, "io-uring").severity, Severity::Warning);
    assert_eq!(found(&findings, "io-uring").remedy.as_deref(), Some("netpolicy set task 812 napibusy"));
    // Sockets registered with an io_uring may have no descriptor, but the ring's polling is still counted.
    host.processes[0].sockets.clear();
    host.processes[0].rings[0].registered_sockets = 20;
    let findings = judged(&host, busy);
    assert!(
        found(&findings, "polled-not-suspended").summary.ends_with("io-uring of memcached[812] io_uring 9")
    );

    // A few suspensions by another poller of the NAPI do not change the finding.
    let findings = judged(&host, Counted { suspended: 40, ..busy });
    assert!(rules(&findings).contains(&"polled-not-suspended"));
    // With hidden timers, suspensions are unknown. But no epoll here prefers busy polling, so none could
    // suspend.
    let mut counts = delivered([busy.on(328)]);
    counts.timers_hidden = true;
    assert!(rules(&doctor(&host, Some(&counts), &[])).contains(&"polled-not-suspended"));
}

#[test]
fn sockets_on_another_device_than_the_one_that_is_set() {
    let mut host = memcached(&[328], &[&[400; 20]]);
    host.devices.push(device(3, "eth1", &[400]));
    let findings = doctor(&host, Some(&delivered([SOFTIRQ.on(400)])), &[]);
    let finding = found(&findings, "set-on-another-device");
    assert_eq!(finding.summary, "it receives on eth1, and suspension is set on veth0");
    assert!(rules(&findings).contains(&"not-engaged"));
}

#[test]
fn a_queue_that_was_forgotten_is_named() {
    let mut host = memcached(&[259, 260], &[&[259], &[260]]);
    let forgotten = &mut host.devices[0].napis[1];
    (forgotten.defer_hard_irqs, forgotten.irq_suspend_timeout) =
        (Some(Default::default()), Some(Default::default()));
    forgotten.gro_flush_timeout = Some(Default::default());
    let findings = doctor(&host, None, &[]);
    let finding = found(&findings, "queue-not-set");
    assert_eq!(finding.summary, "it also receives on veth0 rx-1 (napi 260), where IRQs are not suspended");
}

#[test]
fn a_threaded_napi_is_named() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    host.devices[0].napis[0].threaded = Some(Threading::On);
    host.devices[0].napis[0].kthread = Some(Pid(317));
    let mut counts = SOFTIRQ.on(328);
    (counts.kthread, counts.interrupt) = (counts.interrupt, PollCounts::default());
    let findings = doctor(&host, Some(&delivered([counts])), &[]);
    let finding = found(&findings, "napi-threaded");
    assert_eq!(finding.evidence[0], "threaded is on, polled by task 317");
    assert!(rules(&findings).contains(&"not-engaged"));
}

#[test]
fn a_kernel_that_is_too_old_is_named_with_what_it_lacks() {
    let host = memcached(&[328], &[&[328; 20]]);
    let wanted = asked(&host, suspend(200));
    for (release, lacks) in [
        ("6.12.1", "suspend200 needs irq-suspend-timeout (Linux 6.13)"),
        ("6.6.1", "suspend200 needs irq-suspend-timeout (Linux 6.13)"),
    ] {
        let mut host = with_kernel(host.clone(), release);
        set_napis(&mut host.devices[0], 100, 200, 0);
        host.devices[0].napis[0].irq_suspend_timeout = None;
        let findings = doctor(&host, Some(&delivered([SOFTIRQ.on(328)])), &wanted);
        let finding = found(&findings, "kernel-too-old");
        assert_eq!(
            (finding.object.as_str(), finding.summary.as_str()),
            (&*format!("Linux {release}"), lacks)
        );
        assert_eq!(finding.remedy.as_deref(), Some("netpolicy set device veth0 defer200"));
    }
    let napibusy = asked(&host, DeliveryMode::NapiBusy);
    let findings = doctor(&with_kernel(host, "6.8.1"), None, &napibusy);
    assert!(found(&findings, "kernel-too-old").summary.contains("Linux 6.9"));
}

#[test]
fn what_could_not_be_read_is_reported_with_the_permission_that_is_missing() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    host.capabilities.ptrace = false;
    host.unread
        .push(Unread { what: "descriptors of nginx[901]".to_owned(), why: "pidfd_getfd: EPERM".to_owned() });
    let findings = doctor(&host, None, &[]);
    assert_snapshot!(read_aloud::findings(&findings));
}

#[test]
fn connections_over_loopback_have_no_napi() {
    let mut host = memcached(&[328], &[&[0; 3]]);
    for socket in &mut host.processes[0].sockets {
        socket.remote = Some("127.0.0.1:40000".parse().expect("address"));
    }
    let findings = doctor(&host, None, &asked(&host, suspend(200)));
    assert_eq!(rules(&findings), ["loopback-only", "not-counted"]);
    assert_eq!(findings[0].severity, Severity::Problem);
    host.processes[0].sockets[0].napi = Some(NapiId(328));
    host.processes[0].sockets[0].remote = Some("10.0.0.2:40000".parse().expect("address"));
    assert_eq!(
        rules(&doctor(&host, None, &[])),
        ["not-counted"],
        "one of the connections is not over loopback"
    );
}

#[test]
fn loopback_is_known_by_every_address_that_it_has() {
    for (local, remote) in [
        ("[::1]:11211", "[::1]:40000"),
        ("[::ffff:127.0.0.1]:11211", "[::ffff:127.0.0.1]:40000"),
        ("127.0.0.1:11211", "127.8.9.1:40000"),
        ("10.0.0.1:11211", "10.0.0.1:40000"),
        ("[::ffff:10.0.0.1]:11211", "[::ffff:10.0.0.1]:40000"),
    ] {
        let mut host = memcached(&[328], &[&[0; 3]]);
        for socket in &mut host.processes[0].sockets {
            socket.local = Some(local.parse().expect("address"));
            socket.remote = Some(remote.parse().expect("address"));
        }
        assert_eq!(rules(&doctor(&host, Some(&delivered([])), &[])), ["loopback-only", "idle"], "{remote}");
    }
}

#[test]
fn a_process_that_nothing_was_set_for_is_only_named_where_a_napi_waits_for_its_packets() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    host.processes.push(server(900, "agent", &[&[0, 0]]));
    let findings = doctor(&host, Some(&delivered([HEALTHY.on(328)])), &[]);
    assert_eq!(rules(&findings), ["engaged"]);
    // The veth's NAPI delivers nothing, so it may be waiting for these packets.
    let findings = doctor(&host, Some(&delivered([])), &[]);
    assert_eq!(found(&findings, "packets-on-no-napi").object, "agent[900]");
    host.devices[0].kind = "virtio_net".to_owned();
    assert!(!rules(&doctor(&host, Some(&delivered([])), &[])).contains(&"packets-on-no-napi"));
}

#[test]
fn a_napi_that_a_reset_replaced_and_a_process_elsewhere_are_distinguished() {
    let mut host = memcached(&[329], &[&[328; 3]]);
    assert!(rules(&doctor(&host, None, &[])).contains(&"napi-not-here"));
    host.processes[0].netns = Some(NetnsId(1));
    let findings = doctor(&host, None, &[]);
    assert!(rules(&findings).contains(&"another-namespace") && !rules(&findings).contains(&"napi-not-here"));
}

#[test]
fn a_pod_that_receives_by_a_napi_here_is_engaged_for_and_one_behind_a_routed_veth_is_explained() {
    let mut host = memcached(&[328], &[&[328; 3]]);
    let pod = &mut host.processes[0];
    pod.netns = Some(NetnsId(1));
    pod.container = Some("shop/cart-7d9f server".to_owned());
    let findings = doctor(&host, None, &[]);
    let here = found(&findings, "another-namespace");
    assert_eq!(here.severity, Severity::Ok);
    assert!(here.summary.contains("receives through veth0 napi 328"), "{}", here.summary);
    assert!(here.evidence[0].starts_with("container shop/cart-7d9f server; "), "{:?}", here.evidence);
    for socket in host.processes[0].sockets.iter_mut() {
        socket.napi = None;
    }
    let findings = doctor(&host, None, &[]);
    let lost = found(&findings, "another-namespace");
    assert!(
        lost.summary.contains("3 of its connections receive through a CPU's backlog"),
        "{}",
        lost.summary
    );
    assert!(lost.evidence.iter().any(|line| line.contains("bpf_redirect_peer")), "{:?}", lost.evidence);
}

#[test]
fn deferral_and_busy_polling_are_judged_by_what_they_are() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    set_epolls(&mut host.processes[0], DeliveryMode::Interrupt);
    set_napis(&mut host.devices[0], 100, 200, 0);
    let deferred = Counted { interrupt_polls: 10, timer_polls: 4_200, ..SOFTIRQ };
    let wanted = asked(&host, defer(200));
    assert_eq!(rules(&doctor(&host, Some(&delivered([deferred.on(328)])), &wanted)), ["deferred"]);
    assert_eq!(rules(&doctor(&host, Some(&delivered([SOFTIRQ.on(328)])), &wanted)), ["not-deferred"]);
    // Only packets count: empty timer polls deliver nothing.
    let mut empty = Counted { packets: 98, interrupt_polls: 98, ..Counted::default() }.on(328);
    (empty.timer.polls, empty.timer.empty) = (9_447, 9_447);
    let findings = doctor(&host, Some(&delivered([empty])), &wanted);
    assert_eq!(rules(&findings), ["not-deferred"]);
    assert_eq!(findings[0].summary, "deferral is set but not engaged: the timer delivers 0 % of the packets");
    for timer_polls in [0, 9_447] {
        let quiet = Counted { timer_polls, timer_empty: timer_polls, ..Counted::default() };
        let findings = doctor(&host, Some(&delivered([quiet.on(328)])), &wanted);
        assert_eq!(rules(&findings), ["idle"]);
        assert_eq!(findings[0].summary, "deferral is set and idle: no packet arrived");
    }
    set_epolls(&mut host.processes[0], DeliveryMode::NapiBusy);
    let busy = Counted { share: 16, timer_polls: 3_900, application_polls: 40_000, ..SOFTIRQ };
    let wanted = asked(&host, DeliveryMode::NapiBusy);
    assert_eq!(rules(&doctor(&host, Some(&delivered([busy.on(328)])), &wanted)), ["busy-polled"]);
}

#[test]
fn half_of_deferral_and_preference_without_it_are_warned_of() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    set_napis(&mut host.devices[0], 0, 0, 0);
    assert_eq!(rules(&doctor(&host, None, &[])), ["prefer-without-deferral", "not-counted"]);
    set_epolls(&mut host.processes[0], DeliveryMode::Interrupt);
    set_napis(&mut host.devices[0], 0, 200, 0);
    assert_eq!(rules(&doctor(&host, None, &[])), ["deferral-half-set"]);
}

#[test]
fn a_suspension_that_does_not_outlast_deferral_is_a_problem() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    set_napis(&mut host.devices[0], 100, 20_000, 20);
    assert_eq!(rules(&doctor(&host, None, &[])), ["suspension-too-short", "not-counted"]);
}

#[test]
fn counts_that_were_lost_are_admitted() {
    let host = memcached(&[328], &[&[328; 20]]);
    let counts = Delivered { lost: 7, ..delivered([HEALTHY.on(328)]) };
    assert_eq!(rules(&doctor(&host, Some(&counts), &[])), ["counts-lost", "engaged"]);
}

#[test]
fn an_untouched_host_has_no_findings() {
    let mut host = memcached(&[328, 329], &[&[328, 329], &[328, 329]]);
    set_napis(&mut host.devices[0], 0, 0, 0);
    set_epolls(&mut host.processes[0], DeliveryMode::Interrupt);
    assert_eq!(doctor(&host, Some(&delivered([SOFTIRQ.on(328)])), &[]), []);
}

#[test]
fn what_could_not_be_read_of_processes_is_one_finding_for_each_reason() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    let why = "Permission denied (EACCES), needs CAP_SYS_PTRACE";
    let unread = |pid: u32| Unread { what: format!("process {pid}"), why: why.to_owned() };
    host.unread = (1..=70).map(unread).collect();
    host.unread
        .push(Unread { what: "irqs".to_owned(), why: "No such file or directory (ENOENT)".to_owned() });
    host.capabilities.ptrace = false;
    let unprivileged = doctor(&host, None, &[]);
    let folded: Vec<&Finding> = unprivileged.iter().filter(|f| f.rule == "not-readable").collect();
    assert_eq!(folded.len(), 2, "{folded:?}");
    let processes = folded.iter().find(|f| f.object == "70 parts of processes").expect("folded");
    assert_eq!(processes.severity, Severity::Warning);
    assert_eq!(processes.evidence, [why, "process 1, process 2, process 3, process 4, and 66 more"]);
    assert!(processes.remedy.as_deref().is_some_and(|remedy| remedy.contains("CAP_SYS_PTRACE")));

    // In a container, even root may not inspect the host's process 1, which is only worth a note.
    host.capabilities.ptrace = true;
    host.unread = vec![unread(1)];
    let findings = doctor(&host, None, &[]);
    assert_eq!(found(&findings, "not-readable").severity, Severity::Note);

    // A profile that denies what the capabilities allow is worth a warning.
    host.capabilities.confined_by = Some("the AppArmor profile docker-default".to_owned());
    let findings = doctor(&host, None, &[]);
    let denied = found(&findings, "not-readable");
    assert_eq!(denied.severity, Severity::Warning);
    assert!(denied.remedy.as_deref().is_some_and(|remedy| remedy.contains("docker-default")), "{denied:?}");
}

#[test]
fn who_busy_polls_on_purpose_is_not_advised_to_suspend_for_as_long() {
    let mut host = memcached(&[328], &[&[328; 20]]);
    let values = DeliveryMode::FullBusy.params();
    let flush_us = values.gro_flush_timeout.0 / 1_000;
    set_napis(&mut host.devices[0], values.defer_hard_irqs.0, flush_us, 0);
    set_epolls(&mut host.processes[0], DeliveryMode::FullBusy);
    let findings = doctor(&host, None, &[]);
    let finding = found(&findings, "irq-suspend-zero");
    assert_eq!((finding.severity, finding.remedy.as_deref()), (Severity::Note, None), "{finding:?}");
    // If the operator requested suspension, the remedy is the command that sets it.
    let findings = doctor(&host, None, &asked(&host, suspend(200)));
    assert!(found(&findings, "irq-suspend-zero").remedy.is_some());
}
