//! Creates first policy files for many kinds of hosts. Each must be a valid policy file.

#[path = "../../plan/tests/plan/made.rs"]
#[expect(dead_code, reason = "other tests derive other hosts from this one")]
mod made;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use made::{device, host, process_id, server, veth};
use model::host::{PortRange, Process, Socket, SocketState, Unread};
use model::{Fd, Host, Label, Pid, PolicyName};
use netpolicy::init::{FirstFile, HostServices, ListeningSocket};
use proptest::prelude::*;

/// Adds sockets with these states and local addresses to a process.
fn at(mut process: Process, sockets: &[(SocketState, &str)]) -> Process {
    for (number, (state, address)) in (0_u32..).zip(sockets) {
        let inode = u64::from(process.id.pid.0) * 1000 + 500 + u64::from(number);
        let local: Option<SocketAddr> = Some(address.parse().expect("an address"));
        let socket = Socket {
            fd: Fd(50 + number),
            inode,
            state: *state,
            local,
            remote: None,
            napi: None,
            polling: None,
        };
        process.sockets.push(socket);
    }
    process
}

const TCP: SocketState = SocketState::TcpListen;
const UDP: SocketState = SocketState::Udp;

/// Returns what netpolicy finds on a host when it can see the whole host.
fn found(host: Host, cgroups: &[(u32, &str)]) -> HostServices {
    let sockets = host.processes.iter().flat_map(|process| &process.sockets);
    let listening: Vec<ListeningSocket> =
        sockets.filter_map(|s| ListeningSocket::of(s.inode, s.state, s.local, s.remote.is_some())).collect();
    let received = host.devices.iter().map(|device| (device.id, 1_000)).collect();
    let cgroups = cgroups.iter().map(|(pid, path)| (Pid(*pid), (*path).to_owned())).collect();
    HostServices { host, cgroups, started_as: BTreeMap::new(), received, listening, notes: BTreeMap::new() }
}

/// Returns a typical cache server, and the services that usually run next to it.
fn cache_server() -> HostServices {
    let mut host = host();
    let mut eth0 = device(2, "eth0", &[259, 260]);
    eth0.link.speed_mbps = Some(25_000);
    eth0.link.default_route = true;
    let mut down = device(3, "eth1", &[261]);
    down.up = false;
    let mut port = veth(4, "veth12ab", &[262]);
    port.link.master = Some(model::IfIndex(9));
    host.devices = vec![eth0, down, port];
    let mut container = at(server(900, "envoy", &[&[260]]), &[(TCP, "0.0.0.0:443"), (UDP, "0.0.0.0:443")]);
    container.container = Some("shop/edge-7d9f proxy".to_owned());
    let mut idle = at(server(700, "sshd", &[]), &[(TCP, "[::]:22")]);
    idle.sockets.truncate(1);
    host.processes = vec![
        at(server(1, "systemd", &[&[]]), &[(TCP, "0.0.0.0:22"), (TCP, "[::]:9090")]),
        idle,
        at(
            server(812, "memcached", &[&[259, 259], &[260]]),
            &[(TCP, "0.0.0.0:11211"), (UDP, "0.0.0.0:11211")],
        ),
        at(server(813, "redis-server", &[&[]]), &[(TCP, "127.0.0.1:6379"), (TCP, "[::1]:6379")]),
        at(server(814, "chronyd", &[]), &[(UDP, "0.0.0.0:40123")]),
        at(server(815, "server", &[&[]]), &[(TCP, "192.0.2.1:8000")]),
        container,
    ];
    let cgroups = [
        (1, "/init.scope"),
        (700, "/system.slice/ssh.service"),
        (812, "/system.slice/memcached.service"),
        (813, "/system.slice/redis-server.service"),
        (814, "/system.slice/chrony.service"),
        (815, "/user.slice/user-7.slice/session-3.scope"),
        (900, "/kubepods.slice/cri-1.scope"),
    ];
    found(host, &cgroups)
}

#[test]
fn a_cache_server_gets_a_file_that_asks_for_nothing() {
    insta::assert_snapshot!(FirstFile::of(&cache_server(), PolicyName::None).text);
}

#[test]
fn udp_ports_of_clients_are_those_of_the_hosts_range() {
    let mut seen = cache_server();
    seen.host.local_ports = PortRange { first: 1_024, last: 32_767 };
    let has_chrony = |seen: &_| {
        let file = FirstFile::of(seen, PolicyName::None);
        assert_ne!(
            file.text.contains("#[service.chrony]"),
            file.text.contains("chrony (udp 40123): UDP ports")
        );
        file.text.contains("#[service.chrony]")
    };
    assert!(has_chrony(&seen));
    seen.host.local_ports = PortRange { first: 1_024, last: 65_535 };
    assert!(!has_chrony(&seen));
    seen.host.reserved_ports = vec![PortRange { first: 40_123, last: 40_123 }];
    assert!(has_chrony(&seen), "a reserved port");
    seen.host.reserved_ports.clear();
    let chrony = seen.host.processes.iter_mut().find(|process| process.id.pid == Pid(814)).expect("chrony");
    chrony.sockets[0].local = Some("0.0.0.0:12345".parse().expect("an address"));
    assert!(FirstFile::of(&seen, PolicyName::None).text.contains("#[service.chrony]"), "a lower port");
}

#[test]
fn a_service_whose_executable_has_another_name_is_called_what_it_was_started_as() {
    let mut host = host();
    host.devices = vec![device(2, "eth0", &[259])];
    let mut server = at(server(813, "redis-server", &[&[259]]), &[(TCP, "0.0.0.0:6379")]);
    server.exe = "/usr/bin/redis-check-rdb".to_owned();
    host.processes = vec![server];
    let mut found = found(host, &[]);
    found.started_as = [(Pid(813), "/usr/bin/redis-server".to_owned())].into();
    let file = FirstFile::of(&found, PolicyName::Latency);
    assert!(file.text.contains("[service.redis-server]"), "{}", file.text);
    assert!(file.text.contains("exe = \"/usr/bin/redis-server\""), "{}", file.text);
    assert!(!file.text.contains("redis-check-rdb"), "{}", file.text);
}

#[test]
fn with_a_policy_every_section_asks_for_it() {
    let file = FirstFile::of(&cache_server(), PolicyName::Latency);
    insta::assert_snapshot!(file.text);
    let sections = read(&file.text);
    assert_eq!(sections, file.devices.len() + file.services.len());
}

#[test]
fn where_nothing_listens_the_file_says_so_and_is_one_all_the_same() {
    let file = FirstFile::of(&found(host(), &[]), PolicyName::Latency);
    assert!(file.text.contains("No device or service found to write a section for."), "{}", file.text);
    assert_eq!(read(&file.text), 0);
}

#[test]
fn without_privileges_the_file_says_whose_ports_it_does_not_know() {
    let mut seen = cache_server();
    let hidden: Vec<Pid> = seen.host.processes.iter().map(|process| process.id.pid).collect();
    seen.host.processes.clear();
    seen.host.capabilities.ptrace = false;
    let why = "Permission denied (EACCES)".to_owned();
    let unread = |pid: &Pid| Unread { what: format!("process {pid}"), why: why.clone() };
    seen.host.unread = hidden.iter().map(unread).collect();
    let file = FirstFile::of(&seen, PolicyName::None);
    let not_seen = file.not_seen.join("\n");
    assert!(not_seen.contains("7 processes that this user may not inspect (run it as root"), "{not_seen}");
    assert!(not_seen.contains("who serves tcp 22, tcp 443, tcp 8000, tcp 9090, tcp 11211"), "{not_seen}");
    assert!(!not_seen.contains("6379"), "the service is not reachable from outside: {not_seen}");
    assert!(file.services.is_empty());
}

#[test]
fn a_socket_that_no_process_holds_is_the_kernels() {
    let mut seen = cache_server();
    let at = "0.0.0.0:51820".parse().expect("an address");
    seen.listening.push(ListeningSocket { inode: 7, tcp: false, at });
    let file = FirstFile::of(&seen, PolicyName::None);
    assert!(
        file.not_seen.iter().any(|line| line.contains("udp 51820: the kernel (a tunnel")),
        "{:?}",
        file.not_seen
    );
}

#[test]
fn of_many_services_the_busiest_get_sections_and_the_others_are_counted() {
    let mut host = host();
    host.devices = vec![device(2, "eth0", &[259])];
    let service = |number: u32| {
        let connections = vec![259; usize::try_from(number).expect("a small number")];
        let name = format!("s{number}");
        at(server(1000 + number, &name, &[&connections]), &[(TCP, &format!("0.0.0.0:{}", 1000 + number))])
    };
    host.processes = (0..100).map(service).collect();
    let file = FirstFile::of(&found(host, &[]), PolicyName::Cpu);
    assert_eq!(file.services.len(), 24);
    assert_eq!(file.services[0].name, "s99", "the device with most connections");
    assert!(
        file.left_out.iter().any(|line| line.starts_with("76 services more: s75, ")),
        "{:?}",
        file.left_out
    );
    assert_eq!(read(&file.text), 25);
}

#[test]
fn a_bond_has_one_section_for_all_its_members() {
    let mut host = host();
    let mut bond = device(7, "bond0", &[]);
    bond.kind = "bond".to_owned();
    bond.napis.clear();
    let member = |index: u32, name: &str, napi: u32| {
        let mut member = device(index, name, &[napi]);
        member.link.master = Some(model::IfIndex(7));
        member
    };
    host.devices = vec![member(2, "eth0", 259), member(3, "eth1", 260), bond];
    let file = FirstFile::of(&found(host, &[]), PolicyName::Latency);
    let names: Vec<&str> = file.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["bond0"]);
    assert!(file.devices[0].facts[0].contains("stands for eth0, eth1"), "{:?}", file.devices);
}

/// Parses a text as a policy file; returns the number of sections.
fn read(text: &str) -> usize {
    let parsed = policy_file::parse("first.toml", text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
    let merged = policy_file::merge(&[parsed]).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
    merged.sections.len()
}

/// Uncomments the sections that are commented out.
fn uncommented(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(rest) if ["[", "match ", "policy ", "goal "].iter().any(|begin| rest.starts_with(begin)) => {
            format!("{rest}\n")
        }
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// Generates service names as found on real hosts, and unusual ones.
fn odd() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,8}",
        Just("dev-disk\\x2dby.service".to_owned()),
        Just("user@1000.service".to_owned()),
        "[\\[\\]*?\"'\\\\#= .{}]{1,12}",
        "\\PC{1,20}",
        any::<String>().prop_map(|text| text.replace(['/', '\0'], "_")),
    ]
}

proptest! {
    #[test]
    fn whatever_things_are_called_the_file_is_a_policy_file_and_names_each(
        units in proptest::collection::vec((odd(), odd(), any::<bool>()), 0..6),
        device_names in proptest::collection::btree_set("[!-.0-9;-~]{1,15}", 0..4),
        policy in proptest::sample::select(PolicyName::ALL.to_vec()),
    ) {
        let mut host = host();
        host.devices = device_names.iter().filter(|name| !matches!(name.as_str(), "." | ".." | "lo"))
            .zip(2..).map(|(name, index)| device(index, name, &[250 + index])).collect();
        let mut cgroups = BTreeMap::new();
        for ((unit, exe, in_container), pid) in units.iter().zip(100_u32..) {
            let mut process = at(server(pid, "x", &[&[252]]), &[(TCP, &format!("0.0.0.0:{pid}"))]);
            process.exe = format!("/opt/{exe}");
            process.id = model::ProcessId { comm: Label::new(exe), ..process_id(pid, "x") };
            process.container = in_container.then(|| unit.clone()).filter(|name| !name.is_empty());
            host.processes.push(process);
            cgroups.insert(pid, format!("/system.slice/{unit}.service"));
        }
        let cgroups: Vec<(u32, &str)> = cgroups.iter().map(|(pid, path)| (*pid, path.as_str())).collect();
        let file = FirstFile::of(&found(host, &cgroups), policy);
        prop_assert!(!file.text.chars().any(|c| c.is_control() && c != '\n'), "{:?}", file.text);
        let sections = file.devices.len() + file.services.len();
        let in_force = match policy {
            PolicyName::None | PolicyName::Mix => file.devices.len(),
            _ => sections,
        };
        prop_assert_eq!(read(&file.text), in_force);
        prop_assert_eq!(read(&uncommented(&file.text)), sections);
    }
}
