//! The daemon itself: what it holds, and one turn of its loop.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use apply::{Asked, Journal, Knob, Ledger, TransactionName};
use linux::bpf::births::Birth;
use linux::bpf::wishes::WishReader;
use linux::events::Notice;
use linux::observe::Observer;
use linux::process::{Criteria, meets};
use linux::{Kernel, Netns, Processes, Signal};
use model::{Finding, Host, Nanoseconds, Object, Pid, Setting, Severity};
use session::wake::HeldWake;
use session::{Exit, Fault, Operator, Session, clock};

use crate::api_calls::Asking;
use crate::app_requests;
use crate::event_loop::EventLoop;
use crate::event_sources::{
    BIRTHS, EventSources, FILES, Files, Holds, NOTICES, SIGNALS, WISHES, directory_of,
};
use crate::instance_lock::{Claimed, InstanceLock};
use crate::options::{OnStop, Options};
use crate::placing::{Members, Placed};
use crate::reconciler::{Event, Reconciler, until};
use crate::requests::Requests;
use crate::status::{Counters, Kind, Phase, Reaction, RequestStatus, Shared};

/// How long the daemon waits for another writer of the journal before it does something else first.
const JOURNAL_PATIENCE: Duration = Duration::from_millis(200);

/// The most findings that are told at once.
const FINDINGS_MAX: usize = 256;

/// What can be done about a file of requests that cannot be read.
const UNREADABLE: &str =
    "what `set` asked of a daemon is kept there: move it away to start without that, and ask again";

/// A value that the kernel refused.
#[derive(Clone, Debug)]
pub(crate) struct Rejected {
    /// The value.
    pub(crate) to: Setting,
    /// How a command would end that wanted it.
    pub(crate) exit: Exit,
    /// The kernel's words.
    pub(crate) words: String,
}

/// The daemon.
pub(crate) struct Daemon<'a> {
    pub(crate) session: &'a Session,
    pub(crate) operator: &'a dyn Operator,
    pub(crate) options: Options,
    pub(crate) shared: Shared,
    pub(crate) sources: EventSources,
    pub(crate) observer: Observer,
    pub(crate) host: Host,
    pub(crate) journal: Journal,
    pub(crate) kernel: Kernel,
    /// What the daemons have set and is in force, and by which transactions.
    pub(crate) own: BTreeSet<TransactionName>,
    pub(crate) ledger: Ledger,
    pub(crate) reconciler: Reconciler,
    pub(crate) requests: Requests,
    /// All requests at the last plan: the operator's, and behind them what applications ask for.
    pub(crate) policy: model::Policy,
    /// What applications ask for, and whether there is something new to wait for.
    pub(crate) wishes: WishReader,
    pub(crate) new_wishes: bool,
    /// Whose wishes were followed at the last plan, in that order.
    pub(crate) followed_wishes: Vec<app_requests::Asker>,
    pub(crate) placed: Placed,
    /// The bound on the wake latency of CPUs that the policy wants.
    pub(crate) wake: HeldWake,
    pub(crate) members: Members,
    pub(crate) statuses: Vec<RequestStatus>,
    /// What is wrong, by rule and object.
    pub(crate) findings: BTreeMap<(String, String), Finding>,
    pub(crate) counters: Counters,
    pub(crate) reactions: BTreeMap<Kind, Reaction>,
    /// The values that the kernel refused, until their object changes, or nobody wants them any more.
    pub(crate) rejected: BTreeMap<Knob, Rejected>,
    /// The request that is being done, by asking.
    pub(crate) asking: Option<Asking>,
    /// The knobs that another program attends to, or that are on trial.
    pub(crate) taken: BTreeMap<Knob, String>,
    /// What was held and wanted by nobody at the last tick.
    pub(crate) unwanted: BTreeSet<Knob>,
    /// What each of the operator's requests had when it was followed last, by its target: it stays when it is refused.
    pub(crate) previous: BTreeMap<String, BTreeSet<Knob>>,
    /// What somebody else has set since, and nobody asks for any more: it is theirs, and leaves the journal.
    pub(crate) foreign: BTreeSet<Knob>,
    /// Those of the daemon's transactions that were rolled back, but not wholly.
    pub(crate) half_undone: BTreeSet<TransactionName>,
    /// How many settings are held and wanted by nobody but a request that is refused.
    pub(crate) kept_for_refused: usize,
    /// The sign of the only daemon, until it is in the event loop.
    pub(crate) lock: Option<InstanceLock>,
    /// When all processes are looked at again, because no event tells of their sockets.
    pub(crate) look_at_all: Nanoseconds,
    pub(crate) phase: Phase,
    pub(crate) policy_reads: u64,
    pub(crate) mistakes: Option<String>,
    pub(crate) sections: usize,
    /// The processes whose births and ends are told.
    pub(crate) watched: BTreeSet<Pid>,
    /// What the last commit set, until it was looked at.
    pub(crate) set_lately: Vec<Setting>,
    /// The object that was compared last at a tick.
    pub(crate) compared: Option<Object>,
    /// What was set since somebody asked for something, for the answer.
    pub(crate) set_for_answer: Vec<String>,
    /// What whoever asked should know beside that.
    pub(crate) notes_for_answer: Vec<String>,
}

impl<'a> Daemon<'a> {
    /// Takes the journal, begins to listen, and finds what earlier daemons have set. Changes nothing yet.
    ///
    /// # Errors
    /// If another daemon keeps the journal, or the namespace cannot be entered.
    pub(crate) fn begin(
        session: &'a Session,
        operator: &'a dyn Operator,
        options: Options,
        shared: Shared,
        event_loop: &EventLoop,
    ) -> Result<Self, Fault> {
        let netns = session.netns()?;
        // On this thread only; others of this process stay where they are.
        if !Netns::is_current(netns.id()) {
            netns.enter()?;
        }
        let journal = session.journal()?.waiting(JOURNAL_PATIENCE).keeping()?;
        let claimed = InstanceLock::claim()?;
        let path = session.state_dir.join("requests.json");
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let requests = Requests::open(path, &boot, options.allow.disruptive)
            .map_err(|(path, error)| Fault::file(path, error).hint(UNREADABLE))?;
        let files = Files::watch(watched_directories(session, &journal));
        let sources = EventSources::open(&netns, event_loop, files)?;
        let mut observer = Observer::open(netns)?;
        let host = observer.whole(&Processes::None)?;
        let now = now();
        let mut daemon = Self {
            reconciler: Reconciler::begin(now, sources.epolls_are_told()),
            session,
            operator,
            options,
            shared,
            sources,
            observer,
            host,
            journal,
            kernel: Kernel::new(),
            own: BTreeSet::new(),
            ledger: Ledger::default(),
            requests,
            policy: model::Policy::default(),
            wishes: WishReader::of(session.wishes()),
            new_wishes: false,
            followed_wishes: Vec::new(),
            placed: Placed::default(),
            wake: HeldWake::default(),
            members: Members::new(),
            statuses: Vec::new(),
            findings: BTreeMap::new(),
            counters: Counters::default(),
            reactions: BTreeMap::new(),
            rejected: BTreeMap::new(),
            asking: None,
            taken: BTreeMap::new(),
            unwanted: BTreeSet::new(),
            previous: BTreeMap::new(),
            foreign: BTreeSet::new(),
            half_undone: BTreeSet::new(),
            notes_for_answer: Vec::new(),
            kept_for_refused: 0,
            lock: None,
            look_at_all: now,
            phase: Phase::Starting,
            policy_reads: 0,
            mistakes: None,
            sections: 0,
            watched: BTreeSet::new(),
            set_lately: Vec::new(),
            compared: None,
            set_for_answer: Vec::new(),
        };
        match claimed {
            Claimed::Locked(lock) => daemon.lock = Some(lock),
            Claimed::Unknown(finding) => daemon.find(finding),
        }
        daemon.adopt()?;
        daemon.tell_what_is_not_heard();
        let started = clock::now().unix_micros;
        let netns = daemon.observer.netns().id();
        daemon.shared.update(|status| {
            status.pid = std::process::id();
            env!("CARGO_PKG_VERSION").clone_into(&mut status.version);
            status.started_unix_micros = started;
            status.netns = Some(netns);
        });
        daemon.publish();
        Ok(daemon)
    }

    /// What earlier daemons have set, and is in force, is this one's from now on. What one of them left half done is
    /// undone first.
    fn adopt(&mut self) -> Result<(), Fault> {
        for transaction in self.journal.kept_by_daemon()?.iter().rev() {
            if transaction.standing() == apply::Standing::Unfinished {
                let name = transaction.name();
                self.journal.roll_back(name, &mut self.kernel, clock::now())?;
                self.operator.say(&format!("{name} was left half done, and is rolled back."));
            }
        }
        self.read_own()?;
        if !self.own.is_empty() {
            let (settings, transactions) = (self.ledger.len(), self.own.len());
            self.operator.say(&format!(
                "Found {settings} settings of {transactions} transactions in force, and goes on."
            ));
        }
        Ok(())
    }

    /// Reads the journal for what the daemon holds. Gives the transactions that others of these stand for.
    pub(crate) fn read_own(&mut self) -> Result<BTreeSet<TransactionName>, Fault> {
        let transactions = self.journal.kept_by_daemon()?;
        self.own = transactions.iter().map(apply::Transaction::name).collect();
        let half = transactions.iter().filter(|transaction| {
            transaction.standing() == apply::Standing::RollbackIncomplete
                && matches!(transaction.why_undone(), Some(apply::Why::Asked { .. }))
        });
        self.half_undone = half.map(apply::Transaction::name).collect();
        self.ledger = Ledger::of(&transactions);
        self.journal.rely_on(self.own.iter().copied());
        Ok(transactions.iter().flat_map(|transaction| transaction.begin().replaces.clone()).collect())
    }

    fn tell_what_is_not_heard(&mut self) {
        for hearing in self.sources.hearing() {
            let Some(within) = hearing.within.filter(|_| !hearing.refused.is_empty()) else { continue };
            let finding = Finding {
                rule: "not-told".to_owned(),
                severity: Severity::Note,
                object: hearing.what.clone(),
                summary: format!(
                    "the kernel does not tell of them at once; they are found by {}",
                    hearing.how
                ),
                evidence: [format!("within {} s", within.as_secs())]
                    .into_iter()
                    .chain(hearing.refused)
                    .collect(),
                remedy: None,
            };
            self.find(finding);
        }
    }

    /// Does what there is to do until somebody asks the daemon to end.
    ///
    /// # Errors
    /// If the kernel does not let it listen any more.
    pub(crate) fn run(&mut self, event_loop: &mut EventLoop) -> Result<(), Fault> {
        if let Some(lock) = self.lock.take() {
            event_loop
                .admit(Box::new(lock))
                .map_err(|errno| Fault::failed(format!("the daemon's sign: {errno}")))?;
        }
        while self.phase != Phase::Ending {
            self.turn(event_loop)?;
        }
        self.publish();
        Ok(())
    }

    /// One turn: waits until something is ready or due, hears it, and does what has to be done.
    pub(crate) fn turn(&mut self, event_loop: &mut EventLoop) -> Result<(), Fault> {
        let wake = Instant::now() + until(self.reconciler.next_wake(), now());
        let ready = event_loop
            .wait(Some(wake))
            .map_err(|errno| Fault::failed(format!("the daemon's epoll: {errno}")))?;
        let mut heard = false;
        if ready.contains(&NOTICES) {
            self.hear_notices()?;
            heard = true;
        }
        if ready.contains(&BIRTHS) {
            self.hear_births()?;
            heard = true;
        }
        if ready.contains(&SIGNALS) {
            self.hear_signals();
            heard = true;
        }
        if ready.contains(&WISHES) {
            self.hear_wishes();
            heard = true;
        }
        if ready.contains(&FILES) {
            let changed = self.sources.files().changed();
            let now = now();
            for holds in changed {
                self.hear(
                    match holds {
                        Holds::Policy => &Event::Policy,
                        Holds::Journal => &Event::Journal,
                        Holds::Wishes | Holds::PlaceOfWishes => &Event::Wish(None),
                    },
                    now,
                );
            }
        }
        heard |= self.answer_requests();
        if let Some(work) = self.reconciler.take_due(now()) {
            self.work(work);
            heard = true;
        }
        if let Some(told) = self.new_wishes() {
            event_loop
                .watch(told, WISHES)
                .map_err(|errno| Fault::failed(format!("the daemon's epoll: {errno}")))?;
        }
        if heard {
            self.publish();
        }
        Ok(())
    }

    pub(crate) fn hear(&mut self, event: &Event, at: Nanoseconds) {
        *self.counters.events.entry(event.kind()).or_default() += 1;
        self.reconciler.heard(event, at, now());
    }

    fn hear_notices(&mut self) -> Result<(), Fault> {
        let notices: Vec<Notice> = self.sources.notices()?.collect();
        let at = now();
        for notice in notices {
            let event = match notice {
                Notice::Link(index) => Event::Link(index),
                Notice::Ethtool(index) => Event::Ethtool(index),
                Notice::Queues(name) => Event::Queues(name),
                Notice::Cpu => Event::Cpu,
                Notice::Lost => {
                    self.counters.lost += 1;
                    Event::Lost
                }
            };
            self.hear(&event, at);
        }
        Ok(())
    }

    fn hear_births(&mut self) -> Result<(), Fault> {
        let (told, lost) = self.sources.births()?;
        for told in told {
            match told.birth {
                Birth::Exec(process) => {
                    let known = self.watched.contains(&process.pid);
                    if self.judge(process.pid, None) || known {
                        self.hear(&Event::Exec(process.pid), told.at);
                    }
                }
                Birth::Child { child, parent } => {
                    if self.requests.born(child.pid, parent) || self.requests.any_device() {
                        self.watched.insert(child.pid);
                        self.hear(&Event::Fork(child.pid), told.at);
                    } else {
                        self.sources.ignore(child.pid)?;
                    }
                }
                Birth::Exit(process) => {
                    self.requests.ended(process.pid);
                    self.watched.remove(&process.pid);
                    self.hear(&Event::Exit(process.pid), told.at);
                }
                Birth::Listener { process, port } => {
                    let known = self.watched.contains(&process.pid);
                    if self.judge(process.pid, Some(port)) || known || self.requests.any_device() {
                        self.hear(&Event::Listener(process.pid), told.at);
                    }
                }
                Birth::Epoll(epoll) => self.hear(&Event::Epoll(epoll.process.pid), told.at),
            }
        }
        if lost {
            self.counters.lost += 1;
            self.hear(&Event::Lost, now());
        }
        Ok(())
    }

    /// Whether any request means this process by itself.
    fn judge(&mut self, pid: Pid, listens: Option<u16>) -> bool {
        // A socket stays in its namespace when its process leaves it.
        let here = Criteria { netns: Some(self.observer.netns().id()), ..Criteria::default() };
        if listens.is_some() && meets(&here, pid).is_ok_and(|process| process.is_none()) {
            return false;
        }
        let mut unread = Vec::new();
        let means = self.requests.judge(pid, listens, &mut unread);
        for unread in unread {
            self.operator.detail(&format!("not read: {}: {}", unread.what, unread.why));
        }
        means
    }

    fn hear_signals(&mut self) {
        while let Some(arrived) = self.sources.signals().take() {
            match arrived.signal {
                Signal::HangUp => {
                    self.take_up();
                    self.hear(&Event::Policy, now());
                }
                Signal::Interrupt | Signal::Terminate => self.phase = Phase::Ending,
            }
        }
    }

    /// What was left alone is taken up again.
    pub(crate) fn take_up(&mut self) {
        self.reconciler.take_up();
        self.rejected.clear();
        if self.phase == Phase::Released {
            self.phase = Phase::Managing;
        }
        self.tell_what_was_rolled_back(&[]);
    }

    /// Says how much is left alone because somebody rolled it back, for as long as anything is.
    pub(crate) fn tell_what_was_rolled_back(&mut self, names: &[TransactionName]) {
        const RULE: &str = "rolled-back";
        let settings = self.reconciler.released();
        let summary = match self.phase {
            Phase::Released => {
                "all that it had set was rolled back: it manages nothing until it is asked again".to_owned()
            }
            _ if settings == 0 => return self.mended(RULE, &BTreeSet::new()),
            _ => format!("{settings} settings were rolled back, and are left alone until it is asked again"),
        };
        let known = self.findings.get(&(RULE.to_owned(), "daemon".to_owned()));
        let evidence = match (names, known) {
            ([], Some(known)) => known.evidence.clone(),
            (names, _) => names.iter().map(|name| format!("rolled back: {name}")).collect(),
        };
        self.find(Finding {
            rule: RULE.to_owned(),
            severity: Severity::Warning,
            object: "daemon".to_owned(),
            summary,
            evidence,
            remedy: Some(format!("kill -HUP {}", std::process::id())),
        });
    }

    /// Ends: leaves everything in force, or puts all of it back, as it was told to be.
    pub(crate) fn end(mut self) -> Result<(), Fault> {
        match self.options.on_stop {
            OnStop::Keep => {
                if !self.ledger.is_empty() {
                    let settings = self.ledger.len();
                    self.operator.say(&format!(
                        "Left in force: {settings} settings. `netpolicy rollback` puts them back."
                    ));
                }
                Ok(())
            }
            OnStop::Revert => self.roll_back_all().map(|put_back| {
                self.operator.say(&format!("Put back: {put_back} settings."));
            }),
        }
    }

    /// What the journal notes of the daemon's transactions.
    pub(crate) fn asked(&self) -> Asked {
        self.session.asked(None)
    }

    /// Notes a finding, in place of what was found of the same before. A new one is told.
    pub(crate) fn find(&mut self, finding: Finding) {
        let key = (finding.rule.clone(), finding.object.clone());
        if self.findings.get(&key) == Some(&finding) {
            return;
        }
        if !self.findings.contains_key(&key) && self.findings.len() >= FINDINGS_MAX {
            return;
        }
        self.operator.say(&format!("{}: {}: {}", finding.severity, finding.object, finding.summary));
        for line in &finding.evidence {
            self.operator.say(&format!("  {line}"));
        }
        self.findings.insert(key, finding);
    }

    /// What was found by a rule is mended, but for these objects.
    pub(crate) fn mended(&mut self, rule: &str, but: &BTreeSet<String>) {
        self.findings.retain(|(found, object), _| found != rule || but.contains(object));
    }

    /// Tells others how it stands.
    pub(crate) fn publish(&mut self) {
        let findings: Vec<Finding> = self.findings.values().cloned().collect();
        let polling = crate::request_status::polling(&self.placed, &self.host);
        let settings = u64::try_from(self.ledger.len()).unwrap_or(u64::MAX);
        let mut hearing = self.sources.hearing();
        hearing.extend(app_requests::hearing(&self.wishes));
        self.shared.update(|status| {
            status.phase = self.phase;
            status.policy.sections = self.sections;
            status.policy.asked = self.requests.asked();
            status.policy.reads = self.policy_reads;
            status.policy.mistakes.clone_from(&self.mistakes);
            status.hearing = hearing;
            status.requests.clone_from(&self.statuses);
            status.settings = settings;
            status.findings = findings;
            // The queue of requests counts what it turns away by itself.
            let evictions = status.counters.evictions.max(self.counters.evictions);
            status.counters.clone_from(&self.counters);
            status.counters.evictions = evictions;
            status.reactions.clone_from(&self.reactions);
            status.polling = polling;
        });
    }
}

/// This moment, by the clock that the kernel's events are of.
pub(crate) fn now() -> Nanoseconds {
    linux::clock::monotonic()
}

fn watched_directories(session: &Session, journal: &Journal) -> Vec<(PathBuf, Holds)> {
    let policy: Vec<PathBuf> = session.policy_directories(directory_of);
    let policy = policy.into_iter().map(|path| (path, Holds::Policy));
    let journal = (journal.directory().to_owned(), Holds::Journal);
    let wishes = session.wishes().directory().to_owned();
    let place = (directory_of(&wishes), Holds::PlaceOfWishes);
    policy.chain([journal, (wishes, Holds::Wishes), place]).collect()
}
