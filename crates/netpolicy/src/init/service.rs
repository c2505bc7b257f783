//! Groups processes into services, and determines how a policy file can select them.

use std::collections::{BTreeMap, BTreeSet};

use model::host::Process;
use model::{Glob, Host, NapiId, ProcessId};

use super::first_file::name_of;
use super::found::{HostServices, ListeningSocket};

/// How to find the processes of a service, as keys of `match`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FoundBy {
    /// A systemd service.
    Unit(String),
    /// A container, with its pod as `namespace/name`.
    Container { pod: Option<String>, name: String },
    /// An executable.
    Exe(String),
    /// The lowest port, used if no other criterion is known.
    Port(u16),
    /// The sockets that systemd itself holds for socket-activated services.
    SystemdItself,
}

/// The processes of a service, in ascending order of pid.
#[derive(Clone, Debug)]
pub(crate) struct ServiceProcesses<'a> {
    pub(crate) how: FoundBy,
    pub(crate) processes: Vec<&'a Process>,
    /// The ports on which the service listens, each with its protocol (TCP first), without duplicates.
    pub(crate) listening: BTreeSet<(bool, u16)>,
    /// Whether packets of a NIC can reach any of the ports.
    pub(crate) reachable: bool,
}

impl ServiceProcesses<'_> {
    /// Returns, for each device, the number of the service's sockets that receive on it. The loopback device
    /// and the backlog are omitted.
    pub(crate) fn connections(&self, host: &Host) -> BTreeMap<String, usize> {
        let sockets = self.processes.iter().flat_map(|process| &process.sockets);
        // Count each socket once, because forked workers share the sockets of their parent.
        let napis: BTreeMap<u64, NapiId> =
            sockets.filter_map(|socket| Some((socket.inode, socket.napi?))).collect();
        let mut counts = BTreeMap::new();
        for napi in napis.values() {
            if let Some((device, _)) = host.napi(*napi) {
                *counts.entry(device.id.name.to_string()).or_default() += 1;
            }
        }
        counts
    }

    /// The number of the service's epolls.
    pub(crate) fn epolls(&self) -> usize {
        self.processes.iter().map(|process| process.epolls.len()).sum()
    }

    /// Formats the ports, such as `tcp 80, 443; udp 443`.
    pub(crate) fn ports(&self) -> String {
        let of = |udp: bool, word: &str| {
            let ports = self.listening.iter().filter(|(is_udp, _)| *is_udp == udp);
            let ports: Vec<String> = ports.map(|(_, port)| port.to_string()).collect();
            (!ports.is_empty()).then(|| format!("{word} {}", ports.join(", ")))
        };
        [of(false, "tcp"), of(true, "udp")].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// A service that receives requests over TCP from a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The name that the service's section would have.
    pub name: String,
    /// The service's processes, in ascending order of pid.
    pub processes: Vec<ProcessId>,
    /// The TCP ports on which the service listens.
    pub ports: Vec<u16>,
}

/// Returns the services that have TCP connections over NICs, the service with the most connections first.
pub fn servers(found: &HostServices) -> Vec<Server> {
    let mut servers: Vec<(usize, Server)> = groups(found)
        .iter()
        .filter(|group| group.reachable && group.how != FoundBy::SystemdItself)
        .filter_map(|group| {
            let connections: usize = group.connections(&found.host).values().sum();
            let ports = group.listening.iter().filter(|(udp, _)| !udp).map(|(_, port)| *port).collect();
            let processes = group.processes.iter().map(|process| process.id).collect();
            let server = Server { name: name_of(group), processes, ports };
            (connections > 0 && !server.ports.is_empty()).then_some((connections, server))
        })
        .collect();
    servers.sort_by_key(|(connections, server)| (std::cmp::Reverse(*connections), server.processes.clone()));
    servers.into_iter().map(|(_, server)| server).collect()
}

/// The listening services.
pub(crate) fn groups(found: &HostServices) -> Vec<ServiceProcesses<'_>> {
    let mut groups: BTreeMap<FoundBy, ServiceProcesses<'_>> = BTreeMap::new();
    for process in &found.host.processes {
        let listening: Vec<ListeningSocket> = process
            .sockets
            .iter()
            .filter_map(|s| ListeningSocket::of(s.inode, s.state, s.local, s.remote.is_some()))
            .collect();
        let cgroup = found.cgroups.get(&process.id.pid).map(String::as_str);
        let started_as = found.started_as.get(&process.id.pid).map(String::as_str);
        let Some(how) = how(process, cgroup, started_as, &listening) else { continue };
        let group = groups.entry(how.clone()).or_insert_with(|| ServiceProcesses {
            how,
            processes: Vec::new(),
            listening: BTreeSet::new(),
            reachable: false,
        });
        group.processes.push(process);
        group.reachable |= listening.iter().any(ListeningSocket::is_reachable);
        group.listening.extend(listening.iter().map(|socket| (!socket.tcp, socket.at.port())));
    }
    groups.into_values().filter(|group| !group.listening.is_empty()).collect()
}

/// Returns the best criterion for finding a process again, which must stay the same across restarts.
fn how(
    process: &Process,
    cgroup: Option<&str>,
    started_as: Option<&str>,
    listening: &[ListeningSocket],
) -> Option<FoundBy> {
    let can_be_named = |text: &str| pattern(text).is_some();
    if let Some(container) = &process.container {
        // `shop/cart-7d9f server` is the container `server` in a pod.
        let (pod, name) = match container.split_once(' ') {
            Some((pod, name)) => (Some(pod), name),
            None => (None, container.as_str()),
        };
        if can_be_named(name) && pod.is_none_or(can_be_named) {
            return Some(FoundBy::Container { pod: pod.map(str::to_owned), name: name.to_owned() });
        }
    }
    match cgroup.and_then(unit) {
        Some(Unit::Service(unit)) if can_be_named(&unit) => return Some(FoundBy::Unit(unit)),
        Some(Unit::SystemdItself) => return Some(FoundBy::SystemdItself),
        Some(Unit::Service(_) | Unit::Passing) | None => {}
    }
    let exe = started_as.unwrap_or(&process.exe);
    if can_be_named(exe) {
        return Some(FoundBy::Exe(exe.to_owned()));
    }
    listening.iter().map(|socket| socket.at.port()).min().map(FoundBy::Port)
}

/// The systemd unit in a cgroup's path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unit {
    /// A service, which keeps its name across restarts.
    Service(String),
    /// A scope, for example of a login. Its name is different the next time.
    Passing,
    /// The service manager.
    SystemdItself,
}

/// Returns the innermost unit of a cgroup's path.
///
/// systemd adds `_` to the beginning of a component that could be mistaken for a cgroup file (systemd,
/// `src/basic/cgroup-util.c` `cg_escape()`).
fn unit(path: &str) -> Option<Unit> {
    let innermost =
        path.split('/').rev().find(|part| part.ends_with(".service") || part.ends_with(".scope"))?;
    Some(match innermost.strip_prefix('_').unwrap_or(innermost) {
        "init.scope" => Unit::SystemdItself,
        service if service.ends_with(".service") => Unit::Service(service.to_owned()),
        _ => Unit::Passing,
    })
}

/// Returns a pattern that matches only this text; `None` if no pattern can.
pub(crate) fn pattern(text: &str) -> Option<String> {
    let mut pattern = String::new();
    for c in text.chars() {
        match c {
            '*' | '?' | '[' => pattern.extend(['[', c, ']']),
            // These characters are not allowed in patterns, so use `?`, which matches them.
            c if model::is_misleading(c) => pattern.push('?'),
            c => pattern.push(c),
        }
    }
    pattern.parse::<Glob>().is_ok_and(|glob| glob.meets(text)).then_some(pattern)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_unit_is_the_innermost_and_a_session_is_none() {
        let service = |name: &str| Some(Unit::Service(name.to_owned()));
        assert_eq!(unit("/system.slice/memcached.service"), service("memcached.service"));
        assert_eq!(
            unit("/system.slice/system-memcached.slice/memcached@1.service/sub"),
            service("memcached@1.service")
        );
        assert_eq!(unit("/user.slice/user-7.slice/user@7.service/app.slice/x.service"), service("x.service"));
        assert_eq!(
            unit("/user.slice/user-7.slice/user@7.service/app.slice/app-1.scope"),
            Some(Unit::Passing)
        );
        assert_eq!(unit("/user.slice/user-7.slice/session-3.scope"), Some(Unit::Passing));
        assert_eq!(unit("/init.scope"), Some(Unit::SystemdItself));
        assert_eq!(unit("/system.slice/_cpu.service"), service("cpu.service"));
        assert_eq!(unit("/"), None);
        assert_eq!(unit("/system.slice"), None);
    }

    #[test]
    fn a_name_with_characters_of_patterns_is_met_by_itself_alone() {
        for odd in ["/opt/a*b", "/opt/[x]", "what?", "dev-disk\\x2dby.service", "tab\there"] {
            let glob: Glob = pattern(odd).expect("a pattern").parse().expect("a pattern");
            assert!(glob.meets(odd), "{odd}");
            assert!(!glob.meets("/opt/aab") && !glob.meets("/opt/x") && !glob.meets("whats"), "{odd}");
        }
        assert_eq!(pattern(""), None);
        assert_eq!(pattern(&"x".repeat(2000)), None);
    }
}
