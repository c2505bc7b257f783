//! All requests of the policy files, of clients and of applications, and the processes that each currently
//! matches.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linux::KernelError;
use linux::bpf::process_events::{NAMES_MAX, Waited};
use linux::process::{Criteria, find_each, identify};
use model::host::{AppRequest, Unread};
use model::policy::Match;
use model::{Glob, Host, Intent, NicRequest, Pid, Policy, ProcessId, Recipes, Target};
use serde::{Deserialize, Serialize};
use session::replaced_file::{Durability, replace_file};

use crate::app_requests::{AppRequests, Asker};
use crate::placing::RequestMembers;
use crate::status::EventSource;

/// The maximum number of clients' requests. A further request displaces the oldest one.
pub(crate) const ASKED_MAX: usize = 1024;

/// The maximum number of processes of a request that includes child processes.
pub(crate) const TREE_MAX: usize = 4096;

/// The maximum number of processes that are observed because they make requests.
pub(crate) const REQUESTERS_MAX: usize = 4096;

/// The maximum size of the file that stores clients' requests, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// A client's request to the running daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredRequest {
    intent: Intent,
    /// The process of a request that names a pid. It includes the start time, because pids are reused.
    process: Option<ProcessId>,
    /// The id of the boot in which the process was running.
    boot: String,
}

/// What is known about the ports that a process serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    /// There is no sign that the process's sockets have changed.
    AsBefore,
    /// The kernel has just reported that the process serves this port.
    Port(u16),
    /// Nothing is known, so the process's sockets must be read.
    Unknown,
}

/// All requests.
pub(crate) struct RequestTable {
    /// The requests of applications.
    apps: AppRequests,
    files: Vec<Intent>,
    /// Whether the policy files have been read without mistakes since the daemon started.
    are_files_known: bool,
    /// The recipes that define the policies.
    recipes: Arc<Recipes>,
    /// Whether recipes may disturb traffic.
    disruptive: bool,
    /// Whether an interrupt may be pinned if the driver does not report the interrupt's queue.
    inferred: bool,
    asked: Vec<StoredRequest>,
    /// The file that stores the requests in `asked`.
    path: PathBuf,
    boot: String,
    /// For each process: the names of the services to which it belongs.
    services: BTreeMap<Pid, BTreeSet<String>>,
    /// For each process that a request for a task includes: the process that the request names, which is the
    /// process itself or an ancestor.
    trees: BTreeMap<Pid, Pid>,
    /// The processes that make a request, or hold a socket with a request.
    requesters: BTreeSet<Pid>,
}

impl RequestTable {
    /// Reads the stored requests of clients. The policy files are read later.
    pub(crate) fn open(
        path: PathBuf,
        boot: &str,
        apps: AppRequests,
        disruptive: bool,
        inferred: bool,
    ) -> Result<Self, (PathBuf, std::io::Error)> {
        let mut wants = Self {
            apps,
            files: Vec::new(),
            are_files_known: false,
            recipes: Arc::default(),
            disruptive,
            inferred,
            asked: Vec::new(),
            path,
            boot: boot.trim().to_owned(),
            services: BTreeMap::new(),
            trees: BTreeMap::new(),
            requesters: BTreeSet::new(),
        };
        wants.asked = read(&wants.path).map_err(|error| (wants.path.clone(), error))?;
        let boot = wants.boot.clone();
        wants.asked.retain(|asked| asked.process.is_none() || asked.boot == boot);
        let roots: Vec<ProcessId> = wants.asked.iter().filter_map(|asked| asked.process).collect();
        for root in roots {
            if identify(root.pid).is_ok_and(|now| now.started == root.started) {
                wants.trees.insert(root.pid, root.pid);
            } else {
                wants.asked.retain(|asked| asked.process != Some(root));
            }
        }
        Ok(wants)
    }

    /// Appends the requests of applications to a policy. Also returns notes about requests that are left out.
    pub(crate) fn with_apps(&self, policy: Policy, host: &Host) -> (Policy, Vec<String>) {
        self.apps.joined(policy, host)
    }

    /// Returns the processes for which applications have made requests since the last call.
    ///
    /// # Errors
    /// As for [`AppRequests::asked`].
    pub(crate) fn asked_by_apps(&mut self) -> Result<BTreeSet<Pid>, KernelError> {
        self.apps.asked()
    }

    /// Reads the requests of applications.
    ///
    /// # Errors
    /// As for [`AppRequests::read`].
    pub(crate) fn read_apps(&mut self) -> Result<Vec<AppRequest>, KernelError> {
        self.apps.read()
    }

    /// Sets the applications whose requests are followed.
    pub(crate) fn follow_apps(&mut self, askers: Vec<Asker>) {
        self.apps.follow(askers);
    }

    /// As for [`AppRequests::new_descriptor`].
    pub(crate) fn new_apps_descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        self.apps.new_descriptor()
    }

    /// As for [`AppRequests::event_source`].
    pub(crate) fn event_source_of_apps(&self) -> Option<EventSource> {
        self.apps.event_source()
    }

    /// Replaces the requests of the policy files.
    pub(crate) fn files_say(&mut self, intents: Vec<Intent>, recipes: Arc<Recipes>) {
        self.files = intents;
        self.are_files_known = true;
        self.recipes = recipes;
    }

    /// Whether the requests of the policy files are known. They are if the files have been free of mistakes
    /// at least once since the daemon started.
    pub(crate) fn are_files_known(&self) -> bool {
        self.are_files_known
    }

    /// The requests of the policy files, as a policy.
    pub(crate) fn of_files(&self) -> Policy {
        Policy {
            intents: self.files.clone(),
            recipes: Arc::clone(&self.recipes),
            disruptive: self.disruptive,
            inferred: self.inferred,
        }
    }

    /// The number of requests from clients.
    pub(crate) fn asked(&self) -> usize {
        self.asked.len()
    }

    /// Adds a client's request. The request replaces an earlier one for the same target, but keeps the
    /// settings that only the earlier one has, as a command without a daemon does. Returns whether a request
    /// for another target was displaced.
    pub(crate) fn ask(&mut self, mut intent: Intent, process: Option<ProcessId>) -> std::io::Result<bool> {
        if let Some(earlier) = self.asked.iter().find(|asked| asked.intent.target == intent.target) {
            intent.nic = NicRequest::after(intent.nic, earlier.intent.nic.clone());
        }
        self.asked.retain(|asked| asked.intent.target != intent.target);
        let full = self.asked.len() >= ASKED_MAX;
        if full {
            self.asked.remove(0);
        }
        if let Some(process) = process {
            self.trees.insert(process.pid, process.pid);
        }
        self.asked.push(StoredRequest { intent, process, boot: self.boot.clone() });
        self.save().map(|()| full)
    }

    /// Returns the requests of clients, which [`RequestTable::go_back_to`] can restore.
    pub(crate) fn remembered(&self) -> Vec<StoredRequest> {
        self.asked.clone()
    }

    /// Restores the requests of clients.
    pub(crate) fn go_back_to(&mut self, asked: Vec<StoredRequest>) -> std::io::Result<()> {
        self.asked = asked;
        let roots: BTreeSet<Pid> = self.asked.iter().filter_map(|asked| Some(asked.process?.pid)).collect();
        self.trees.retain(|_, root| roots.contains(root));
        self.save()
    }

    /// Removes the request for a target. Returns whether there was one.
    pub(crate) fn forget(&mut self, target: &Target) -> std::io::Result<bool> {
        let before = self.asked.len();
        self.asked.retain(|asked| asked.intent.target != *target);
        if let Target::Task(pid) = target {
            self.trees.retain(|_, root| root != pid);
        }
        if self.asked.len() == before {
            return Ok(false);
        }
        self.save().map(|()| true)
    }

    /// Stores the requests of clients atomically: after a kill, the file is either the old or the new one.
    fn save(&self) -> std::io::Result<()> {
        replace_file(&self.path, 0o600, &serde_json::to_vec(&self.asked)?, Durability::Synced)
    }

    /// Returns all requests: those of the policy files, except if a client's request for the same target
    /// overrides them, and those of clients. A request for a task becomes one request per process in the
    /// task's tree.
    pub(crate) fn policy(&self) -> Policy {
        let overridden: Vec<&Target> = self.asked.iter().map(|asked| &asked.intent.target).collect();
        let files = self.files.iter().filter(|intent| !overridden.contains(&&intent.target));
        let mut intents: Vec<Intent> = Vec::new();
        for intent in files.chain(self.asked.iter().map(|asked| &asked.intent)) {
            match &intent.target {
                Target::Task(root) => {
                    let tree = self.trees.iter().filter(|(_, of)| *of == root).map(|(pid, _)| *pid);
                    intents.extend(tree.map(|pid| Intent { target: Target::Task(pid), ..intent.clone() }));
                }
                _ => intents.push(intent.clone()),
            }
        }
        Policy {
            intents,
            recipes: Arc::clone(&self.recipes),
            disruptive: self.disruptive,
            inferred: self.inferred,
        }
    }

    /// Returns the processes that each request of this policy matches.
    pub(crate) fn members(&self, policy: &Policy) -> RequestMembers {
        let mut members = RequestMembers::new();
        for (index, intent) in policy.intents.iter().enumerate() {
            if let Target::Service(name, _) = &intent.target {
                let of = self.services.iter().filter(|(_, names)| names.contains(name));
                members.insert(index, of.map(|(pid, _)| *pid).collect());
            }
        }
        members
    }

    /// Whether any request is for a service that is matched by properties of its processes.
    pub(crate) fn any_service(&self) -> bool {
        self.matches().next().is_some()
    }

    /// Whether any request is for a device. Every process that receives on the device then matters.
    pub(crate) fn any_device(&self) -> bool {
        self.all().any(|intent| matches!(intent.target, Target::Device(_) | Target::Devices(..)))
    }

    fn all(&self) -> impl Iterator<Item = &Intent> {
        self.files.iter().chain(self.asked.iter().map(|asked| &asked.intent))
    }

    fn matches(&self) -> impl Iterator<Item = (&String, &Match)> {
        self.all().filter_map(|intent| match &intent.target {
            Target::Service(name, matching) => Some((name, matching)),
            _ => None,
        })
    }

    /// Returns the events that BPF must report so that the daemon notices every new process of a service.
    pub(crate) fn waited(&self) -> Waited {
        let mut waited = Waited { all_listeners: self.any_device(), ..Waited::default() };
        // A server in a container is matched by its cgroup, but only once it listens: reporting every
        // `execve` in all containers would cost too much.
        for (_, matching) in self.matches() {
            match (matching.port, &matching.exe) {
                (Some(port), _) => drop(waited.ports.insert(port)),
                (None, Some(exe)) if exe.iter().all(Glob::is_literal) => {
                    let name = |exe: &Glob| exe.as_str().rsplit('/').next().unwrap_or_default().to_owned();
                    waited.images.extend(exe.iter().map(name));
                }
                // BPF compares complete file names only, so a pattern requires events for all images.
                (None, _) => (waited.all_images, waited.listeners_elsewhere) = (true, true),
            }
        }
        if waited.images.len() > NAMES_MAX {
            waited.images.clear();
            (waited.all_images, waited.listeners_elsewhere) = (true, true);
        }
        if waited.ports.len() > NAMES_MAX {
            waited.ports.clear();
            (waited.all_listeners, waited.listeners_elsewhere) = (true, true);
        }
        waited
    }

    /// Checks again whether any request matches this process.
    pub(crate) fn judge(&mut self, pid: Pid, serves: Serves, unread: &mut Vec<Unread>) -> bool {
        let before = self.services.remove(&pid).unwrap_or_default();
        let mut names = BTreeSet::new();
        // The names of the services that may match, and for each the criteria that remain to be checked.
        let (mut asking, mut asked) = (Vec::new(), Vec::new());
        for (name, matching) in self.matches().filter(|_| !is_netpolicy_itself(pid)) {
            let rest = match (matching.port, serves) {
                (Some(wanted), Serves::Port(port)) if wanted == port => {
                    Match { port: None, ..matching.clone() }
                }
                // If the process served the port before, there is no sign that it has stopped.
                (Some(_), Serves::AsBefore | Serves::Port(_)) => {
                    names.extend(before.get(name).cloned());
                    continue;
                }
                (Some(_), Serves::Unknown) | (None, _) => matching.clone(),
            };
            if rest == Match::default() {
                names.insert(name.clone());
            } else {
                asking.push(name.clone());
                asked.push(criteria(&rest));
            }
        }
        match find_each(&asked, Some(pid)) {
            Ok(found) => {
                for (name, (found, unjudged)) in asking.into_iter().zip(found) {
                    unread.extend(unjudged);
                    names.extend((!found.is_empty()).then_some(name));
                }
            }
            Err(error) => unread.push(Unread { what: error.what, why: error.cause.to_string() }),
        }
        if !names.is_empty() {
            self.services.insert(pid, names);
        }
        self.means(pid)
    }

    /// Adds a child process to the requests that include its parent. Returns whether any request matches the
    /// child.
    pub(crate) fn born(&mut self, child: Pid, parent: Pid) -> bool {
        if let Some(names) = self.services.get(&parent).cloned() {
            self.services.insert(child, names);
        }
        if let Some(root) = self.trees.get(&parent).copied() {
            let size = self.trees.values().filter(|of| **of == root).count();
            if size < TREE_MAX {
                self.trees.insert(child, root);
            }
        }
        if self.requesters.contains(&parent) {
            self.add_requester(child);
        }
        self.means(child)
    }

    /// Removes a process that has exited.
    pub(crate) fn ended(&mut self, pid: Pid) {
        self.services.remove(&pid);
        self.trees.remove(&pid);
        self.requesters.remove(&pid);
    }

    /// Adds a process that makes requests. Returns false if there are too many.
    pub(crate) fn add_requester(&mut self, pid: Pid) -> bool {
        let room = self.requesters.len() < REQUESTERS_MAX || self.requesters.contains(&pid);
        if room {
            self.requesters.insert(pid);
        }
        room
    }

    /// Whether a process is known to make a request.
    pub(crate) fn has_requester(&self, pid: Pid) -> bool {
        self.requesters.contains(&pid)
    }

    /// Forgets all processes that make requests.
    pub(crate) fn forget_requesters(&mut self) {
        self.requesters.clear();
    }

    /// The processes that make requests.
    pub(crate) fn requesters(&self) -> BTreeSet<Pid> {
        self.requesters.clone()
    }

    /// Whether any request matches this process itself, rather than a device on which it receives.
    pub(crate) fn means(&self, pid: Pid) -> bool {
        self.services.contains_key(&pid) || self.trees.contains_key(&pid) || self.requesters.contains(&pid)
    }

    /// Returns the processes that any request matches themselves, rather than a device on which they receive.
    pub(crate) fn meant(&self) -> BTreeSet<Pid> {
        self.services.keys().chain(self.trees.keys()).chain(&self.requesters).copied().collect()
    }

    /// Finds the processes of all services among all running processes, in any network namespace.
    pub(crate) fn find_all(&mut self, unread: &mut Vec<Unread>) -> Result<(), KernelError> {
        let mut services: BTreeMap<Pid, BTreeSet<String>> = BTreeMap::new();
        let all: Vec<Criteria> = self.matches().map(|(_, matching)| criteria(matching)).collect();
        for ((name, _), (found, unjudged)) in self.matches().zip(find_each(&all, None)?) {
            unread.extend(unjudged);
            for process in found.into_iter().filter(|process| !is_netpolicy_itself(process.pid)) {
                services.entry(process.pid).or_default().insert(name.clone());
            }
        }
        self.services = services;
        Ok(())
    }
}

/// Whether a process is this daemon. Services that are matched by user or cgroup must not include it.
fn is_netpolicy_itself(pid: Pid) -> bool {
    pid.0 == std::process::id()
}

fn criteria(matching: &Match) -> Criteria {
    let Match { unit, cgroup, exe, pod, container, port, uid } = matching.clone();
    Criteria { exe, cgroup, unit, pod, container, port, uid, netns: None }
}

fn read(path: &Path) -> std::io::Result<Vec<StoredRequest>> {
    use std::io::Read;
    let mut text = Vec::new();
    match fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?.take(FILE_BYTES_MAX).read_to_end(&mut text)?,
    };
    serde_json::from_slice(&text).map_err(std::io::Error::other)
}
