//! The daemon itself: its parts, and one turn of its loop.

mod app_requests;
mod proof;
mod scan;
mod search;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use apply::{TransactionName, TransactionOrigin};
use linux::bpf::process_events::{ListenedPort, ProcessEvent};
use linux::events::Notice;
use linux::process::{Criteria, meets};
use linux::{Netns, Signal};
use model::host::{Socket, SocketState};
use model::{Change, Finding, Nanoseconds, Pid, Setting, Severity};
use session::{Fault, Operator, Session, clock};

use crate::answers::Answers;
use crate::app_requests::AppRequests;
use crate::current_plan::CurrentPlan;
use crate::event_loop::EventLoop;
use crate::event_sources::{
    APP_REQUESTS, EventSources, FILES, Files, GUARDED, Holds, MEASURED, NOTICES, PROCESS_EVENTS, REQUESTED,
    SIGNALS, directory_of,
};
use crate::goal_search::GoalSearch;
use crate::goals::Goals;
use crate::guards::{GuardedTrials, REVERTED, TrialResult, WAITS};
use crate::held::HeldSettings;
use crate::instance_lock::{InstanceLock, LockClaim};
use crate::known::HostView;
use crate::options::{DaemonOptions, OnStop};
use crate::reconciler::{HostEvent, Reconciler, until};
use crate::rejections::Rejections;
use crate::requests::{RequestTable, Serves};
use crate::sessions::HeldBack;
use crate::standing_proofs::StandingProofs;
use crate::status::{DaemonPhase, RequestStatus, Shared};
use crate::telemetry::{StatusParts, Telemetry};

/// The maximum number of log lines about settings that the daemon leaves to other programs.
const LEFT_ALONE_MAX: usize = 100;

/// How long the daemon waits for another writer of the journal before it continues with other work.
const JOURNAL_PATIENCE: Duration = Duration::from_millis(200);

/// The message when the whole host has been observed for the first time.
const AT_WORK: &str = "netpolicy daemon: at work. SIGHUP reloads the policy files, SIGTERM stops it.";

/// The hint for a file of stored requests that cannot be read.
const UNREADABLE: &str =
    "it contains the requests made with `set`: move it away to start without them, and repeat them";

/// The daemon. Each part owns its state and does not refer to the other parts.
pub(crate) struct Daemon<'a> {
    pub(crate) session: &'a Session,
    pub(crate) options: DaemonOptions,
    /// The daemon's status, findings and messages.
    pub(crate) telemetry: Telemetry<'a>,
    /// The pending work, and when it is due.
    pub(crate) reconciler: Reconciler,
    /// The sources of the daemon's events.
    pub(crate) sources: EventSources,
    /// The observed host.
    pub(crate) known: HostView,
    /// All requests, and the processes that they match.
    pub(crate) requests: RequestTable,
    /// The last plan for all requests.
    pub(crate) plan: CurrentPlan,
    /// The settings that the daemon holds in force.
    pub(crate) held: HeldSettings,
    /// The values that the kernel has refused.
    pub(crate) rejections: Rejections,
    /// The API request in progress, if any.
    pub(crate) answers: Answers,
    /// The measurements of services' traffic, and verdicts from them.
    pub(crate) quality: ServiceMeasurement,
    /// The client's session that is currently changing settings, if any.
    pub(crate) held_back: HeldBack,
}

/// The measurements of services' traffic, and verdicts from them.
pub(crate) struct ServiceMeasurement {
    /// The response times of services that have a goal.
    pub(crate) goals: Goals,
    /// Trials of changes that the traffic of guarded services must judge before they are kept.
    pub(crate) guards: GuardedTrials,
    /// Searches for a better mode of services that miss their goal.
    pub(crate) search: GoalSearch,
    /// Standing proofs: repeated measurements of whether policies still help.
    pub(crate) proofs: StandingProofs,
}

impl<'a> Daemon<'a> {
    /// Locks the journal, opens the event sources, and finds the settings of earlier daemons. Changes nothing
    /// yet.
    ///
    /// # Errors
    /// If another daemon uses the journal, or the network namespace cannot be entered.
    pub(crate) fn begin(
        session: &'a Session,
        operator: &'a dyn Operator,
        options: DaemonOptions,
        shared: Shared,
        event_loop: &mut EventLoop,
    ) -> Result<Self, Fault> {
        let netns = session.netns()?;
        // Only this thread enters the namespace; the other threads of this process stay in their own.
        if !Netns::is_current(netns.id()) {
            netns.enter()?;
        }
        let journal = session.journal()?.waiting(JOURNAL_PATIENCE).kept_by_this_daemon()?;
        event_loop.watch(shared.requested(), REQUESTED).map_err(|errno| {
            Fault::failed(format!("cannot add a descriptor to the daemon's epoll: {errno}"))
        })?;
        let mut telemetry = Telemetry::new(operator, shared);
        match InstanceLock::claim()? {
            LockClaim::Locked(lock) => event_loop
                .admit(Box::new(lock))
                .map_err(|errno| Fault::failed(format!("cannot hold the daemon's instance lock: {errno}")))?,
            LockClaim::Unknown(finding) => telemetry.find(finding),
        }
        let path = session.state_dir.join("requests.json");
        let boot = linux::machine::boot_id()?;
        let apps = AppRequests::of(session.app_requests());
        let requests = RequestTable::open(path, &boot, apps, options.allow.disruptive, options.inferred)
            .map_err(|(path, error)| Fault::file(path, error).hint(UNREADABLE))?;
        let files = Files::watch(watched_directories(session, journal.directory().to_owned()));
        let sources = EventSources::open(&netns, event_loop, files)?;
        let known = HostView::open(netns, now())?;
        let goals = Goals::watched_by(event_loop)?;
        let guards = GuardedTrials::watched_by(event_loop)?;
        let mut daemon = Self {
            session,
            options,
            telemetry,
            reconciler: Reconciler::begin(now(), sources.sees_new_epolls()),
            sources,
            known,
            requests,
            plan: CurrentPlan::default(),
            held: HeldSettings::of(journal),
            rejections: Rejections::default(),
            answers: Answers::default(),
            quality: ServiceMeasurement {
                goals,
                guards,
                search: GoalSearch::resumed(session.searches(), &boot),
                proofs: StandingProofs::resumed(session.proofs()),
            },
            held_back: HeldBack::default(),
        };
        daemon.adopt()?;
        daemon.report_late_sources();
        daemon.telemetry.started(daemon.known.netns().id(), clock::now().unix_micros);
        daemon.publish();
        Ok(daemon)
    }

    /// Adopts the settings of earlier daemons that are in force, after rolling back the unfinished
    /// transactions of those daemons.
    fn adopt(&mut self) -> Result<(), Fault> {
        let Self { held, telemetry, .. } = self;
        held.adopt(clock::now(), |name| {
            telemetry.say(&format!("{name} was incomplete: rolled back."));
        })?;
        if !held.transactions().is_empty() {
            let (settings, transactions) = (held.ledger().len(), held.transactions().len());
            telemetry.say(&format!("Resuming: {settings} settings of {transactions} transactions in force."));
        }
        Ok(())
    }

    fn report_late_sources(&mut self) {
        for source in self.sources.event_sources() {
            let Some(within) = source.within.filter(|_| !source.refused.is_empty()) else { continue };
            self.telemetry.find(Finding {
                rule: "found-by-scan".to_owned(),
                severity: Severity::Note,
                object: source.what.clone(),
                summary: format!(
                    "the kernel does not report these events immediately; they are found by {}",
                    source.how
                ),
                evidence: [format!("within {} s", within.as_secs_f64())]
                    .into_iter()
                    .chain(source.refused)
                    .collect(),
                remedy: None,
            });
        }
    }

    /// Runs turns until the daemon is told to stop. After the first observation, notifies systemd that the
    /// daemon is ready, because its status is valid from then on.
    ///
    /// # Errors
    /// If the kernel refuses to wait for events.
    pub(crate) fn run(&mut self, event_loop: &mut EventLoop) -> Result<(), Fault> {
        let mut announced = false;
        while self.telemetry.phase() != DaemonPhase::Ending {
            self.turn(event_loop)?;
            if !announced && self.telemetry.phase() != DaemonPhase::Starting {
                self.telemetry.say(AT_WORK);
                announced = true;
            }
            if self.telemetry.has_api_ended() {
                return Err(Fault::failed("the thread for the daemon's sockets has exited"));
            }
        }
        self.publish();
        Ok(())
    }

    /// Runs one turn: waits until an event arrives or work is due, handles the events, and does the work.
    pub(crate) fn turn(&mut self, event_loop: &mut EventLoop) -> Result<(), Fault> {
        let wake = Instant::now() + until(self.reconciler.next_wake(), now());
        let ready = event_loop
            .wait(Some(wake))
            .map_err(|errno| Fault::failed(format!("cannot wait in the daemon's epoll: {errno}")))?;
        let mut busy = false;
        if ready.contains(&NOTICES) {
            self.take_notices()?;
            busy = true;
        }
        if ready.contains(&PROCESS_EVENTS) {
            self.take_process_events()?;
            busy = true;
        }
        if ready.contains(&SIGNALS) {
            self.take_signals();
            busy = true;
        }
        if ready.contains(&APP_REQUESTS) {
            self.take_app_requests();
            busy = true;
        }
        if ready.contains(&FILES) {
            let changed = self.sources.files().changed();
            let now = now();
            for holds in changed {
                self.note(
                    match holds {
                        Holds::Policy => &HostEvent::Policy,
                        Holds::Journal => &HostEvent::Journal,
                        Holds::AppRequests | Holds::ParentOfAppRequests => &HostEvent::AppRequest(None),
                    },
                    now,
                );
            }
        }
        if ready.contains(&MEASURED) {
            self.take_measured();
            busy = true;
        }
        if ready.contains(&GUARDED) {
            self.take_judged();
            busy = true;
        }
        busy |= self.answer_requests();
        if self.held_back.take_ended() {
            // The session alternated settings, so the known state of the host is out of date.
            self.note(&HostEvent::Lost, now());
        }
        if let Some(work) = self.reconciler.take_due(now()) {
            self.work(work);
            busy = true;
        }
        if let Some(descriptor) = self.requests.new_apps_descriptor() {
            event_loop.watch(descriptor, APP_REQUESTS).map_err(|errno| {
                Fault::failed(format!("cannot add a descriptor to the daemon's epoll: {errno}"))
            })?;
        }
        if busy {
            self.publish();
        }
        Ok(())
    }

    /// Whether settings are being alternated, either for a verdict of the daemon or for a client's session.
    /// The daemon must not change any setting during that time.
    pub(crate) fn is_judging(&self) -> bool {
        self.quality.guards.is_under_way() || self.held_back.by().is_some()
    }

    pub(crate) fn note(&mut self, event: &HostEvent, at: Nanoseconds) {
        self.telemetry.count(|counters| *counters.events.entry(event.kind()).or_default() += 1);
        self.reconciler.note(event, at, now());
    }

    /// Handles the measurements of services that arrived since the last turn.
    fn take_measured(&mut self) {
        self.quality.goals.take(self.known.host());
        self.report_measured();
        self.keep_goals();
    }

    /// Handles the verdict on a change. The change is then either committed or not retried.
    fn take_judged(&mut self) {
        let Some(judged) = self.quality.guards.take(now()) else { return };
        match judged {
            TrialResult::Attempt(attempted) => self.take_attempted(attempted),
            TrialResult::Proof(proved) => self.take_proved(proved),
            TrialResult::Asked { services, said, finding, verdicts } => {
                self.telemetry.say(&said);
                self.telemetry.judged(&verdicts);
                for rule in [REVERTED, WAITS] {
                    let is_of_these = |object: &str| object.split(", ").any(|name| services.contains(name));
                    self.telemetry.mended_where(rule, is_of_these);
                }
                if let Some(finding) = finding {
                    self.telemetry.find(finding);
                }
            }
        }
        // The trial alternated settings, so the known state of the host is out of date.
        self.note(&HostEvent::Lost, now());
    }

    /// Reports problems of services that have a goal.
    pub(crate) fn report_measured(&mut self) {
        let findings = self.quality.goals.findings();
        for rule in self.quality.goals.rules() {
            let of_rule = findings.iter().filter(|finding| finding.rule == rule);
            self.telemetry.mended(&rule, &of_rule.map(|finding| finding.object.clone()).collect());
        }
        findings.into_iter().for_each(|finding| self.telemetry.renew(finding));
    }

    fn take_notices(&mut self) -> Result<(), Fault> {
        let notices: Vec<Notice> = self.sources.notices()?.collect();
        let at = now();
        for notice in notices {
            let event = match notice {
                Notice::Link(index) => HostEvent::Link(index),
                Notice::Ethtool(index) => HostEvent::Ethtool(index),
                Notice::Queues(name) => HostEvent::Queues(name),
                Notice::Cpu => HostEvent::Cpu,
                Notice::Lost => {
                    self.telemetry.count(|counters| counters.lost += 1);
                    HostEvent::Lost
                }
            };
            self.note(&event, at);
        }
        Ok(())
    }

    fn take_process_events(&mut self) -> Result<(), Fault> {
        let (events, lost) = self.sources.take_process_events()?;
        for event in events {
            match event.event {
                ProcessEvent::Exec(process) => {
                    let known = self.sources.is_watched(process.pid);
                    if self.judge(process.pid, Serves::AsBefore) || known {
                        self.note(&HostEvent::Exec(process.pid), event.at);
                    }
                }
                ProcessEvent::Child { child, parent } => {
                    if self.requests.born(child.pid, parent) || self.requests.any_device() {
                        self.sources.note_watched(child.pid);
                        self.note(&HostEvent::Fork(child.pid), event.at);
                    } else {
                        self.sources.ignore(child.pid)?;
                    }
                }
                ProcessEvent::Exit(process) => {
                    self.requests.ended(process.pid);
                    self.sources.note_ended(process.pid);
                    self.note(&HostEvent::Exit(process.pid), event.at);
                }
                ProcessEvent::Listener { process, port, netns } => {
                    let known = self.sources.is_watched(process.pid);
                    let by_device = netns == self.known.netns().id() && self.requests.any_device();
                    // The process may have left the socket's namespace, but the socket stays there.
                    let there = Criteria { netns: Some(netns), ..Criteria::default() };
                    let left = meets(&there, process.pid) == Some(false);
                    let meant = !left && self.judge(process.pid, Serves::Port(port));
                    if meant || known || by_device {
                        self.note(&HostEvent::Listener(process.pid), event.at);
                    }
                }
                ProcessEvent::Connection(listened) => {
                    for pid in self.listeners_on(listened) {
                        self.note(&HostEvent::Connection(pid), event.at);
                    }
                }
                ProcessEvent::Epoll(epoll) => self.note(&HostEvent::Epoll(epoll.process.pid), event.at),
            }
        }
        if lost {
            self.telemetry.count(|counters| counters.lost += 1);
            self.note(&HostEvent::Lost, now());
        }
        Ok(())
    }

    /// Returns the known processes that listen on this port in this network namespace.
    fn listeners_on(&self, (netns, port): ListenedPort) -> Vec<Pid> {
        let is_it = |socket: &Socket| {
            socket.state == SocketState::TcpListen && socket.local.is_some_and(|local| local.port() == port)
        };
        let of = self.known.host().processes.iter().filter(|process| process.netns == Some(netns));
        of.filter(|process| process.sockets.iter().any(is_it)).map(|process| process.id.pid).collect()
    }

    /// Whether any request matches this process.
    pub(crate) fn judge(&mut self, pid: Pid, serves: Serves) -> bool {
        let mut unread = Vec::new();
        let means = self.requests.judge(pid, serves, &mut unread);
        self.telemetry.unread(unread);
        means
    }

    fn take_signals(&mut self) {
        while let Some(arrived) = self.sources.signals().take() {
            match arrived.signal {
                Signal::HangUp => {
                    self.telemetry.reload(self.requests.of_files());
                    self.take_up();
                    self.note(&HostEvent::Policy, now());
                }
                Signal::Interrupt | Signal::Terminate => self.telemetry.enter(DaemonPhase::Ending),
            }
        }
    }

    /// Makes the daemon manage all settings again, including those that it had left alone.
    pub(crate) fn take_up(&mut self) {
        self.reconciler.take_up();
        self.rejections.clear();
        self.quality.guards.take_up();
        self.take_up_searches();
        self.quality.proofs.take_up();
        self.keep_proofs();
        self.telemetry.leave(DaemonPhase::Released, DaemonPhase::Managing);
        self.report_rolled_back(&[]);
    }

    /// Reports how many settings the daemon leaves alone because they were rolled back, as long as there are
    /// any.
    pub(crate) fn report_rolled_back(&mut self, names: &[TransactionName]) {
        const RULE: &str = "rolled-back";
        let settings = self.reconciler.released();
        let summary = match self.telemetry.phase() {
            DaemonPhase::Released => {
                "all settings of the daemon were rolled back: it manages nothing until a reload".to_owned()
            }
            _ if settings == 0 => return self.telemetry.mended(RULE, &BTreeSet::new()),
            _ => format!("{settings} settings were rolled back, and are left alone until a reload"),
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

    /// Shuts the daemon down. Depending on the options, leaves all settings in force or rolls them back.
    pub(crate) fn end(mut self) -> Result<(), Fault> {
        self.quality.guards.finish();
        self.keep_proofs();
        match self.options.on_stop {
            OnStop::Keep => {
                if !self.held.ledger().is_empty() {
                    let settings = self.held.ledger().len();
                    self.telemetry.say(&format!(
                        "{settings} settings stay in force. `netpolicy rollback` restores the previous values."
                    ));
                }
                Ok(())
            }
            // This rollback is not an operator's decision, so later daemons may apply the settings again.
            OnStop::Revert => self.put_back_all(|_| Ok(())).map(|put_back| {
                self.telemetry.say(&format!("Restored: {put_back} settings."));
            }),
        }
    }

    /// Rolls back everything that the daemons have set, because an operator requested it. The daemon then
    /// leaves these settings alone. Returns the number of settings that were restored.
    pub(crate) fn roll_back_all(&mut self) -> Result<usize, Fault> {
        self.put_back_all(|daemon| daemon.look_at_journal().map(drop))
    }

    /// Rolls back everything that the daemons have set, and updates the daemon's state. Returns the number of
    /// settings that were restored.
    fn put_back_all(&mut self, take_in: impl FnOnce(&mut Self) -> Result<(), Fault>) -> Result<usize, Fault> {
        let asked = self.asked();
        let (undone, failed) = self.held.roll_back_all(&asked);
        take_in(self)?;
        let mut left_alone = undone.iter().flat_map(|(_, undone)| undone.left_alone());
        for (change, found) in left_alone.by_ref().take(LEFT_ALONE_MAX) {
            self.telemetry.say(&left_to_others(change, found));
        }
        let more = left_alone.count();
        if more > 0 {
            self.telemetry.say(&format!("{more} more settings were left alone for the same reason."));
        }
        let restored = |fate: &apply::Fate| *fate == apply::Fate::Restored;
        let put_back = undone.iter().map(|(_, undone)| undone.count(restored)).sum();
        failed.map_or(Ok(put_back), |error| Err(self.held.unfinished(error, &undone)))
    }

    /// Returns the origin that the journal records for the daemon's transactions.
    pub(crate) fn asked(&self) -> TransactionOrigin {
        self.session.asked(None)
    }

    /// Publishes the daemon's status.
    pub(crate) fn publish(&self) {
        let mut event_sources = self.sources.event_sources();
        event_sources.extend(self.requests.event_source_of_apps());
        self.telemetry.publish(StatusParts {
            asked: self.requests.asked(),
            event_sources,
            requests: self.filled({
                let rolled_back = self.quality.proofs.rolled_back(self.requests.policy());
                self.plan.statuses().iter().cloned().chain(rolled_back).collect()
            }),
            services: self.quality.goals.found().to_vec(),
            settings: self.held.ledger().len(),
            polling: self.plan.polling(self.known.host()),
        });
    }
}

impl Daemon<'_> {
    /// Adds measurements, tries and proofs to the status of the requests.
    fn filled(&self, requests: Vec<RequestStatus>) -> Vec<RequestStatus> {
        let ServiceMeasurement { goals, search, proofs, .. } = &self.quality;
        proofs.filled(search.filled(goals.filled(requests)))
    }
}

/// Formats the message about a setting that is not restored because another program has changed it.
pub(crate) fn left_to_others(change: &Change, found: &Setting) -> String {
    let from = change.from();
    let (object, knob, now, before) = (from.object(), from.knob(), found.value(), from.value());
    format!(
        "NOT restored, because another program has changed it: {object} {knob} is {now}, and was {before} before"
    )
}

/// Returns the current time of CLOCK_MONOTONIC, the clock that the kernel's events use.
pub(crate) fn now() -> Nanoseconds {
    linux::clock::monotonic()
}

fn watched_directories(session: &Session, journal: PathBuf) -> Vec<(PathBuf, Holds)> {
    let policy: Vec<PathBuf> = session.policy_directories(directory_of);
    let policy = policy.into_iter().map(|path| (path, Holds::Policy));
    let requests = session.app_requests().directory().to_owned();
    let parent = (directory_of(&requests), Holds::ParentOfAppRequests);
    policy.chain([(journal, Holds::Journal), (requests, Holds::AppRequests), parent]).collect()
}
