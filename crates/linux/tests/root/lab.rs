//! Tests that a lab consists of two correctly configured hosts, and that no part of a lab outlives the
//! process that holds it.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use linux::counters::CounterSource;
use linux::lab::{Lab, LabOptions, Memcached, MemcachedOptions, SERVER_DEVICE, ServerError};
use linux::{Netns, Processes, observe};
use model::host::{Device, SocketState};
use model::{Cpu, CpuSet, NetnsId, Pid};
use netlink::Links;
use testkit::subject::{Subject, eventually};
use testkit::wire::run;
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const SERVED: &[Need] = &[Need::Root, Need::Memcached];
    vec![
        test("lab/each_queue_of_the_server_has_a_napi", &[Need::Root], each_queue_has_a_napi),
        test("lab/tcp_of_the_client_comes_through_a_napi_of_the_server", SERVED, tcp_comes_through_a_napi),
        test("lab/with_tso_at_the_client_tcp_passes_the_napis_by", SERVED, tso_passes_the_napis_by),
        test("lab/without_gro_the_server_has_no_napi", &[Need::Root], without_gro_no_napi),
        test("lab/steering_is_on_where_it_was_asked_for", &[Need::Root], steering_is_on),
        test("lab/ethtool_agrees_about_the_switches", &[Need::Root, Need::Wire], ethtool_agrees),
        test("lab/memcached_runs_on_the_cpus_that_it_was_given", SERVED, memcached_is_pinned),
        test("lab/a_server_that_cannot_start_says_why_in_its_own_words", SERVED, failing_server_says_why),
        test("lab/a_command_on_the_client_has_the_clients_devices", &[Need::Root], command_on_client),
        test(
            "lab/files_of_the_lab_are_seen_by_no_other_process_and_end_with_it",
            &[Need::Root],
            scratch_ends,
        ),
        test("lab/an_impossible_number_of_queues_is_refused", &[Need::Root], impossible_queues),
        test("lab/two_labs_stand_side_by_side_and_leave_nothing", SERVED, two_labs),
        test("lab/nothing_is_left_when_its_holder_is_killed", SERVED, killed_holder),
        test("counters/what_a_server_is_asked_shows_in_the_counters_of_its_host", SERVED, counters_grow),
    ]
}

/// Plays the role that holds a lab with memcached until it is killed. Prints the pids of init and server,
/// then the namespaces.
pub(crate) fn hold() -> Result<(), Box<dyn std::error::Error>> {
    let lab = lab(2)?;
    let server = lab.start_memcached(&MemcachedOptions::default())?;
    let pids = [lab.server_pid(), server.process().pid];
    super::role::say(&format!("ready {} {}", pids[0], pids[1]));
    super::role::say(&format!("{} {}", lab.server().id(), lab.client().id()));
    super::role::until_stdin_closes();
    Ok(())
}

fn lab(queues: u32) -> Result<Lab, linux::KernelError> {
    Lab::new(&LabOptions::with_queues(queues))
}

fn server_device(lab: &Lab) -> Result<Device, Failed> {
    let host = observe(lab.server(), &Processes::None)?;
    host.device_named(SERVER_DEVICE).cloned().ok_or_else(|| "the server's device was not observed".into())
}

/// Opens some connections; returns for each whether the server saw it arrive through a NAPI.
fn came_through_napis(lab: &Lab, server: &Memcached) -> Result<Vec<bool>, Failed> {
    let connections = (0..4).map(|_| ask(lab, server)).collect::<Result<Vec<_>, _>>()?;
    let host = observe(lab.server(), &Processes::Only(vec![server.process().pid]))?;
    let process = host.process(server.process().pid).ok_or("memcached was not observed")?;
    let established = process.sockets.iter().filter(|socket| socket.state == SocketState::TcpEstablished);
    let napis: Vec<_> = established.map(|socket| socket.napi.is_some()).collect();
    assert_eq!(napis.len(), connections.len(), "{process:?}");
    Ok(napis)
}

/// Opens a connection from the client, and waits for one answer.
fn ask(lab: &Lab, server: &Memcached) -> Result<TcpStream, Failed> {
    let mut connection = lab.client().run(|| TcpStream::connect(server.address()))??;
    connection.write_all(b"get nothing\r\n")?;
    let mut answer = [0; 5];
    connection.read_exact(&mut answer)?;
    assert_eq!(&answer, b"END\r\n");
    Ok(connection)
}

fn each_queue_has_a_napi() -> Result<(), Failed> {
    for queues in [1, 3] {
        let device = server_device(&lab(queues)?)?;
        let served: BTreeSet<_> =
            device.rx_queues.iter().filter_map(|queue| Some(queue.napi?.napi)).collect();
        assert_eq!((device.rx_queues.len(), served.len()), (queues as usize, queues as usize), "{device:?}");
        assert_eq!((device.up, device.features.gro), (true, Some(true)), "{device:?}");
    }
    Ok(())
}

fn tcp_comes_through_a_napi() -> Result<(), Failed> {
    let lab = lab(2)?;
    let server = lab.start_memcached(&MemcachedOptions::default())?;
    assert!(server.version().starts_with("memcached 1."), "{}", server.version());
    assert_eq!(came_through_napis(&lab, &server)?, [true; 4]);
    Ok(())
}

fn tso_passes_the_napis_by() -> Result<(), Failed> {
    let lab = Lab::new(&LabOptions { client_tso: true, ..LabOptions::with_queues(1) })?;
    let server = lab.start_memcached(&MemcachedOptions::default())?;
    assert_eq!(came_through_napis(&lab, &server)?, [false; 4]);
    Ok(())
}

fn without_gro_no_napi() -> Result<(), Failed> {
    let lab = Lab::new(&LabOptions { server_gro: false, ..LabOptions::with_queues(1) })?;
    let device = server_device(&lab)?;
    assert_eq!((device.napis.len(), device.features.gro), (0, Some(false)), "{device:?}");
    Ok(())
}

fn steering_is_on() -> Result<(), Failed> {
    let first: CpuSet = [Cpu(0)].into_iter().collect();
    let lab = Lab::new(&LabOptions { server_rps: first.clone(), ..LabOptions::with_queues(2) })?;
    let device = server_device(&lab)?;
    assert!(device.rx_queues.iter().all(|queue| queue.rps_cpus == first), "{device:?}");
    Ok(())
}

fn ethtool_agrees() -> Result<(), Failed> {
    let lab = lab(1)?;
    let features = |netns: &Netns, device: &str| -> Result<String, Failed> {
        netns.run(|| run(&format!("ethtool -k {device}")))?
    };
    let server = features(lab.server(), SERVER_DEVICE)?;
    assert!(server.contains("generic-receive-offload: on"), "{server}");
    let client = features(lab.client(), "veth-client")?;
    let segmentation =
        client.lines().filter(|line| line.contains("tx-tcp") && line.contains("segmentation:"));
    assert!(segmentation.clone().count() >= 3, "{client}");
    assert!(segmentation.clone().all(|line| line.contains(": off")), "{client}");
    Ok(())
}

fn memcached_is_pinned() -> Result<(), Failed> {
    let first: CpuSet = [Cpu(0)].into_iter().collect();
    let lab = lab(1)?;
    let options = MemcachedOptions { threads: 3, cpus: first.clone(), ..MemcachedOptions::default() };
    let server = lab.start_memcached(&options)?;
    let host = observe(lab.server(), &Processes::Only(vec![server.process().pid]))?;
    let process = host.process(server.process().pid).ok_or("memcached was not observed")?;
    assert!(process.threads.len() >= 4 && process.threads.iter().all(|t| t.affinity == first), "{process:?}");
    assert!(process.epolls.len() >= 4, "{process:?}"); // Three workers and the listener.
    assert_ne!(process.uid, 0);
    Ok(())
}

fn failing_server_says_why() -> Result<(), Failed> {
    let options = MemcachedOptions { user: "no-such-user-here".to_owned(), ..MemcachedOptions::default() };
    let error = lab(1)?.start_memcached(&options).expect_err("there is no such user");
    assert!(matches!(error, ServerError::Ended { .. }), "{error}");
    assert!(error.to_string().contains("no-such-user-here"), "{error}");
    Ok(())
}

fn command_on_client() -> Result<(), Failed> {
    let lab = lab(1)?;
    let mut command = Command::new("cat");
    lab.place_on_client(command.arg("/proc/self/net/dev"))?;
    let output = String::from_utf8(command.output()?.stdout)?;
    assert!(output.contains("veth-client") && !output.contains(SERVER_DEVICE), "{output}");
    assert_eq!(Netns::at(&lab.client_path())?.id(), lab.client().id());
    Ok(())
}

fn scratch_ends() -> Result<(), Failed> {
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo");
    let before = mounts()?;
    let lab = lab(1)?;
    let directory = lab.scratch();
    std::fs::create_dir(directory.join("journal"))?;
    std::fs::write(directory.join("journal/1"), "begin")?;
    assert_eq!(std::fs::read_to_string(directory.join("journal/1"))?, "begin");
    assert_eq!(mounts()?, before);
    drop(lab);
    assert!(!directory.join("journal").exists());
    Ok(())
}

fn impossible_queues() -> Result<(), Failed> {
    for queues in [0, LabOptions::QUEUES_MAX + 1] {
        let error = lab(queues).expect_err("impossible");
        assert!(error.to_string().contains(&format!("a lab with {queues} queues")), "{error}");
    }
    Ok(())
}

fn two_labs() -> Result<(), Failed> {
    let before = devices_here()?;
    let (one, other) = (lab(1)?, lab(1)?);
    let servers = [
        one.start_memcached(&MemcachedOptions::default())?,
        other.start_memcached(&MemcachedOptions::default())?,
    ];
    assert_ne!(one.server().id(), other.server().id());
    assert_eq!(Netns::of_process(one.server_pid())?.id(), one.server().id());
    ask(&one, &servers[0])?;
    ask(&other, &servers[1])?;
    let pids = [one.server_pid(), other.server_pid(), servers[0].process().pid, servers[1].process().pid];
    let namespaces = [one.server().id(), one.client().id(), other.server().id(), other.client().id()];
    drop((one, other)); // The order does not matter.
    drop(servers);
    nothing_is_left(&pids, &namespaces)?;
    assert_eq!(devices_here()?, before);
    Ok(())
}

fn killed_holder() -> Result<(), Failed> {
    let (mut holder, pids) = Subject::in_role("lab")?;
    let namespaces = holder.line()?;
    let namespaces: Result<Vec<u64>, _> = namespaces.split(' ').map(str::parse).collect();
    let namespaces: Vec<_> = namespaces?.into_iter().map(NetnsId).collect();
    let pids: Vec<_> = pids.into_iter().map(Pid).collect();
    assert_eq!((pids.len(), namespaces.len()), (2, 2));
    for pid in &pids {
        assert_eq!(Netns::of_process(*pid)?.id(), namespaces[0], "both run on the server");
    }
    holder.kill();
    nothing_is_left(&pids, &namespaces)
}

/// Checks that no process and no namespace is left; waits, because the kernel frees unused namespaces
/// asynchronously.
fn nothing_is_left(pids: &[Pid], namespaces: &[NetnsId]) -> Result<(), Failed> {
    eventually("processes and namespaces no longer exist", || {
        let running = pids
            .iter()
            .any(|pid| std::fs::exists(format!("/proc/{pid}/ns/net")).unwrap_or(true) && is_alive(*pid));
        let held = namespaces.iter().any(|id| Netns::with_id(*id).is_ok());
        (!running && !held).then_some(())
    })
}

/// Whether a process is alive and not a zombie.
fn is_alive(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

fn devices_here() -> Result<Vec<u32>, Failed> {
    Ok(Links::open_here()?.all(|link| link.ifindex)?)
}

fn counters_grow() -> Result<(), Failed> {
    const REQUESTS: u64 = 200;
    let lab = lab(1)?;
    let server = lab.start_memcached(&MemcachedOptions::default())?;
    let mut source = CounterSource::open(lab.server())?;
    let before = source.snapshot()?;
    for _ in 0..REQUESTS {
        ask(&lab, &server)?;
    }
    let after = source.snapshot()?;
    let received = |counters: &model::evidence::Counters| -> u64 {
        counters.cpus.iter().map(|cpu| cpu.softirqs["NET_RX"]).sum()
    };
    assert!(received(&after) >= received(&before) + REQUESTS, "{before:?} {after:?}");
    assert!(after.context_switches > before.context_switches && after.at > before.at);
    assert_eq!(after.busy_poll_rx_packets, Some(0), "a new namespace has no polls");
    Ok(())
}
