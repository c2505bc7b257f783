//! Finds the ports to measure for the service that an operator names.

use std::collections::{BTreeMap, BTreeSet};

use linux::process::{Criteria, find, identify, listening};
use linux::work::family;
use linux::{Netns, Processes, bpf::live::LiveTarget};
use model::live::ServicePorts;
use model::policy::Match;
use model::{Finding, Goal, Host, NapiId, Patterns, Pid, ProcessId, Severity, Target as Asked};

use session::{Exit, Fault, Operator, Session, count, nearest, privileges, quoted};

use crate::live::subject::ListeningService;

/// How an operator selects a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceSelection {
    /// The name of a service in the policy files, of a unit, or of an executable.
    Service(String),
    /// A process, by pid, and its children.
    Process(Pid),
    /// The processes that listen on this TCP port, or receive on this UDP port.
    Port(u16),
    /// The processes of a systemd unit.
    Unit(String),
    /// A service that the caller has already found in the session's namespace. Used by callers that may not
    /// inspect processes.
    Known(ListeningService),
}

/// A service that was found.
#[derive(Debug)]
pub struct MeasuredService {
    /// Its name.
    pub name: String,
    /// The network namespace of the service's sockets.
    pub netns: Netns,
    /// The ports on which the service receives requests.
    pub ports: ServicePorts,
    /// The processes.
    pub processes: Vec<ProcessId>,
    /// The host, without its processes.
    pub host: Host,
    /// Findings about properties of the host that make it unknown when packets arrived.
    pub findings: Vec<Finding>,
    /// The service's goal in the policy files.
    pub goal: Goal,
}

impl ServiceSelection {
    /// Parses an operator's word: a number is a port, and anything else is a name.
    pub fn named(word: &str) -> Self {
        match word.parse() {
            Ok(port) if port > 0 => Self::Port(port),
            Ok(_) | Err(_) => Self::Service(word.to_owned()),
        }
    }

    /// Returns the criteria for the processes of a service: from its section of the policy files, or from its
    /// port, unit or executable. Also returns the processes that match.
    ///
    /// # Errors
    /// If no process matches.
    pub fn conditions(
        word: &str,
        session: &Session,
        operator: &dyn Operator,
    ) -> Result<(Match, Vec<ProcessId>), Fault> {
        match Self::named(word) {
            Self::Port(port) => {
                let (_, found, _) = processes(&Self::Port(port), session, operator)?;
                Ok((Match { port: Some(port), ..Match::default() }, found))
            }
            _ => by_name(word, session, operator).map(|(matching, found, _)| (matching, found)),
        }
    }
}

impl MeasuredService {
    /// Finds the selected service.
    ///
    /// # Errors
    /// If no process matches, none of them listens, or they are in several namespaces.
    pub fn of(
        selection: &ServiceSelection,
        session: &Session,
        operator: &dyn Operator,
    ) -> Result<Self, Fault> {
        let (name, processes, goal) = match selection {
            ServiceSelection::Known(ListeningService { name, processes, ports, goal }) => {
                let (name, processes, ports) = (name.clone(), processes.clone(), ports.clone());
                let (target, _) = Self::at_ports(name, session.netns()?, processes, *goal, ports)?;
                return Ok(target);
            }
            selection => processes(selection, session, operator)?,
        };
        let netns = namespace(&name, &processes, selection, session, operator)?;
        let processes = inside(processes, &netns)?;
        let port = match selection {
            ServiceSelection::Port(port) => Some(*port),
            _ => None,
        };
        let (target, left_out) = Self::of_processes(name, netns, processes, goal, port)?;
        if left_out > 0 {
            let name = &target.name;
            let measured = target.ports.tcp.len() + target.ports.udp.len();
            operator.say(&format!(
                "{name} listens on {} ports: the first {measured} are measured",
                measured + left_out
            ));
        }
        Ok(target)
    }

    /// Measures processes of a namespace, on all ports on which they listen, or on one port. Also returns the
    /// number of ports beyond the limit.
    ///
    /// # Errors
    /// If none of the processes listens, or the kernel fails.
    pub fn of_processes(
        name: String,
        netns: Netns,
        processes: Vec<ProcessId>,
        goal: Goal,
        port: Option<u16>,
    ) -> Result<(Self, usize), Fault> {
        let pids: Vec<Pid> = processes.iter().map(|process| process.pid).collect();
        let found = listening(&pids, &netns)?;
        let ports = ServicePorts::select(&found.tcp, &found.udp, port);
        if ports.is_empty() {
            return Err(Fault::failed(format!("{name} listens on no TCP or UDP port"))
                .hint("name the port of the process that receives its requests: netpolicy watch --port N"));
        }
        Self::at_ports(name, netns, processes, goal, ports)
    }

    /// Measures processes of a namespace, on the given ports. Also returns the number of ports beyond the limit.
    ///
    /// # Errors
    /// If the kernel fails.
    pub(crate) fn at_ports(
        name: String,
        netns: Netns,
        processes: Vec<ProcessId>,
        goal: Goal,
        mut ports: ServicePorts,
    ) -> Result<(Self, usize), Fault> {
        let left_out = ports.truncate(LiveTarget::PORTS_MAX);
        let host = linux::observe(&netns, &Processes::None)?;
        let findings = hides(&host);
        Ok((Self { name, netns, ports, processes, host, findings, goal }, left_out))
    }

    /// Observes the host again, because its queues, and the properties that make arrival times unknown, may
    /// have changed.
    ///
    /// # Errors
    /// If the kernel fails.
    pub(crate) fn read_host(&mut self) -> Result<(), Fault> {
        self.host = linux::observe(&self.netns, &Processes::None)?;
        self.findings = hides(&self.host);
        Ok(())
    }

    /// Returns the name of a NAPI's queue, or the NAPI's id if the queue is unknown.
    pub fn queue_of(&self, napi: NapiId) -> String {
        let device = self.host.napi(napi).map(|(device, _)| device.id.name);
        let queue = device.and_then(|device| {
            let queue = self.host.queues_of(napi).next()?;
            Some(format!("{device} rx-{}", queue.index.0))
        });
        queue.unwrap_or_else(|| format!("napi {}", napi.0))
    }
}

/// Returns the selected processes, and the name of their service.
fn processes(
    selection: &ServiceSelection,
    session: &Session,
    operator: &dyn Operator,
) -> Result<(String, Vec<ProcessId>, Goal), Fault> {
    match selection {
        ServiceSelection::Process(pid) => {
            let first = identify(*pid)?;
            let family = family(first.pid).into_iter().filter_map(|pid| identify(pid).ok());
            Ok((first.to_string(), family.collect(), Goal::default()))
        }
        ServiceSelection::Port(port) => {
            let netns = Some(session.netns()?.id());
            let (found, unread) = search(&Criteria { port: Some(*port), netns, ..Criteria::default() })?;
            if found.is_empty() {
                let what = format!("no process listens on port {port} in this network namespace");
                let hint = "netpolicy show lists listeners; --netns pid:N selects a container's namespace";
                return Err(not_found(what, unread, Some(hint)));
            }
            Ok((format!("port {port}"), found, Goal::default()))
        }
        ServiceSelection::Unit(unit) => {
            let (found, unread) =
                search(&Criteria { unit: Some(Patterns::exactly(unit)), ..Criteria::default() })?;
            if found.is_empty() {
                return Err(not_found(format!("unit {unit} has no running process"), unread, None));
            }
            Ok((unit.clone(), found, Goal::default()))
        }
        ServiceSelection::Known(ListeningService { name, processes, goal, .. }) => {
            Ok((name.clone(), processes.clone(), *goal))
        }
        ServiceSelection::Service(name) => {
            let (_, found, goal) = by_name(name, session, operator)?;
            Ok((name.clone(), found, goal))
        }
    }
}

/// Returns the processes of the service with this name: of a section of the policy files, or otherwise of a
/// unit or an executable.
fn by_name(
    name: &str,
    session: &Session,
    operator: &dyn Operator,
) -> Result<(Match, Vec<ProcessId>, Goal), Fault> {
    let named =
        session.policy(operator)?.policy().intents.into_iter().find_map(|intent| match intent.target {
            Asked::Service(service, matching) if service == name => Some((matching, intent.goal)),
            Asked::Service(..)
            | Asked::Device(_)
            | Asked::Devices(..)
            | Asked::Task(_)
            | Asked::Epolls(..) => None,
        });
    let goal = named.as_ref().map_or_else(Goal::default, |(_, goal)| *goal);
    // If the operator selected a namespace, only a service in that namespace matches.
    let netns = session.netns.is_some().then(|| session.netns().map(|netns| netns.id())).transpose()?;
    let ways: Vec<Match> = match named {
        Some((matching, _)) => vec![matching],
        None => vec![
            Match { unit: Some(Patterns::exactly(name)), ..Match::default() },
            Match { exe: Some(Patterns::exactly(name)), ..Match::default() },
        ],
    };
    let mut unread = 0;
    for matching in ways {
        let Match { unit, cgroup, exe, pod, container, port, uid } = matching.clone();
        let (found, more) = search(&Criteria { exe, cgroup, unit, pod, container, port, uid, netns })?;
        unread = unread.max(more);
        if !found.is_empty() {
            return Ok((matching, found, goal));
        }
    }
    let what =
        format!("no process called `{name}` is running: no service of the policy files, unit or executable");
    if let Some(near) = nearest(name, names(session, operator).iter().map(String::as_str)) {
        return Err(Fault::failed(what).hint(format!("did you mean `{near}`?")));
    }
    Err(not_found(
        what,
        unread,
        Some("netpolicy show lists what listens; a port (6379) names a service, too"),
    ))
}

/// Returns the names of services on this host: the sections of the policy files, and the executable or
/// command name of each process with sockets. Processes that cannot be read are skipped.
fn names(session: &Session, operator: &dyn Operator) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for intent in session.policy(operator).map(|merged| merged.policy().intents).unwrap_or_default() {
        if let Asked::Service(name, _) = intent.target {
            names.insert(name);
        }
    }
    let host = session.netns().ok().and_then(|netns| linux::observe(&netns, &Processes::Networking).ok());
    let own = std::process::id();
    for process in host.iter().flat_map(|host| &host.processes).filter(|process| process.id.pid.0 != own) {
        let started_as = linux::process::started_as(process.id.pid);
        let path = started_as.as_deref().unwrap_or(&process.exe);
        names.extend(path.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned));
    }
    names
}

/// Returns the matching processes, and the number of processes that could not be inspected.
fn search(criteria: &Criteria) -> Result<(Vec<ProcessId>, usize), Fault> {
    let mut unread = Vec::new();
    let mut found = find(criteria, &mut unread)?;
    found.retain(|process| process.pid.0 != std::process::id());
    Ok((found, unread.len()))
}

fn not_found(what: String, unread: usize, hint: Option<&str>) -> Fault {
    if unread > 0 {
        let processes = count(unread, "process");
        let words = format!("{what}; permission to read {processes} was denied, and it may be among them");
        return Fault::failed(words).hint(privileges());
    }
    let fault = Fault::failed(what);
    match hint {
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}

/// Returns the namespace of these processes: the one that the operator selected, or otherwise the one that
/// all of them share. If they are in several namespaces, returns that of this command, which must be one of
/// them.
fn namespace(
    name: &str,
    processes: &[ProcessId],
    selection: &ServiceSelection,
    session: &Session,
    operator: &dyn Operator,
) -> Result<Netns, Fault> {
    if session.netns.is_some() || matches!(selection, ServiceSelection::Port(_)) {
        return session.netns();
    }
    let mut found: BTreeMap<u64, Netns> = BTreeMap::new();
    for process in processes {
        match Netns::of_process(process.pid) {
            Ok(netns) => drop(found.entry(netns.id().0).or_insert(netns)),
            Err(error) if matches!(error.cause, linux::Cause::Gone(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let several = found.len() > 1;
    let is_own = several && found.contains_key(&session.netns()?.id().0);
    let first = found.into_values().next();
    match first {
        Some(netns) if !several => Ok(netns),
        Some(_) if is_own => {
            operator.say(&format!(
                "{name} also has processes in other network namespaces: only those in this one are measured"
            ));
            session.netns()
        }
        Some(_) => Err(Fault::new(
            Exit::Usage,
            format!("{name} has processes in several network namespaces: only one can be measured at a time"),
        )
        .hint("select it by one of its processes: netpolicy --netns pid:N watch …")),
        None => Err(Fault::failed(format!("{name} ended"))),
    }
}

/// Returns only the processes in this namespace: the others have other settings, ports and CPU time.
fn inside(mut processes: Vec<ProcessId>, netns: &Netns) -> Result<Vec<ProcessId>, Fault> {
    let mut failed = None;
    processes.retain(|process| match Netns::of_process(process.pid) {
        Ok(of) => of.id() == netns.id(),
        Err(error) if matches!(error.cause, linux::Cause::Gone(_)) => false,
        Err(error) => {
            failed.get_or_insert(error);
            false
        }
    });
    failed.map_or(Ok(processes), |error| Err(error.into()))
}

/// Returns findings about properties of a host that make it unknown when packets arrived.
fn hides(host: &Host) -> Vec<Finding> {
    let mut findings = Vec::new();
    let finding =
        |rule: &str, object: &str, summary: &str, evidence: String, remedy: Option<String>| Finding {
            rule: rule.to_owned(),
            severity: Severity::Warning,
            object: object.to_owned(),
            summary: summary.to_owned(),
            evidence: vec![evidence],
            remedy,
        };
    for device in &host.devices {
        for queue in device.rx_queues.iter().filter(|queue| !queue.rps_cpus.is_empty()) {
            let file = format!("/sys/class/net/{}/queues/rx-{}/rps_cpus", device.id.name, queue.id.index.0);
            findings.push(finding(
                "live-rps",
                &format!("{} rx-{}", device.id.name, queue.id.index.0),
                "receive packet steering hides how long packets wait on the way to TCP",
                format!("{file} is {}", queue.rps_cpus),
                Some(format!("echo 0 > {}", quoted(&file))),
            ));
        }
        if let Some(coalesce) = &device.coalesce
            && coalesce.adaptive_rx == Some(true)
        {
            findings.push(finding(
                "live-moderation",
                device.id.name.as_str(),
                "the NIC delays interrupts adaptively; the wait in the ring does not include this delay",
                "adaptive-rx is on".to_owned(),
                Some(format!("ethtool -C {} adaptive-rx off", quoted(device.id.name.as_str()))),
            ));
        }
    }
    findings
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn receive_packet_steering_and_adaptive_moderation_are_named_with_what_turns_them_off() {
        let mut host: Host =
            serde_json::from_str(include_str!("../../../netpolicy/tests/hosts/cache-server.json"))
                .expect("a host");
        for device in &mut host.devices {
            if let Some(coalesce) = &mut device.coalesce {
                coalesce.adaptive_rx = Some(false);
            }
            for queue in &mut device.rx_queues {
                queue.rps_cpus = model::CpuSet::new();
            }
        }
        assert_eq!(hides(&host), []);
        let queue = host.devices.iter_mut().find_map(|device| device.rx_queues.first_mut()).expect("a queue");
        queue.rps_cpus = [model::Cpu(1)].into_iter().collect();
        let found = hides(&host);
        assert_eq!((found.len(), found[0].rule.as_str()), (1, "live-rps"));
        assert!(
            found[0].remedy.as_ref().is_some_and(|remedy| remedy.starts_with("echo 0 > /sys/class/net/"))
        );
    }
}
