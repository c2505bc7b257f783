//! A recording: a file with everything that `show`, `doctor`, `plan`, `explain`, `history` and `verify` learn
//! about a host. With the file, these commands print the same as on the host.
//!
//! The file has only the fields of the types below. [`redacted`] replaces the names, addresses and users in
//! it.

mod addresses;
mod pseudonyms;
mod redact;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apply::{Journal, RecordedJournal, TransactionName};
use linux::Processes;
use linux::bpf::app_requests::RequestStore;
use linux::process::FoundProcesses;
use model::host::{AppRequest, ConflictingTool, IdleDepth, Pressure, Unread};
use model::policy::Match;
use model::{
    BatchesOf, CpuWait, Delivered, DeviceId, EventBatches, Finding, Host, Label, Nanoseconds, NetnsId, Pid,
    Policy, ProcessId, Proofs, Setting,
};
use plan::doctor::VethPeer;
use serde::{Deserialize, Serialize};

use crate::drop_in::{Sources, read_at_most};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::operator::Operator;
use crate::report::UnreadCause;
use crate::session::Session;
use crate::source::{DeviceNames, HostSource};
use crate::{app_requests, services, verify};

pub use pseudonyms::{KEY_BYTES, Pseudonyms};
pub use redact::redacted;

/// The version of the file's format that this program writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

/// The kind of the document.
pub const KIND: &str = "recording";

/// The maximum size of a file. A host with 64 queues and 1000 sockets takes less than 1 MB.
pub const RECORDING_BYTES_MAX: usize = 64 << 20;

/// The maximum number of lines of the log in a recording.
pub const LOG_LINES_MAX: usize = 1024;

/// A recording of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// Always [`KIND`].
    pub kind: String,
    /// Always [`FORMAT`].
    pub format: u32,
    /// Whether names, addresses and users are pseudonyms.
    pub redacted: bool,
    /// Where, when and by which program the recording was made.
    pub made: Made,
    /// The options of the command that made the recording.
    pub options: Options,
    /// The boot's id.
    pub boot_id: String,
    /// The host, with the processes that use its network and those that requests name.
    pub host: Host,
    /// Those processes of `host` that use the network.
    pub networking: Vec<Pid>,
    /// The processes that requests name, but that had exited when the host was observed.
    pub ended: Vec<Pid>,
    /// The requests of applications, or why they cannot be read.
    pub app_requests: Result<Vec<AppRequest>, Unread>,
    /// The requests of the policy files, or why the files are refused.
    pub policy: Result<Policy, RecordedFault>,
    /// Whether the policy files contain any section.
    pub has_sections: bool,
    /// The processes of each service.
    pub services: Vec<ServiceProcesses>,
    /// The site's recipe files: names and texts.
    pub recipe_files: Vec<(String, String)>,
    /// The transactions, or why they cannot be read.
    pub journal: Result<RecordedJournal, RecordedFault>,
    /// The settings in force, with their values on the host.
    pub applied: Vec<Applied>,
    /// The results of measurements of services with a `holdback`, or why they cannot be read.
    pub proofs: Result<Proofs, String>,
    /// The last measurements of services, as `show` reports them.
    pub last_measured: Vec<String>,
    /// What `doctor` counted and measured.
    pub doctor: DoctorFacts,
    /// The messages of netpolicy while it made the recording.
    pub log: Vec<String>,
}

/// Where, when and by which program a recording was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Made {
    /// The host's name (`uname -n`).
    pub host: String,
    /// The time in seconds since 1970.
    pub at_unix_seconds: u64,
    /// The version of netpolicy.
    pub netpolicy: String,
    /// What was left out, in words.
    pub left_out: Vec<String>,
}

/// The options of a command that select the host and the files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// See [`Session::netns`].
    pub netns: Option<String>,
    /// See [`Session::state_dir`].
    pub state_dir: PathBuf,
    /// See [`Session::policy_files`].
    pub policy_files: Vec<PathBuf>,
    /// See [`Session::policy_dirs`].
    pub policy_dirs: Vec<PathBuf>,
}

/// A failure on the recorded host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedFault {
    /// The exit code.
    pub exit: u8,
    /// The error, followed by its sources in order.
    pub causes: Vec<String>,
    /// A hint for the operator.
    pub hint: Option<String>,
}

/// The processes of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceProcesses {
    /// The criteria for the service's processes.
    pub matching: Match,
    /// The processes.
    pub found: Vec<ProcessId>,
    /// The processes for which netpolicy could not decide whether they belong to the service.
    pub unjudged: Vec<Unread>,
}

/// A setting in force and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Applied {
    /// The transaction that made the setting.
    pub transaction: TransactionName,
    /// The applied setting.
    pub setting: Setting,
    /// The value when it was recorded.
    pub value: AppliedValue,
}

/// The value of an applied setting at the time of recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum AppliedValue {
    /// The values that the kernel reports.
    Found(Vec<Setting>),
    /// The kernel does not report the value.
    Unread {
        /// The likely cause.
        cause: UnreadCause,
        /// The kernel's message.
        why: String,
    },
}

/// The facts that `doctor` learns in addition to the host, its policy and its journal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoctorFacts {
    /// The counts; `None` if only the settings were checked.
    pub delivered: Option<Delivered>,
    /// See [`plan::doctor::HostContext::watched`].
    pub watched: Nanoseconds,
    /// See [`plan::doctor::HostContext::cpu_waits`].
    pub cpu_waits: BTreeMap<Pid, CpuWait>,
    /// See [`plan::doctor::HostContext::batches`].
    pub batches: Vec<(Pid, BatchesOf, EventBatches)>,
    /// See [`plan::doctor::HostContext::others`].
    pub others: Vec<ConflictingTool>,
    /// See [`plan::doctor::HostContext::idle`].
    pub idle: Option<IdleDepth>,
    /// See [`plan::doctor::HostContext::bpf_programs`].
    pub bpf_programs: Option<u32>,
    /// See [`plan::doctor::HostContext::peers`].
    pub peers: Vec<Peer>,
    /// See [`Host::pressure`].
    pub pressure: Option<Pressure>,
    /// Whether response times of any service were measured.
    pub timed: bool,
    /// The findings of these measurements.
    pub measured: Vec<Finding>,
    /// The messages of `doctor` about what could not be counted or measured.
    pub said: Vec<String>,
}

/// The peer of a veth in another namespace: [`VethPeer`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// The veth.
    pub of: DeviceId,
    /// The peer's name.
    pub name: Label,
    /// A file that refers to the peer's namespace.
    pub netns: String,
    /// Whether the peer's TSO is on; `None` if that could not be read.
    pub tso: Option<bool>,
}

impl From<Peer> for (DeviceId, VethPeer) {
    fn from(peer: Peer) -> Self {
        let Peer { of, name, netns, tso } = peer;
        (of, VethPeer { name, netns, tso })
    }
}

impl From<(&DeviceId, &VethPeer)> for Peer {
    fn from((of, peer): (&DeviceId, &VethPeer)) -> Self {
        let VethPeer { name, netns, tso } = peer.clone();
        Self { of: *of, name, netns, tso }
    }
}

/// What `doctor` and `show` found on the host, as input for a recording.
#[derive(Debug)]
pub struct Observed {
    /// The host.
    pub host: Host,
    /// See [`Recording::networking`].
    pub networking: Vec<Pid>,
    /// See [`Recording::doctor`].
    pub doctor: DoctorFacts,
    /// See [`Recording::last_measured`].
    pub last_measured: Vec<String>,
}

/// Why bytes are not a recording that this program can read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotARecording {
    /// The text is not a recording.
    #[error("it is not a recording of `netpolicy record`")]
    Other,
    /// The text ends too early.
    #[error("the recording ends at byte {0}, before it is complete")]
    Truncated(usize),
    /// The recording has another format.
    #[error("the recording has format {0}; this program reads format {FORMAT}")]
    Format(u64),
    /// The text is too long.
    #[error("the file has more than {RECORDING_BYTES_MAX} bytes, the largest size of a recording")]
    TooLong,
    /// A part of the recording is wrong.
    #[error("the recording is damaged: {0}")]
    Damaged(String),
}

/// The fields that a recording has whatever its format.
#[derive(Deserialize)]
struct Head {
    kind: String,
    format: u64,
}

impl Recording {
    /// Records a host, with the journal, the policy files and all other data of the session.
    ///
    /// # Errors
    /// If the kernel reports no boot id, or processes cannot be listed. Other failures become part of the
    /// recording.
    pub fn new(
        session: &Session,
        source: &dyn HostSource,
        observed: Observed,
        operator: &dyn Operator,
    ) -> Result<Self, Fault> {
        let Observed { mut host, networking, doctor, last_measured } = observed;
        let app_requests = source.app_requests(&session.app_requests());
        let policy = session.all_requested(operator);
        let has_sections = session.policy(operator).is_ok_and(|merged| !merged.sections.is_empty());
        let mut of_services: Vec<ServiceProcesses> = Vec::new();
        let mut wanted = match &app_requests {
            Ok(requests) => app_requests::requesters(requests, source)?,
            Err(_) => BTreeSet::new(),
        };
        if let Ok(policy) = &policy {
            let matches: Vec<&Match> = services::matches(policy).collect();
            for (matching, (found, unjudged)) in matches.iter().zip(source.find(&matches)?) {
                wanted.extend(found.iter().map(|process| process.pid));
                of_services.push(ServiceProcesses { matching: (*matching).clone(), found, unjudged });
            }
        }
        let wanted = Processes::Only(wanted.into_iter().collect());
        services::add_elsewhere(&mut host, source, &wanted);
        let Processes::Only(wanted) = wanted else { return Err(Fault::failed("no processes")) };
        let seen = services::pids(&host);
        let unseen = wanted.into_iter().filter(|pid| !seen.contains(pid)).collect();
        let journal = session.journal();
        let applied = match &journal {
            Ok(journal) => verify::recorded(journal).unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        let journal = journal.and_then(|journal| Ok(journal.to_recorded()?));
        Ok(Self {
            kind: KIND.to_owned(),
            format: FORMAT,
            redacted: false,
            made: Made {
                host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
                at_unix_seconds: linux::machine::seconds_since_1970(),
                netpolicy: env!("CARGO_PKG_VERSION").to_owned(),
                left_out: Vec::new(),
            },
            options: Options::of(session),
            boot_id: linux::machine::boot_id()?.trim().to_owned(),
            host,
            networking,
            ended: source.ended(unseen).into_iter().collect(),
            app_requests,
            policy: policy.map_err(|fault| RecordedFault::from(&fault)),
            has_sections,
            services: of_services,
            recipe_files: session.recipe_files().unwrap_or_default(),
            journal: journal.map_err(|fault| RecordedFault::from(&fault)),
            applied,
            proofs: session.proofs().map_err(|error| error.to_string()),
            last_measured,
            doctor,
            log: Vec::new(),
        })
    }

    /// Reads a recording from a file.
    ///
    /// # Errors
    /// If the file cannot be read (exit code 1), or is not a recording that this program reads (exit code 2).
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let bytes = read_at_most(path, RECORDING_BYTES_MAX).map_err(|error| Fault::file(path, error))?;
        Self::parse(&bytes).map_err(|why| {
            let fault = Fault::new(Exit::Usage, format!("{}: {why}", path.display()));
            match why {
                NotARecording::Format(_) => {
                    fault.hint("use the version of netpolicy that recorded it, or record the host again")
                }
                _ => fault.hint("record the host again: netpolicy record FILE"),
            }
        })
    }

    /// Parses a recording. Every input gives a recording or an error.
    ///
    /// # Errors
    /// If the bytes are not a recording of this format.
    pub fn parse(bytes: &[u8]) -> Result<Self, NotARecording> {
        if bytes.len() > RECORDING_BYTES_MAX {
            return Err(NotARecording::TooLong);
        }
        let head = serde_json::from_slice::<Head>(bytes);
        match head {
            Ok(Head { kind, .. }) if kind != KIND => return Err(NotARecording::Other),
            Ok(Head { format, .. }) if format != u64::from(FORMAT) => {
                return Err(NotARecording::Format(format));
            }
            Err(error) if error.is_eof() && is_like_a_recording(bytes) => {
                return Err(NotARecording::Truncated(bytes.len()));
            }
            Err(error) if is_like_a_recording(bytes) => {
                return Err(NotARecording::Damaged(error.to_string()));
            }
            Err(_) => return Err(NotARecording::Other),
            Ok(_) => {}
        }
        serde_json::from_slice(bytes).map_err(|error| NotARecording::Damaged(error.to_string()))
    }

    /// Formats the recording as the text of a file.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string(self).expect("keys of all our types are text");
        text.push('\n');
        text
    }

    /// Returns the journal of the recorded host.
    ///
    /// # Errors
    /// If the journal could not be read on the recorded host.
    pub fn journal(&self) -> Result<Journal, Fault> {
        let journal = self.journal.as_ref().map_err(RecordedFault::to_fault)?;
        Ok(Journal::recorded(Arc::new(journal.clone()), self.boot_id.clone()))
    }

    /// Returns the requests of the policy files on the recorded host.
    ///
    /// # Errors
    /// If the policy files were refused on the recorded host.
    pub fn policy(&self) -> Result<Policy, Fault> {
        self.policy.clone().map_err(|fault| fault.to_fault())
    }
}

/// Returns whether a text begins as a recording does. The recording may be truncated or damaged.
fn is_like_a_recording(bytes: &[u8]) -> bool {
    bytes.starts_with(format!("{{\"kind\":\"{KIND}\"").as_bytes())
}

impl Options {
    fn of(session: &Session) -> Self {
        let (policy_files, policy_dirs) = match session.sources() {
            Sources::Files(files) => (files, Vec::new()),
            Sources::Dirs(dirs) => (Vec::new(), dirs),
        };
        let (netns, state_dir) = (session.netns.clone(), session.state_dir.clone());
        Self { netns, state_dir, policy_files, policy_dirs }
    }
}

/// The maximum number of sources to record of an error.
const CAUSES_MAX: usize = 16;

/// An error from the recorded host.
#[derive(Debug)]
struct RecordedError {
    words: String,
    source: Option<Box<Self>>,
}

impl fmt::Display for RecordedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl Error for RecordedError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<&Fault> for RecordedFault {
    fn from(fault: &Fault) -> Self {
        let sources = std::iter::successors(fault.cause.source(), |error: &&dyn Error| Error::source(*error));
        let sources = sources.take(CAUSES_MAX).map(ToString::to_string);
        let causes = std::iter::once(fault.cause.to_string()).chain(sources).collect();
        Self { exit: fault.exit.code(), causes, hint: fault.hint.clone() }
    }
}

impl RecordedFault {
    fn to_fault(&self) -> Fault {
        let chain = |source, words: &String| Some(Box::new(RecordedError { words: words.clone(), source }));
        let cause = self.causes.iter().take(CAUSES_MAX).rev().fold(None, chain);
        let cause: Box<dyn Error + Send + Sync> = match cause {
            Some(cause) => cause,
            None => "the recording does not say why".into(),
        };
        let fault = Fault::new(Exit::of(self.exit).unwrap_or(Exit::Failed), cause);
        Fault { hint: self.hint.clone(), ..fault }
    }
}

/// A recorded host that commands observe instead of the running one.
#[derive(Clone, Debug)]
pub(crate) struct Recorded(pub(crate) Arc<Recording>);

impl HostSource for Recorded {
    fn id(&self) -> NetnsId {
        self.0.host.netns
    }

    fn observe(&self, processes: &Processes) -> Result<Host, Fault> {
        let Recording { host, networking, .. } = &*self.0;
        let (pids, has_networking): (&[Pid], bool) = match processes {
            Processes::None => (&[], false),
            Processes::Only(pids) => (pids, false),
            Processes::Networking => (&[], true),
            Processes::NetworkingAnd(pids) => (pids, true),
        };
        let only: BTreeSet<Pid> = pids.iter().copied().collect();
        let networking: BTreeSet<Pid> = networking.iter().copied().filter(|_| has_networking).collect();
        let is_observed = |pid: Pid| only.contains(&pid) || networking.contains(&pid);
        let recorded: BTreeSet<Pid> = host.processes.iter().map(|process| process.id.pid).collect();
        let mut host = host.clone();
        host.processes.retain(|process| is_observed(process.id.pid));
        host.unread.retain(|unread| {
            unread.process().is_none_or(|pid| is_observed(pid) || has_networking && !recorded.contains(&pid))
        });
        let shared = linux::observe::shared_addresses(&host.processes, host.netns);
        host.listeners.retain(|group| shared.contains(&group.id));
        let unread: BTreeSet<Pid> = host.unread.iter().filter_map(Unread::process).collect();
        let unseen = pids.iter().filter(|pid| !recorded.contains(pid) && !unread.contains(pid));
        let unseen: Vec<Unread> = unseen
            .map(|pid| Unread {
                what: format!("process {pid}"),
                why: "it is not in the recording".to_owned(),
            })
            .collect();
        host.unread.extend(unseen);
        Ok(host)
    }

    fn find(&self, services: &[&Match]) -> Result<Vec<FoundProcesses>, Fault> {
        // Of several services with the same criteria, use the first.
        let mut known: BTreeMap<&Match, &ServiceProcesses> = BTreeMap::new();
        for service in &self.0.services {
            known.entry(&service.matching).or_insert(service);
        }
        let found = |matching: &&Match| {
            let known = known.get(matching);
            known.map(|service| (service.found.clone(), service.unjudged.clone())).unwrap_or_default()
        };
        Ok(services.iter().map(found).collect())
    }

    fn ended(&self, pids: BTreeSet<Pid>) -> BTreeSet<Pid> {
        let ended: BTreeSet<Pid> = self.0.ended.iter().copied().collect();
        pids.intersection(&ended).copied().collect()
    }

    fn add_processes(&self, host: &mut Host, pids: Vec<Pid>) {
        let recorded = &self.0.host;
        let processes: BTreeMap<Pid, &model::host::Process> =
            recorded.processes.iter().rev().map(|process| (process.id.pid, process)).collect();
        host.processes.extend(pids.iter().filter_map(|pid| processes.get(pid).copied().cloned()));
        let pids: BTreeSet<Pid> = pids.into_iter().collect();
        let key = |unread: &Unread| (unread.what.clone(), unread.why.clone());
        let known: BTreeSet<(String, String)> = host.unread.iter().map(key).collect();
        let of_these = |unread: &&Unread| unread.process().is_some_and(|pid| pids.contains(&pid));
        let more = recorded.unread.iter().filter(of_these).filter(|unread| !known.contains(&key(unread)));
        host.unread.extend(more.cloned());
    }

    fn app_requests(&self, _: &RequestStore) -> Result<Vec<AppRequest>, Unread> {
        self.0.app_requests.clone()
    }

    fn holders_of_sockets(&self, inodes: &BTreeSet<u64>) -> Result<BTreeSet<Pid>, Fault> {
        let holds = |process: &&model::host::Process| {
            process.sockets.iter().any(|socket| inodes.contains(&socket.inode))
        };
        Ok(self.0.host.processes.iter().filter(holds).map(|process| process.id.pid).collect())
    }

    fn device_names(&self) -> Box<dyn DeviceNames + '_> {
        Box::new(self.clone())
    }
}

impl DeviceNames for Recorded {
    fn present_name(&mut self, device: DeviceId) -> Option<String> {
        self.0.host.device(device).map(|device| device.id.name.to_string())
    }
}
