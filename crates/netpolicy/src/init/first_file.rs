//! Writes a first policy file for the services and devices of a host.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use model::host::Device;
use model::{Glob, Host, Pid, PolicyName};
use policy_file::{key, quoted};
use schemars::JsonSchema;
use serde::Serialize;
use session::count;
use session::page::{Page, Report, plain};

use super::found::{HostServices, ListeningSocket};
use super::service::{FoundBy, ServiceProcesses, groups, pattern};

/// The maximum numbers of devices and of services that get a section. If a host has more, most of them belong
/// to containers or tunnels, for which separate sections would be of little use.
const DEVICES_MAX: usize = 16;
const SERVICES_MAX: usize = 24;

/// The maximum number of pids, names or ports in a comment's list.
const LISTED_MAX: usize = 5;

/// A first policy file. Until it is edited, it requests nothing, or the same policy for everything.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct FirstFile {
    /// The policy of each active section. If it is `none` or `mix`, the sections of services are comments.
    pub policy: PolicyName,
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
    /// A section for each device that carries traffic.
    pub devices: Vec<DeviceSection>,
    /// A section for each service that can receive packets of a NIC, the busiest first.
    pub services: Vec<ServiceSection>,
    /// The devices and services without a section, with the reasons.
    pub left_out: Vec<String>,
    /// The parts of the host that were not visible, and the privileges needed to see them.
    pub not_seen: Vec<String>,
    /// The text of the file.
    pub text: String,
}

/// A device's section.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct DeviceSection {
    /// The name.
    pub name: String,
    /// Facts about the device.
    pub facts: Vec<String>,
}

/// A service's section.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct ServiceSection {
    /// The name of the section.
    pub name: String,
    /// How to find the service's processes: each key of `match`, with its value as TOML.
    #[serde(rename = "match")]
    pub keys: Vec<(String, String)>,
    /// Facts about the service.
    pub facts: Vec<String>,
}

impl FirstFile {
    /// Creates the file for the devices and services that were found, with this policy in each section. For
    /// `none` and `mix`, the sections of services are commented out: `mix` is only for devices, and a service
    /// with `none` would cancel the policy of its device.
    pub fn of(found: &HostServices, policy: PolicyName) -> Self {
        let mut file = Self {
            policy,
            release: found.host.release.clone(),
            devices: Vec::new(),
            services: Vec::new(),
            left_out: Vec::new(),
            not_seen: Vec::new(),
            text: String::new(),
        };
        file.add_devices(found);
        file.add_services(found);
        file.add_not_seen(found);
        file.text = file.spelled();
        file
    }

    fn add_devices(&mut self, found: &HostServices) {
        let host = &found.host;
        let mut more: Vec<String> = Vec::new();
        for device in
            host.devices.iter().filter(|device| device.kind != "loopback" && device.id.name.as_str() != "lo")
        {
            let name = device.id.name.to_string();
            let below = host.below(device);
            let is_joint = matches!(device.kind.as_str(), "bond" | "team");
            let joint = host.devices.iter().find(|upper| {
                matches!(upper.kind.as_str(), "bond" | "team") && host.is_directly_below(device, upper)
            });
            let received = found.received.get(&device.id).copied();
            let why = if !device.up {
                Some("it is down or has no carrier".to_owned())
            } else if let Some(joint) = joint {
                Some(format!("it is a member of {}, whose section covers it", joint.id.name))
            } else if received == Some(0) {
                Some("it has received no packet yet".to_owned())
            } else if is_joint && !below.is_empty() {
                None
            } else if device.kind == "veth" && device.link.master.is_some() {
                Some("the host's end of a container's or VM's link, which is temporary".to_owned())
            } else if !below.is_empty() && device.napis.is_empty() {
                let below: Vec<String> = below.iter().map(|(_, lower)| lower.id.name.to_string()).collect();
                Some(format!("it is stacked on {}", listed(&below)))
            } else if device.napis.is_empty() {
                Some(format!(
                    "it has no NAPI, or the kernel does not report it (6.7): packets arrive through a CPU's backlog; {}",
                    plan::why_no_napi(device)
                ))
            } else {
                None
            };
            match why {
                Some(why) => self.left_out.push(format!("{name}: {why}")),
                None if self.devices.len() == DEVICES_MAX => more.push(name),
                None => {
                    let facts = device_facts(device, host, received);
                    self.devices.push(DeviceSection { name, facts });
                }
            }
        }
        if !more.is_empty() {
            self.left_out.push(format!("{} more: {}", count(more.len(), "device"), listed(&more)));
        }
    }

    fn add_services(&mut self, found: &HostServices) {
        let host = &found.host;
        let mut groups = groups(found);
        let elsewhere: BTreeSet<(bool, u16)> = groups
            .iter()
            .filter(|group| group.how != FoundBy::SystemdItself)
            .flat_map(|group| group.listening.iter().copied())
            .collect();
        groups.sort_by_key(|group| {
            let connections: usize = group.connections(host).values().sum();
            let has_tcp = group.listening.iter().any(|(udp, _)| !udp);
            (std::cmp::Reverse((connections, group.epolls() > 0, has_tcp)), name_of(group))
        });
        let mut more = Vec::new();
        for group in &mut groups {
            let name = name_of(group);
            if group.how == FoundBy::SystemdItself {
                // A service that is running holds descriptors of these sockets itself.
                group.listening.retain(|port| !elsewhere.contains(port));
                if !group.listening.is_empty() {
                    let ports = group.ports();
                    self.left_out.push(format!(
                        "{ports}: systemd starts a service when a client connects; use its unit"
                    ));
                }
                continue;
            }
            let is_client = group.listening.iter().all(|(udp, port)| {
                *udp && group.processes.iter().all(|process| host.is_client_port(process, *port))
            });
            if is_client {
                self.left_out.push(format!("{name} ({}): UDP ports of a client", short(&group.ports())));
            } else if !group.reachable {
                let why = "it listens only on the loopback device, which has no NAPI";
                self.left_out.push(format!("{name} ({}): {why}", short(&group.ports())));
            } else if self.services.len() == SERVICES_MAX {
                more.push(name);
            } else {
                let section = self.service(group, name, host, &found.notes);
                self.services.push(section);
            }
        }
        if !more.is_empty() {
            self.left_out.push(format!("{} more: {}", count(more.len(), "service"), listed(&more)));
        }
    }

    fn service(
        &self,
        group: &ServiceProcesses<'_>,
        name: String,
        host: &Host,
        notes: &BTreeMap<Pid, Vec<String>>,
    ) -> ServiceSection {
        let mut unique = name.clone();
        let mut number = 1;
        while self.services.iter().any(|other| other.name == unique) {
            number += 1;
            unique = format!("{name}-{number}");
        }
        let notes = group.processes.first().and_then(|first| notes.get(&first.id.pid));
        let keys = match &group.how {
            FoundBy::Unit(unit) => vec![("unit", patterned(unit))],
            FoundBy::Container { pod, name } => {
                let pod = pod.as_ref().map(|pod| ("pod", patterned(pod)));
                pod.into_iter().chain([("container", patterned(name))]).collect()
            }
            FoundBy::Exe(exe) => vec![("exe", patterned(exe))],
            FoundBy::Port(port) => vec![("port", port.to_string())],
            FoundBy::SystemdItself => Vec::new(),
        };
        ServiceSection {
            name: unique,
            keys: keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            facts: service_facts(group, host).into_iter().chain(notes.cloned().unwrap_or_default()).collect(),
        }
    }

    fn add_not_seen(&mut self, found: &HostServices) {
        let unheld: Vec<ListeningSocket> =
            found.unheld().into_iter().filter(ListeningSocket::is_reachable).collect();
        let ports: BTreeSet<(bool, u16)> =
            unheld.iter().map(|socket| (!socket.tcp, socket.at.port())).collect();
        let ports: Vec<String> =
            ports.iter().map(|(udp, port)| format!("{} {port}", if *udp { "udp" } else { "tcp" })).collect();
        let hidden = found.host.unread.iter().filter(|unread| unread.process().is_some()).count();
        if hidden > 0 {
            let who = if hidden == 1 { "1 process".to_owned() } else { format!("{hidden} processes") };
            self.not_seen.push(match found.host.capabilities.ptrace {
                true => format!("{who} that even root may not inspect, as in another user namespace"),
                false => {
                    format!("{who} that this user may not inspect (run it as root, or with CAP_SYS_PTRACE)")
                }
            });
        }
        if !ports.is_empty() {
            self.not_seen.push(match hidden {
                0 => format!(
                    "which process serves {}: the kernel (a tunnel, NFS), or a process in another namespace",
                    listed(&ports)
                ),
                _ => format!("who serves {}", listed(&ports)),
            });
        }
        self.not_seen.push(
            "other network namespaces, such as containers and pods (netpolicy --netns NAME init)".to_owned(),
        );
    }

    fn spelled(&self) -> String {
        let mut text = String::new();
        let mut comment = |line: &str| {
            let line = plain(line);
            let _ = writeln!(text, "{}", format!("# {line}").trim_end());
        };
        comment(&format!(
            "A first policy file, written by `netpolicy init` from the services and devices of this host (Linux {}).",
            self.release
        ));
        match self.policy {
            PolicyName::None => {
                comment(
                    "It requests nothing yet. Replace \"none\" with another policy, and uncomment the lines",
                );
                comment("of a service that needs its own policy.");
            }
            PolicyName::Mix => comment("Uncomment the lines of each service that needs its own policy."),
            policy => comment(&format!(
                "It requests {policy} everywhere: change it where another policy is better."
            )),
        }
        comment("");
        for policy in PolicyName::ALL {
            comment(&format!("  {:<9}{}", policy.as_str(), policy.meaning()));
        }
        comment("");
        comment("  netpolicy plan             what the file would change, and why; changes nothing");
        comment("  netpolicy try              change it for 60 s, unless you confirm");
        comment("  netpolicy explain latency  what a policy sets, and why");
        for (title, lines) in [("Without a section:", &self.left_out), ("Not seen:", &self.not_seen)] {
            if !lines.is_empty() {
                comment("");
                comment(title);
                lines.iter().for_each(|line| comment(&format!("- {line}")));
            }
        }
        let names = self.devices.iter().map(|device| device.name.clone());
        let mut taken: BTreeSet<String> = names.filter(|name| !Glob::is_pattern(name)).collect();
        for DeviceSection { name, facts } in &self.devices {
            section(&mut text, facts);
            if Glob::is_pattern(name) {
                let key = quoted(&untaken(name, &mut taken));
                let _ = writeln!(text, "[device.{key}]\nmatch  = {{ name = {} }}", patterned(name));
            } else {
                let _ = writeln!(text, "[device.{}]", key(name));
            }
            let _ = writeln!(text, "policy = \"{}\"", self.policy);
        }
        // With `none` and `mix`, comment out the sections of services: a service with policy `none` would
        // cancel the policy of its device.
        let (mark, policy) = match self.policy {
            PolicyName::None | PolicyName::Mix => ("#", PolicyName::Latency),
            policy => ("", policy),
        };
        for ServiceSection { name, keys, facts } in &self.services {
            section(&mut text, facts);
            let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            let _ = writeln!(text, "{mark}[service.{}]\n{mark}match  = {{ {} }}", key(name), keys.join(", "));
            let _ = writeln!(text, "{mark}policy = \"{policy}\"\n#goal   = {{ p99 = \"300us\" }}");
        }
        if self.devices.is_empty() && self.services.is_empty() {
            text.push_str("\n# No device or service found to write a section for.\n");
        }
        text
    }
}

impl Report for FirstFile {
    const KIND: &'static str = "first-file";

    fn page(&self, page: &mut Page) {
        self.text.lines().for_each(|line| page.line(line));
    }
}

/// Returns a section name for a device whose own name would be a pattern. No other section has the returned
/// name.
fn untaken(device: &str, taken: &mut BTreeSet<String>) -> String {
    let first = format!("device-{}", device.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
    let others = (2..).map(|number: u32| format!("{first}-{number}"));
    let mut names = std::iter::once(first.clone()).chain(others);
    names.find(|name| taken.insert(name.clone())).expect("fewer devices than numbers")
}

fn section(text: &mut String, facts: &[String]) {
    text.push('\n');
    for fact in facts {
        let _ = writeln!(text, "# {}", plain(fact));
    }
}

/// Returns a pattern, in TOML syntax, that matches only this text.
fn patterned(text: &str) -> String {
    quoted(&pattern(text).unwrap_or_else(|| text.to_owned()))
}

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(LISTED_MAX).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Shortens a list of ports if it has many ports.
fn short(ports: &str) -> String {
    let all: Vec<String> = ports.split(", ").map(str::to_owned).collect();
    listed(&all)
}

/// Returns the name of a service's section, which is the usual name of the service.
pub(crate) fn name_of(group: &ServiceProcesses<'_>) -> String {
    let name = match &group.how {
        FoundBy::Unit(unit) => unit.strip_suffix(".service").unwrap_or(unit).to_owned(),
        FoundBy::Container { name, .. } => name.clone(),
        FoundBy::Exe(exe) => exe.rsplit('/').next().unwrap_or(exe).to_owned(),
        FoundBy::Port(port) => format!("port-{port}"),
        FoundBy::SystemdItself => "systemd".to_owned(),
    };
    match plain(&name) {
        name if name.is_empty() => "service".to_owned(),
        name => name,
    }
}

fn device_facts(device: &Device, host: &Host, received: Option<u64>) -> Vec<String> {
    let mut facts = vec![match device.kind.as_str() {
        "" => device.id.name.to_string(),
        kind => format!("{}: {kind}", device.id.name),
    }];
    let below: Vec<String> = host.below(device).iter().map(|(_, lower)| lower.id.name.to_string()).collect();
    if !below.is_empty() {
        facts.push(format!("stands for {}", listed(&below)));
    }
    if !device.rx_queues.is_empty() {
        facts.push(count(device.rx_queues.len(), "receive queue"));
    }
    facts.extend(device.link.speed_mbps.map(|mbps| match mbps % 1000 {
        0 => format!("{} Gbit/s", mbps / 1000),
        _ => format!("{mbps} Mbit/s"),
    }));
    if device.link.default_route {
        facts.push("it carries the default route".to_owned());
    }
    facts.extend(received.map(|packets| format!("{packets} packets received")));
    vec![facts.join(", ")]
}

fn service_facts(group: &ServiceProcesses<'_>, host: &Host) -> Vec<String> {
    let pids: Vec<String> = group.processes.iter().map(|process| process.id.to_string()).collect();
    let mut facts = vec![format!("{}: {}", listed(&pids), short(&group.ports()))];
    let connections = group.connections(host);
    let connections: Vec<String> = connections
        .iter()
        .map(|(device, number)| format!("{} on {device}", count(*number, "connection")))
        .collect();
    let is_unread = |process: &model::host::Process| {
        host.unread.iter().any(|unread| unread.process() == Some(process.id.pid))
    };
    let waits = match group.epolls() {
        _ if group.processes.iter().any(|process| is_unread(process)) => None,
        0 => Some("it uses no epoll, so no policy can suspend interrupts for this service".to_owned()),
        epolls => Some(format!("waits in {}", count(epolls, "epoll"))),
    };
    let more: Vec<String> = waits.into_iter().chain(connections).collect();
    if !more.is_empty() {
        facts.push(more.join(", "));
    }
    facts
}
