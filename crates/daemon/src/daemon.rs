//! The daemon itself: the parts that it consists of, and one turn of its loop.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use apply::{Asked, TransactionName};
use linux::bpf::process_events::ProcessEvent;
use linux::events::Notice;
use linux::process::{Criteria, meets};
use linux::{Netns, Signal};
use model::{Change, Finding, Nanoseconds, Pid, Setting, Severity};
use session::{Fault, Operator, Session, clock};

use crate::answers::Answers;
use crate::app_requests::AppRequests;
use crate::current_plan::CurrentPlan;
use crate::event_loop::EventLoop;
use crate::event_sources::{
    BIRTHS, EventSources, FILES, Files, Holds, NOTICES, SIGNALS, WISHES, directory_of,
};
use crate::held::Held;
use crate::instance_lock::{Claimed, InstanceLock};
use crate::known::Known;
use crate::options::{OnStop, Options};
use crate::reconciler::{Event, Reconciler, until};
use crate::rejections::Rejections;
use crate::requests::Requests;
use crate::status::{Phase, Shared};
use crate::telemetry::{Standing, Telemetry};

/// How long the daemon waits for another writer of the journal before it does something else first.
const JOURNAL_PATIENCE: Duration = Duration::from_millis(200);

/// What can be done about a file of requests that cannot be read.
const UNREADABLE: &str =
    "what `set` asked of a daemon is kept there: move it away to start without that, and ask again";

/// The daemon: parts that own their state, and know nothing of each other.
pub(crate) struct Daemon<'a> {
    pub(crate) session: &'a Session,
    pub(crate) options: Options,
    /// What it tells of itself.
    pub(crate) telemetry: Telemetry<'a>,
    /// What to do, and when.
    pub(crate) reconciler: Reconciler,
    /// What it waits for.
    pub(crate) sources: EventSources,
    /// What is known of the host.
    pub(crate) known: Known,
    /// What the operator asks for, and of which processes.
    pub(crate) requests: Requests,
    /// What applications ask for.
    pub(crate) apps: AppRequests,
    /// What all of it comes to.
    pub(crate) plan: CurrentPlan,
    /// What is held of that.
    pub(crate) held: Held,
    /// What of it the kernel refused.
    pub(crate) rejections: Rejections,
    /// The request that is being done by asking.
    pub(crate) answers: Answers,
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
        event_loop: &mut EventLoop,
    ) -> Result<Self, Fault> {
        let netns = session.netns()?;
        // On this thread only; others of this process stay where they are.
        if !Netns::is_current(netns.id()) {
            netns.enter()?;
        }
        let journal = session.journal()?.waiting(JOURNAL_PATIENCE).kept_by_this_daemon()?;
        let mut telemetry = Telemetry::new(operator, shared);
        match InstanceLock::claim()? {
            Claimed::Locked(lock) => event_loop
                .admit(Box::new(lock))
                .map_err(|errno| Fault::failed(format!("the daemon's sign: {errno}")))?,
            Claimed::Unknown(finding) => telemetry.find(finding),
        }
        let path = session.state_dir.join("requests.json");
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let requests = Requests::open(path, &boot, options.allow.disruptive)
            .map_err(|(path, error)| Fault::file(path, error).hint(UNREADABLE))?;
        let files = Files::watch(watched_directories(session, journal.directory().to_owned()));
        let sources = EventSources::open(&netns, event_loop, files)?;
        let known = Known::open(netns, now())?;
        let mut daemon = Self {
            session,
            options,
            telemetry,
            reconciler: Reconciler::begin(now(), sources.epolls_are_told()),
            sources,
            known,
            requests,
            apps: AppRequests::of(session.wishes()),
            plan: CurrentPlan::default(),
            held: Held::of(journal),
            rejections: Rejections::default(),
            answers: Answers::default(),
        };
        daemon.adopt()?;
        daemon.tell_what_is_not_heard();
        daemon.telemetry.started(daemon.known.netns().id(), clock::now().unix_micros);
        daemon.publish();
        Ok(daemon)
    }

    /// What earlier daemons have set, and is in force, is this one's from now on. What one of them left half done is
    /// undone first.
    fn adopt(&mut self) -> Result<(), Fault> {
        let Self { held, telemetry, .. } = self;
        held.adopt(clock::now(), |name| {
            telemetry.say(&format!("{name} was left half done, and is rolled back."));
        })?;
        if !held.transactions().is_empty() {
            let (settings, transactions) = (held.ledger().len(), held.transactions().len());
            telemetry.say(&format!(
                "Found {settings} settings of {transactions} transactions in force, and goes on."
            ));
        }
        Ok(())
    }

    fn tell_what_is_not_heard(&mut self) {
        for hearing in self.sources.hearing() {
            let Some(within) = hearing.within.filter(|_| !hearing.refused.is_empty()) else { continue };
            self.telemetry.find(Finding {
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
            });
        }
    }

    /// Does what there is to do until somebody asks the daemon to end.
    ///
    /// # Errors
    /// If the kernel does not let it listen any more.
    pub(crate) fn run(&mut self, event_loop: &mut EventLoop) -> Result<(), Fault> {
        while self.telemetry.phase() != Phase::Ending {
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
            self.hear_app_requests();
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
        if let Some(told) = self.apps.new_descriptor() {
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
        self.telemetry.count(|counters| *counters.events.entry(event.kind()).or_default() += 1);
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
                    self.telemetry.count(|counters| counters.lost += 1);
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
            match told.event {
                ProcessEvent::Exec(process) => {
                    let known = self.sources.is_watched(process.pid);
                    if self.judge(process.pid, None) || known {
                        self.hear(&Event::Exec(process.pid), told.at);
                    }
                }
                ProcessEvent::Child { child, parent } => {
                    if self.requests.born(child.pid, parent) || self.requests.any_device() {
                        self.sources.note_watched(child.pid);
                        self.hear(&Event::Fork(child.pid), told.at);
                    } else {
                        self.sources.ignore(child.pid)?;
                    }
                }
                ProcessEvent::Exit(process) => {
                    self.requests.ended(process.pid);
                    self.sources.note_ended(process.pid);
                    self.hear(&Event::Exit(process.pid), told.at);
                }
                ProcessEvent::Listener { process, port } => {
                    let known = self.sources.is_watched(process.pid);
                    if self.judge(process.pid, Some(port)) || known || self.requests.any_device() {
                        self.hear(&Event::Listener(process.pid), told.at);
                    }
                }
                ProcessEvent::Epoll(epoll) => self.hear(&Event::Epoll(epoll.process.pid), told.at),
            }
        }
        if lost {
            self.telemetry.count(|counters| counters.lost += 1);
            self.hear(&Event::Lost, now());
        }
        Ok(())
    }

    /// Whether any request means this process by itself.
    fn judge(&mut self, pid: Pid, listens: Option<u16>) -> bool {
        // A socket stays in its namespace when its process leaves it.
        let here = Criteria { netns: Some(self.known.netns().id()), ..Criteria::default() };
        if listens.is_some() && meets(&here, pid).is_ok_and(|process| process.is_none()) {
            return false;
        }
        let mut unread = Vec::new();
        let means = self.requests.judge(pid, listens, &mut unread);
        self.telemetry.unread(unread);
        means
    }

    fn hear_signals(&mut self) {
        while let Some(arrived) = self.sources.signals().take() {
            match arrived.signal {
                Signal::HangUp => {
                    self.take_up();
                    self.hear(&Event::Policy, now());
                }
                Signal::Interrupt | Signal::Terminate => self.telemetry.enter(Phase::Ending),
            }
        }
    }

    /// What was left alone is taken up again.
    pub(crate) fn take_up(&mut self) {
        self.reconciler.take_up();
        self.rejections.clear();
        self.telemetry.leave(Phase::Released, Phase::Managing);
        self.tell_what_was_rolled_back(&[]);
    }

    /// Says how much is left alone because somebody rolled it back, for as long as anything is.
    pub(crate) fn tell_what_was_rolled_back(&mut self, names: &[TransactionName]) {
        const RULE: &str = "rolled-back";
        let settings = self.reconciler.released();
        let summary = match self.telemetry.phase() {
            Phase::Released => {
                "all that it had set was rolled back: it manages nothing until it is asked again".to_owned()
            }
            _ if settings == 0 => return self.telemetry.mended(RULE, &BTreeSet::new()),
            _ => format!("{settings} settings were rolled back, and are left alone until it is asked again"),
        };
        let evidence = match (names, self.telemetry.finding(RULE, "daemon")) {
            ([], Some(known)) => known.evidence.clone(),
            (names, _) => names.iter().map(|name| format!("rolled back: {name}")).collect(),
        };
        self.telemetry.find(Finding {
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
                if !self.held.ledger().is_empty() {
                    let settings = self.held.ledger().len();
                    self.telemetry.say(&format!(
                        "Left in force: {settings} settings. `netpolicy rollback` puts them back."
                    ));
                }
                Ok(())
            }
            OnStop::Revert => self.roll_back_all().map(|put_back| {
                self.telemetry.say(&format!("Put back: {put_back} settings."));
            }),
        }
    }

    /// Puts back all that the daemons have set. Says how many settings were.
    pub(crate) fn roll_back_all(&mut self) -> Result<usize, Fault> {
        let asked = self.asked();
        let (undone, failed) = self.held.roll_back_all(&asked);
        self.look_at_journal()?;
        for (change, found) in undone.iter().flat_map(|(_, undone)| undone.left_alone()) {
            self.telemetry.say(&left_to_others(change, found));
        }
        let restored = |fate: &apply::Fate| *fate == apply::Fate::Restored;
        let put_back = undone.iter().map(|(_, undone)| undone.count(restored)).sum();
        failed.map_or(Ok(put_back), |error| Err(self.held.unfinished(error, &undone)))
    }

    /// What the journal notes of the daemon's transactions.
    pub(crate) fn asked(&self) -> Asked {
        self.session.asked(None)
    }

    /// Tells others how it stands.
    pub(crate) fn publish(&self) {
        let mut hearing = self.sources.hearing();
        hearing.extend(self.apps.hearing());
        self.telemetry.publish(Standing {
            asked: self.requests.asked(),
            hearing,
            requests: self.plan.statuses().to_vec(),
            settings: self.held.ledger().len(),
            polling: self.plan.polling(self.known.host()),
        });
    }
}

/// What is said of a setting that is not put back, because it is somebody else's by now.
pub(crate) fn left_to_others(change: &Change, found: &Setting) -> String {
    let from = change.from();
    let (object, knob, now, before) = (from.object(), from.knob(), found.value(), from.value());
    format!(
        "NOT put back, for somebody else has set it since: {object} {knob} is {now}, and was {before} before"
    )
}

/// This moment, by the clock that the kernel's events are of.
pub(crate) fn now() -> Nanoseconds {
    linux::clock::monotonic()
}

fn watched_directories(session: &Session, journal: PathBuf) -> Vec<(PathBuf, Holds)> {
    let policy: Vec<PathBuf> = session.policy_directories(directory_of);
    let policy = policy.into_iter().map(|path| (path, Holds::Policy));
    let wishes = session.wishes().directory().to_owned();
    let place = (directory_of(&wishes), Holds::PlaceOfWishes);
    policy.chain([(journal, Holds::Journal), (wishes, Holds::Wishes), place]).collect()
}
