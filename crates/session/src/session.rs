//! A session: the network namespace, the journal, the policy files, and the command for the journal.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apply::{Journal, Standing, TransactionOrigin};
use linux::bpf::app_requests::RequestStore;
use linux::{Netns, Processes};
use model::{Intent, Nanoseconds, Pid, Policy, Recipes};
use plan::JournalVerdict;
use policy_file::{Merged, Mistakes, PolicyFile, RECIPE_DIRS, merge, parse};

use crate::app_requests;
use crate::clock;
use crate::count::count;
use crate::cycle::Planned;
use crate::drop_in::{DROP_IN_DIRS, Sources, read};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::operator::Operator;
use crate::recording::{Options, Recorded, Recording};
use crate::searches::RolledBackRequest;
use crate::source::HostSource;
use crate::trusted_path::check_state_dir;
use model::quoted;

/// The default directory of the journal.
pub const STATE_DIR: &str = "/var/lib/netpolicy";

/// The Varlink socket of the daemon with the default journal.
pub const API_SOCKET: &str = "/run/netpolicy/io.netpolicy";

/// The socket that serves OpenMetrics over HTTP.
pub const METRICS_SOCKET: &str = "/run/netpolicy/metrics";

/// A session on a host. It is plain data: creating one opens nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// The network namespace: a name of `ip netns`, a path, or `pid:N`; `None` for the caller's own.
    pub netns: Option<String>,
    /// The directory of the journal.
    pub state_dir: PathBuf,
    /// The policy files to read, in this order, instead of those in directories.
    pub policy_files: Vec<PathBuf>,
    /// The directories of policy files, in ascending order of precedence; empty for the defaults.
    pub policy_dirs: Vec<PathBuf>,
    /// The directories of recipe files that override the shipped recipes, in ascending order of precedence;
    /// empty for the defaults.
    pub recipe_dirs: Vec<PathBuf>,
    /// The directory of applications' requests, in a BPF file system.
    pub app_request_dir: PathBuf,
    /// The command as the operator typed it, for the journal.
    pub command: String,
    /// The recording to use instead of the running host, its journal and its policy files; `None` to use the
    /// running host.
    pub recording: Option<Arc<Recording>>,
}

impl Default for Session {
    /// Returns a session in the caller's own namespace, with the default journal and files, and without a
    /// command.
    fn default() -> Self {
        Self {
            netns: None,
            state_dir: STATE_DIR.into(),
            policy_files: Vec::new(),
            policy_dirs: Vec::new(),
            recipe_dirs: Vec::new(),
            app_request_dir: RequestStore::DIRECTORY.into(),
            command: String::new(),
            recording: None,
        }
    }
}

/// The maximum number of transactions to keep in the journal after they are no longer in force.
const HISTORY_MAX: usize = 200;

impl Session {
    /// Returns the option that selects this journal, to insert into a command; empty for the default journal.
    pub fn state_dir_option(&self) -> String {
        if self.state_dir.as_os_str() == STATE_DIR {
            return String::new();
        }
        format!("--state-dir {} ", quoted(&self.state_dir.to_string_lossy()))
    }

    /// Returns the option that selects this network namespace, to insert into a command; empty for the
    /// caller's own namespace.
    pub fn netns_option(&self) -> String {
        self.netns.as_deref().map(|netns| format!("--netns {} ", quoted(netns))).unwrap_or_default()
    }

    /// Opens the network namespace.
    ///
    /// # Errors
    /// If there is no such namespace, or it cannot be opened.
    pub fn netns(&self) -> Result<Netns, Fault> {
        let netns = match self.netns.as_deref() {
            None => Netns::own(),
            Some(process) if process.starts_with("pid:") => {
                let pid = process["pid:".len()..].parse();
                let pid = pid.map_err(|_| {
                    Fault::new(Exit::Usage, format!("--netns {process}: write pid:N with a pid"))
                })?;
                Netns::of_process(Pid(pid))
            }
            Some(path) if path.contains('/') => Netns::at(Path::new(path)),
            Some(name) => Netns::named(name),
        };
        netns.map_err(Fault::from)
    }

    /// Returns the host that a command is about: the running one, or the recorded one.
    ///
    /// # Errors
    /// As for [`Session::netns`].
    pub fn source(&self) -> Result<Box<dyn HostSource>, Fault> {
        Ok(match &self.recording {
            Some(recording) => Box::new(Recorded(Arc::clone(recording))),
            None => Box::new(self.netns()?),
        })
    }

    /// Creates the session of a recorded host. It reads and writes nothing on the running host.
    #[must_use]
    pub fn of_recording(recording: Arc<Recording>) -> Self {
        let Options { netns, state_dir, policy_files, policy_dirs } = recording.options.clone();
        let recording = Some(recording);
        Self { netns, state_dir, policy_files, policy_dirs, recording, ..Self::default() }
    }

    /// Returns the beginning of commands that use this namespace and this journal.
    pub fn command_prefix(&self) -> plan::doctor::CommandPrefix {
        let options = format!("{}{}", self.netns_option(), self.state_dir_option());
        let mut file = None;
        if let Some(netns) = self.netns.as_deref() {
            file = Some(match netns.strip_prefix("pid:") {
                Some(pid) => format!("/proc/{pid}/ns/net"),
                None if netns.contains('/') => quoted(netns),
                None => format!("/run/netns/{}", quoted(netns)),
            });
        }
        plan::doctor::CommandPrefix { options: options.trim_end().to_owned(), netns: file }
    }

    /// Opens the network namespace that the operator named, or else that of a process.
    ///
    /// # Errors
    /// As for [`Session::netns`], or if the process has exited.
    pub fn netns_of(&self, process: Pid) -> Result<Netns, Fault> {
        match self.netns {
            Some(_) => self.netns(),
            None => Ok(Netns::of_process(process)?),
        }
    }

    /// Returns the store of the requests that applications make for themselves and their sockets.
    pub fn app_requests(&self) -> RequestStore {
        RequestStore::at(&self.app_request_dir)
    }

    /// Returns the journal of transactions.
    ///
    /// # Errors
    /// If the kernel does not report the boot id, or if other users can write to the journal's directory.
    pub fn journal(&self) -> Result<Journal, Fault> {
        if let Some(recording) = &self.recording {
            return recording.journal();
        }
        check_state_dir(&self.state_dir)?;
        self.journal_in(&self.state_dir)
    }

    /// Returns the journal in another directory, for example that of a lab, which is deleted with the lab.
    ///
    /// # Errors
    /// If the kernel does not report the boot id.
    pub fn journal_in(&self, state_dir: &Path) -> Result<Journal, Fault> {
        let boot_id = linux::machine::boot_id()?;
        Ok(Journal::new(state_dir.join("journal"), boot_id))
    }

    /// Returns the verdicts of measurements on the settings of transactions, newest first; empty if the
    /// journal cannot be read.
    pub fn evidence(&self) -> Vec<JournalVerdict> {
        let history = self.journal().and_then(|journal| Ok(journal.history()?));
        let transactions = history.map(|history| history.transactions).unwrap_or_default();
        let mut known = Vec::new();
        for transaction in transactions.iter().rev() {
            known.extend(transaction.judgements().iter().rev().map(|verdict| JournalVerdict {
                transaction: transaction.name().to_string(),
                command: transaction.begin().asked.command.clone(),
                settings: transaction.begin().plan.changes().map(|change| change.to().clone()).collect(),
                service: verdict.service.clone(),
                ruling: verdict.ruling,
                measured: verdict.of_change(),
            }));
        }
        known
    }

    /// Deletes the oldest transactions that are no longer in force, and keeps the newest [`HISTORY_MAX`].
    pub fn forget_old_transactions(&self, operator: &dyn Operator) {
        match self.journal().and_then(|journal| Ok(journal.forget_all_but(HISTORY_MAX)?)) {
            Ok(0) => {}
            Ok(forgotten) => operator.detail(&format!("forgotten: {}", count(forgotten, "old transaction"))),
            Err(fault) => operator.detail(&format!("old transactions are kept: {}", fault.cause)),
        }
    }

    /// Returns the Varlink socket of this journal's daemon. The caller must check who can write to the
    /// socket's directory.
    pub fn api_socket(&self) -> PathBuf {
        self.beside_journal("io.netpolicy", API_SOCKET)
    }

    /// Returns the Varlink socket of this journal's daemon, for a client. Other users cannot replace the
    /// socket.
    ///
    /// # Errors
    /// If other users can write to the journal's directory.
    pub fn trusted_api_socket(&self) -> Result<PathBuf, Fault> {
        check_state_dir(&self.state_dir)?;
        Ok(self.api_socket())
    }

    /// Returns the daemon's metrics socket.
    pub fn metrics_socket(&self) -> PathBuf {
        self.beside_journal("metrics", METRICS_SOCKET)
    }

    /// Returns the path of a socket. The path depends on the journal, so that the sockets of two daemons
    /// differ.
    fn beside_journal(&self, name: &str, usual: &str) -> PathBuf {
        let own = !self.state_dir_option().is_empty();
        if own { self.state_dir.join(name) } else { PathBuf::from(usual) }
    }

    /// Returns the record of this command for the journal.
    pub fn asked(&self, deadline: Option<Nanoseconds>) -> TransactionOrigin {
        TransactionOrigin {
            at: clock::now(),
            command: self.command.clone(),
            kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
            netpolicy: env!("CARGO_PKG_VERSION").to_owned(),
            deadline,
        }
    }

    /// Reads and merges the policy files.
    ///
    /// # Errors
    /// If files cannot be read, or readable files have mistakes. The error lists all of these faults.
    pub fn policy(&self, operator: &dyn Operator) -> Result<Merged, Fault> {
        if self.recording.is_some() {
            return Err(Fault::new(Exit::Usage, "a recording has no policy files, only their requests"));
        }
        let sources = self.sources();
        let texts = named(&self.policy_dirs).and_then(|()| read(&sources)).map_err(not_read)?;
        let (mut files, mut mistakes): (Vec<PolicyFile>, _) = (Vec::new(), Vec::new());
        for (name, text) in &texts {
            match parse(name, text) {
                Ok(file) => files.push(file),
                Err(Mistakes(more)) => mistakes.extend(more),
            }
        }
        if !mistakes.is_empty() {
            return Err(Fault::new(Exit::Usage, Mistakes(mistakes)));
        }
        operator.detail(&format!("{} from {}", count(files.len(), "policy file"), described(&sources)));
        let merged = merge(&files).map_err(|mistakes| Fault::new(Exit::Usage, mistakes))?;
        Ok(Merged { recipes: self.recipes()?, ..merged })
    }

    /// Returns the requests of the policy files, with the daemon's search results for services that missed
    /// their goals. Requests that the daemon has rolled back because they did harm are returned separately.
    ///
    /// # Errors
    /// As for [`Session::policy`].
    pub fn requested(&self, operator: &dyn Operator) -> Result<(Policy, Vec<RolledBackRequest>), Fault> {
        let mut policy = self.all_requested(operator)?;
        let rolled_back = RolledBackRequest::take_from(&mut policy, self);
        Ok((policy, rolled_back))
    }

    /// Returns the requests of the policy files, including those that the daemon has rolled back.
    ///
    /// # Errors
    /// As for [`Session::policy`].
    pub fn all_requested(&self, operator: &dyn Operator) -> Result<Policy, Fault> {
        match &self.recording {
            Some(recording) => Ok(Policy { recipes: self.recipes()?, ..recording.policy()? }),
            None => Ok(self.with_found(self.policy(operator)?.policy())),
        }
    }

    /// Returns the shipped recipes, with the changes of the site's recipe files.
    ///
    /// # Errors
    /// If files cannot be read, named directories do not exist, or readable files have mistakes.
    pub fn recipes(&self) -> Result<Arc<Recipes>, Fault> {
        let texts = self.recipe_files()?;
        policy_file::recipes(&texts).map_err(|mistakes| Fault::new(Exit::Usage, mistakes))
    }

    /// Returns the names and texts of the site's recipe files.
    ///
    /// # Errors
    /// If files cannot be read, or named directories do not exist.
    pub fn recipe_files(&self) -> Result<Vec<(String, String)>, Fault> {
        if let Some(recording) = &self.recording {
            return Ok(recording.recipe_files.clone());
        }
        let dirs = match self.recipe_dirs.as_slice() {
            [] => RECIPE_DIRS.map(PathBuf::from).to_vec(),
            given => given.to_vec(),
        };
        named(&self.recipe_dirs).and_then(|()| read(&Sources::Dirs(dirs))).map_err(not_read)
    }

    /// Creates a policy of these requests, with the recipes. `disruptive` allows changes that disturb
    /// traffic, and `inferred` allows pinning interrupts whose queue the driver does not report.
    ///
    /// # Errors
    /// As for [`Session::recipes`].
    pub fn policy_of(&self, intents: Vec<Intent>, disruptive: bool, inferred: bool) -> Result<Policy, Fault> {
        Ok(Policy { intents, recipes: self.recipes()?, disruptive, inferred })
    }

    /// Reads the policy files, for commands that need a policy.
    ///
    /// # Errors
    /// As for [`Session::policy`], or if there are no requests.
    pub fn required_policy(&self, operator: &dyn Operator) -> Result<Merged, Fault> {
        let merged = self.policy(operator)?;
        if merged.sections.is_empty() { Err(self.no_policy()) } else { Ok(merged) }
    }

    fn no_policy(&self) -> Fault {
        let looked = described(&self.sources());
        Fault::new(Exit::Usage, format!("there is no policy: no file in {looked} requests anything"))
            .hint(self.first_steps())
    }

    /// Tells an operator who has no policy file how to begin.
    fn first_steps(&self) -> String {
        let init = "netpolicy init /etc/netpolicy/policy.d/10-host.toml writes a first one from the running services";
        let host = self.source().ok().and_then(|source| source.observe(&Processes::None).ok());
        let mut devices: Vec<_> = host
            .iter()
            .flat_map(|host| &host.devices)
            .filter(|device| device.up && !device.napis.is_empty())
            .collect();
        devices.sort_by_key(|device| !device.link.default_route);
        match devices.first() {
            Some(device) => {
                let name = quoted(device.id.name.as_str());
                format!("{init}; without a file: netpolicy set device {name} latency")
            }
            None => init.to_owned(),
        }
    }

    /// Returns the requests of the policy files, and those of applications in this namespace.
    ///
    /// # Errors
    /// As for [`Session::policy`]. Also if the requests of applications cannot be read, if there are no
    /// requests, or if the daemon has rolled back a request because it did harm.
    pub fn whole_policy(&self, source: &dyn HostSource, operator: &dyn Operator) -> Result<Policy, Fault> {
        let (policy, rolled_back) = self.requested(operator)?;
        RolledBackRequest::refuse(&rolled_back, self)?;
        let policy = app_requests::joined(policy, source, &self.app_requests(), operator)?;
        if policy.intents.is_empty() {
            match self.recording {
                Some(_) => return Err(self.no_policy()),
                None => drop(self.required_policy(operator)?),
            }
        }
        Ok(policy)
    }

    /// Reports the requests and settings that a placement leaves out, and the parts of the host that could
    /// not be read.
    pub fn report(planned: &Planned, operator: &dyn Operator) {
        Self::report_again(planned, operator, &mut BTreeSet::new());
    }

    /// Like [`Session::report`], but omits lines that were already reported. A second stage repeats most
    /// notes of the first.
    pub fn report_again(planned: &Planned, operator: &dyn Operator, said: &mut BTreeSet<String>) {
        // A service has a part for each process, and most of their notes are identical.
        for part in &planned.placement.parts {
            for note in &part.notes {
                let line = format!("{}: {note}", part.intent.target);
                if !said.contains(&line) {
                    operator.say(&line);
                    said.insert(line);
                }
            }
        }
        for note in &planned.desired.notes {
            if said.insert(note.clone()) {
                operator.say(note);
            }
        }
        planned.desired.left_out.iter().for_each(|note| operator.detail(note));
        if let Some((micros, because)) = &planned.desired.wake_latency {
            operator.detail(&format!(
                "cpu_dma_latency {micros} us is in force only while a process holds it: the daemon, `attach` or `run` ({})",
                because.why
            ));
        }
        for unread in &planned.host.unread {
            operator.detail(&format!("not read: {}: {}", unread.what, unread.why));
        }
    }

    /// Reports the active trials. A setting may have its value only from a trial, and gets back its previous
    /// value when the trial ends.
    pub fn report_trials(&self, operator: &dyn Operator) {
        // A user who may not read the journal has started no trial.
        let Ok(history) = self.journal().and_then(|journal| Ok(journal.history()?)) else { return };
        for trial in history.transactions.iter().filter(|t| matches!(t.standing(), Standing::HeldUntil(_))) {
            let name = trial.name();
            let left =
                trial.deadline().map_or(0, |deadline| deadline.0.saturating_sub(clock::now().since_boot.0));
            operator.say(&format!(
                "{name} is on trial for another {} s: it will be rolled back unless `netpolicy confirm` keeps it.",
                left.div_ceil(1_000_000_000)
            ));
        }
    }

    /// Returns the directories of the policy files. `of` returns the directory of a file.
    pub fn policy_directories(&self, of: impl Fn(&Path) -> PathBuf) -> Vec<PathBuf> {
        match self.sources() {
            Sources::Dirs(directories) => directories,
            Sources::Files(files) => files.iter().map(|file| of(file)).collect(),
        }
    }

    pub(crate) fn sources(&self) -> Sources {
        if !self.policy_files.is_empty() {
            Sources::Files(self.policy_files.clone())
        } else if !self.policy_dirs.is_empty() {
            Sources::Dirs(self.policy_dirs.clone())
        } else {
            Sources::Dirs(DROP_IN_DIRS.map(PathBuf::from).to_vec())
        }
    }
}

fn described(sources: &Sources) -> String {
    let (Sources::Dirs(paths) | Sources::Files(paths)) = sources;
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Checks that directories that the operator named exist. Only default directories may be missing.
fn named(dirs: &[PathBuf]) -> Result<(), (PathBuf, std::io::Error)> {
    dirs.iter().try_for_each(|dir| std::fs::metadata(dir).map(drop).map_err(|error| (dir.clone(), error)))
}

fn not_read((path, error): (PathBuf, std::io::Error)) -> Fault {
    Fault { exit: Exit::Usage, ..Fault::file(path, error) }
}
