//! Tries a change under guard, like a canary: a switchback experiment on the traffic of services, which stops
//! as soon as an e-process ([`crate::measure::sequential`]) has a result. If the change harms a service, it
//! is rolled back.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::live::{Cost, ServiceSelection};
use crate::measure::live::Unpaired;
use crate::measure::sequential::PAIRS_MAX;
use crate::measure::switchback::{Figures, Unfair};
use apply::{Allow, AtExit, TransactionName};
use linux::process::PromptThread;
use linux::{Kernel, Netns};
use model::setting::Disruption;
use model::{
    Chance, Change, Finding, Guarded, JudgedBy, Judgement, Limits, Nanoseconds, Plan, Policy, Ruling,
    Target as Subject,
};
use plan::{PlacedRequest, Placement, ServiceState};
use session::{Exit, Fault, HostState, Operator, Session, cycle};

use crate::judge::alternation::Alternation;
use crate::judge::held::{HeldChange, Proposed};
use crate::judge::lock::ComparisonLock;

mod service;

pub use service::JudgedService;
pub use service::ServiceForesight;
use service::{CHANGED, SETTLES_MOST, Service, UNCHANGED, WINDOW_LONGEST, WINDOW_SETTLES, refused};
pub(crate) use service::{PAIRS_MIN, is_refused, windows_of};

/// A change that is to be tried under guard.
#[derive(Debug)]
pub struct Proposal<'a> {
    /// The policy to try.
    pub policy: &'a Policy,
    /// The changes, if the caller has planned them. They must be able to alternate.
    pub changes: Option<Plan>,
    /// The network namespace.
    pub netns: Netns,
    /// The allowed disruption.
    pub allow: Allow,
    /// The services whose traffic judges the change.
    pub watched: Vec<JudgedService>,
    /// How long to judge the change.
    pub within: Duration,
    /// The seed for the random order of windows.
    pub seed: u64,
}

/// The maximum number of services per guard. Each needs its own BPF programs.
pub const SERVICES_MAX: usize = 4;

/// The number of windows before the change. They show whether there is enough traffic for a verdict. For a
/// change that cannot alternate, more windows are measured, as its reference.
const REFERENCE: usize = 2;
const REFERENCE_HELD: usize = 10;

/// The minimum and maximum number of windows before the change that are as long as those of the alternation,
/// and the time after which only the minimum is measured. These windows show the noise, and whether requests
/// stall even without the change.
const REFERENCE_SHORT: std::ops::RangeInclusive<usize> = 8..=32;
const REFERENCE_TIME: Duration = Duration::from_secs(3);

/// The maximum delay of a valid window. A window that is later reflects the state of the machine, not the
/// change.
const LATE: Duration = Duration::from_millis(500);

/// The longest sleep between two checks for signals and for the exit of a service.
const NAP: Duration = Duration::from_millis(20);

/// The outcome of a trial.
#[derive(Clone, Debug)]
pub struct TrialOutcome {
    /// The ruling: whether the change was kept, and why.
    pub ruling: Ruling,
    /// The judgement of each service, with its measurements.
    pub judgements: Vec<Judgement>,
    /// The duration of the trial, from the first window with the change.
    pub took: Duration,
    /// For how long the change was in force.
    pub changed_for: Duration,
    /// The duration of each switch in which something was written.
    pub switches: Vec<Duration>,
    /// For each service, the differences of the valid pairs: the logarithm of a quantity with the change
    /// divided by the quantity without it.
    pub differences: Vec<BTreeMap<Guarded, Vec<f64>>>,
    /// Predictions of what the guard can detect, given the noise before the change.
    pub foresight: Vec<ServiceForesight>,
    /// The last transactions of the change, with which the verdict is recorded. They are rolled back if the
    /// change was reverted.
    pub transactions: Vec<TransactionName>,
    /// Why the journal does not contain the verdict, for example because the disk is full; `None` if it does.
    pub unnoted: Option<String>,
    /// For each service, how the network differed between windows with and without the change.
    pub findings: Vec<Finding>,
}

impl TrialOutcome {
    /// Whether the change was kept.
    pub fn is_kept(&self) -> bool {
        self.ruling.is_kept()
    }
}

/// The method by which the change is judged.
enum Way<'a> {
    /// The change alternates with the unchanged host.
    Alternates(Box<Alternation<'a>>),
    /// The change stays in force while it is judged.
    Stays(HeldChange<'a>),
}

/// Why a trial ended early.
enum Early {
    Interrupted,
    Ended(String),
    Stalled,
    /// The service's clients have closed their connections.
    Left,
    Beyond,
    /// The metric that must decrease has increased.
    NoGain,
}

/// A prepared trial. Dropping this value restores the host.
pub struct GuardedTrial<'a> {
    services: Vec<Service>,
    way: Way<'a>,
    plan: Plan,
    netns: Netns,
    within: Duration,
    /// The length of each window. The pause before it is in `settles`.
    window: Duration,
    settles: Duration,
    switches: Vec<Duration>,
    changed_for: Duration,
    chance: Chance,
    session: &'a Session,
    _lock: ComparisonLock,
}

impl std::fmt::Debug for GuardedTrial<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trial").field("within", &self.within).finish_non_exhaustive()
    }
}

impl<'a> GuardedTrial<'a> {
    /// Finds the services, plans the change and loads the meter, without writing anything. Returns `None` if
    /// there is nothing to change.
    ///
    /// # Errors
    /// If the planner refuses, a service cannot be measured, another comparison or guard is running, or the
    /// change cannot be undone.
    pub fn prepare(
        proposal: Proposal<'a>,
        session: &'a Session,
        operator: &'a dyn Operator,
    ) -> Result<Option<Self>, Fault> {
        let Proposal { policy, changes, netns, allow, watched, within, seed } = proposal;
        if watched.is_empty() {
            return Err(refused("no service is named: a guard judges a change by the requests of a service"));
        }
        if watched.len() > SERVICES_MAX {
            return Err(refused(format!(
                "{} services are guarded; at most {SERVICES_MAX} can be measured at once",
                watched.len()
            )));
        }
        let lock = ComparisonLock::take(session, &netns)?;
        let (plan, stays) = match changes {
            Some(plan) if is_disruptive(&plan) => {
                return Err(refused("a change that stops a queue or the link cannot alternate").hint(
                    "netpolicy apply --disruptive applies it once, and judges it while it is in force",
                ));
            }
            Some(plan) => (plan, false),
            None => {
                let planned = cycle::plan(policy, &netns)?;
                Session::report(&planned, operator);
                if planned.plan.is_empty() {
                    planned.as_asked()?;
                    return Ok(None);
                }
                let stays = planned.desired.first_stage || is_disruptive(&planned.plan);
                (cycle::without_inherited(planned.plan), stays)
            }
        };
        if let Some(change) = plan.changes().find(|change| !change.from().restorable()) {
            return Err(refused(format!("{change} cannot be undone, so no guard can judge it"))
                .hint("apply it without the guard, with --allow-irreversible"));
        }
        if let Some(change) = plan.changes().find(|change| stops_traffic(change) && !allow.disruptive) {
            return Err(refused(format!("{change} disturbs traffic"))
                .hint("--disruptive applies it once, and judges it while it is in force"));
        }
        let mut services = Vec::new();
        for watched in watched {
            services.push(Service::find(&watched, session, operator)?);
        }
        let named = services.first().map_or("", |service| service.target.name.as_str());
        if let Some(hidden) = crate::live::moderation_differs(named, [&Plan::default(), &plan]) {
            operator.say(&format!("{}: {}", hidden.summary, hidden.evidence.join(", ")));
        }
        let way = match stays {
            true => {
                let proposed = Proposed::Policy(Cow::Borrowed(policy));
                Way::Stays(HeldChange::new(proposed, netns.again()?, allow, session))
            }
            false => {
                let journal = session.journal()?.owned_by_session(AtExit::RollBack)?;
                let plans = vec![Plan::default(), plan.clone()];
                let alternation =
                    Alternation::of_plans(plans, session, &journal, WINDOW_LONGEST + SETTLES_MOST)?;
                Way::Alternates(Box::new(alternation))
            }
        };
        let chance = Chance::new(seed);
        Ok(Some(Self {
            services,
            way,
            plan,
            netns,
            within,
            window: WINDOW_LONGEST,
            settles: SETTLES_MOST,
            switches: Vec::new(),
            changed_for: Duration::ZERO,
            chance,
            session,
            _lock: lock,
        }))
    }

    /// Returns the change as it was planned first.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the method by which the change is judged.
    pub const fn by(&self) -> JudgedBy {
        match self.way {
            Way::Alternates(_) => JudgedBy::Switchback,
            Way::Stays(_) => JudgedBy::BeforeAfter,
        }
    }

    /// The names of the services.
    pub fn services(&self) -> Vec<String> {
        self.services.iter().map(|service| service.target.name.clone()).collect()
    }

    /// Opens all namespaces that must stay open so that the host can be restored.
    ///
    /// # Errors
    /// If a namespace cannot be opened.
    pub fn namespaces(&self) -> Result<Vec<Netns>, Fault> {
        let all = Kernel::namespaces(&self.plan).into_iter().map(|id| match id == self.netns.id() {
            true => self.netns.again(),
            false => Netns::with_id(id),
        });
        Ok(all.collect::<Result<_, _>>()?)
    }

    /// Returns the maximum duration of the trial, including the windows before the change.
    pub fn takes(&self) -> Duration {
        let windows = self.reference_windows() + REFERENCE_SHORT.start() + 2;
        let before = (WINDOW_LONGEST + SETTLES_MOST) * u32::try_from(windows).unwrap_or(u32::MAX);
        self.within + before + REFERENCE_TIME
    }

    /// Returns the number of reference windows that are as long as those of the alternation.
    fn short_windows(&self) -> usize {
        let turns = REFERENCE_TIME.as_nanos() / self.turn().as_nanos().max(1);
        usize::try_from(turns).unwrap_or(usize::MAX).clamp(*REFERENCE_SHORT.start(), *REFERENCE_SHORT.end())
    }

    /// Returns, for each service, predictions of what the guard can detect; empty if the change does not
    /// alternate.
    pub fn foresight(&self) -> Vec<ServiceForesight> {
        if matches!(self.way, Way::Stays(_)) {
            return Vec::new();
        }
        let bets = self.services.iter().map(|service| service.limits.len() + service.implied.len()).sum();
        let of = |service: &Service| ServiceForesight {
            service: service.target.name.clone(),
            seconds: self.within.as_secs_f64(),
            figures: service.foresight(self.turn() * 2, self.within, bets),
        };
        self.services.iter().map(of).filter(|one| !one.figures.is_empty()).collect()
    }

    fn reference_windows(&self) -> usize {
        match self.way {
            Way::Alternates(_) => REFERENCE,
            Way::Stays(_) => REFERENCE_HELD,
        }
    }

    /// Measures the services before the change, without writing anything.
    ///
    /// # Errors
    /// Exit 7 if there are too few requests to judge the guarded metrics.
    pub fn measure_before(&mut self, stop: &mut dyn FnMut() -> bool) -> Result<(), Fault> {
        let _prompt = self.prompt();
        // Measure one additional window first: it only shows which NAPIs are polled, and when clients
        // reconnect.
        self.refer(1, stop)?;
        self.refer(self.reference_windows(), stop)?;
        self.services.iter_mut().try_for_each(Service::can_be_judged)?;
        for service in &mut self.services {
            service.connected =
                linux::process::connections(&service.target.netns, &service.target.ports.tcp)? > 0;
        }
        if matches!(self.way, Way::Alternates(_)) {
            self.settles = self.services.iter().map(Service::settles).max().unwrap_or(SETTLES_MOST);
            let window = self.services.iter().map(Service::window).max().unwrap_or(WINDOW_LONGEST);
            self.window = window.max(self.settles * WINDOW_SETTLES);
            for service in &mut self.services {
                service.sampler.set_window_len(self.window);
            }
            self.refer(self.short_windows(), stop)?;
        }
        Ok(())
    }

    /// Measures this many windows before the change, which replace the previous reference.
    fn refer(&mut self, windows: usize, stop: &mut dyn FnMut() -> bool) -> Result<(), Fault> {
        self.services.iter_mut().for_each(|service| service.reference.clear());
        for _ in 0..windows {
            let figures = match self.window(stop)? {
                Ok((figures, _)) => figures,
                Err(Early::Ended(service)) => return Err(Fault::failed(format!("{service} ended"))),
                Err(_) => return Err(Fault::failed("interrupted; nothing was changed")),
            };
            self.services.iter_mut().zip(figures).for_each(|(one, figures)| one.reference.push(figures));
        }
        Ok(())
    }

    /// Applies the change and judges it. A change that alternates is undone afterwards, whatever the outcome;
    /// [`GuardedTrial::keep`] applies it permanently. A change that stays in force is rolled back if the
    /// outcome is negative; otherwise it stays on trial until `deadline`.
    ///
    /// # Errors
    /// If a setting cannot be written or restored. The error describes the state of the host.
    pub fn run(
        &mut self,
        deadline: Nanoseconds,
        stop: &mut dyn FnMut() -> bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<TrialOutcome, Fault> {
        let began = Instant::now();
        let judged = match self.way {
            Way::Alternates(_) => {
                self.stay_attached(true);
                let judged = self.alternate(began, stop, progress);
                self.stay_attached(false);
                judged
            }
            Way::Stays(_) => self.hold(deadline, began, stop, progress),
        };
        let took = began.elapsed();
        let ruling = match &judged {
            Ok(None)
                if self
                    .services
                    .iter()
                    .any(|one| one.rounds.rounds() < PAIRS_MIN || one.network_differs()) =>
            {
                Ruling::NotJudged
            }
            Ok(None) => self.services.iter().find_map(Service::on_gain).unwrap_or(Ruling::Kept),
            Ok(Some(Early::Left)) => Ruling::ClientsLeft,
            Ok(Some(Early::Interrupted)) => Ruling::Interrupted,
            Ok(Some(Early::Ended(_))) => Ruling::ServiceEnded,
            Ok(Some(Early::Stalled)) => Ruling::Stalled,
            Ok(Some(Early::Beyond)) => Ruling::BeyondLimit,
            Ok(Some(Early::NoGain)) => Ruling::Worse,
            // An exited process may also make the meter fail, so this case comes first.
            Err(_) if self.ended().is_some() => Ruling::ServiceEnded,
            Err(_) => Ruling::Interrupted,
        };
        // Restore the host before anything else, because the change affects the service until then.
        let transactions = match &mut self.way {
            Way::Alternates(alternation) => {
                alternation.restore()?;
                self.changed_for = alternation.in_force_for(CHANGED);
                alternation.transaction(CHANGED).into_iter().collect()
            }
            Way::Stays(held) => {
                if !ruling.is_kept() {
                    held.roll_back()?;
                }
                self.changed_for = took;
                held.transactions().to_vec()
            }
        };
        if let (Err(fault), true) = (judged, ruling != Ruling::ServiceEnded) {
            return Err(Fault { exit: Exit::RolledBack, ..fault }.leaving(HostState::Restored));
        }
        let by = self.by();
        let judgements = self.services.iter().map(|service| service.judgement(ruling, by, took)).collect();
        let switches = std::mem::take(&mut self.switches);
        let findings =
            self.services.iter().filter_map(|one| one.rounds.loss_differs(&one.target.name)).collect();
        let differences = self.services.iter().map(Service::differences).collect();
        let changed_for = self.changed_for;
        let mut outcome = TrialOutcome {
            ruling,
            judgements,
            took,
            changed_for,
            switches,
            differences,
            foresight: self.foresight(),
            transactions,
            unnoted: None,
            findings,
        };
        if !outcome.is_kept() {
            outcome.unnoted = self.unnoted(&outcome.transactions, &outcome.judgements);
        }
        Ok(outcome)
    }

    /// Makes a judged change permanent.
    ///
    /// # Errors
    /// If a setting cannot be written.
    pub fn keep(&mut self, outcome: &mut TrialOutcome) -> Result<Vec<TransactionName>, Fault> {
        let kept: Vec<TransactionName> = match &mut self.way {
            Way::Alternates(alternation) => alternation.keep(CHANGED)?.into_iter().collect(),
            Way::Stays(held) => held.confirm()?,
        };
        outcome.unnoted = self.unnoted(&kept, &outcome.judgements);
        Ok(kept)
    }

    /// Records a verdict in the journal. If this fails, returns the reason; the decision is not affected.
    fn unnoted(&self, names: &[TransactionName], judgements: &[Judgement]) -> Option<String> {
        let noted = self.session.journal().map_err(|fault| fault.cause.to_string());
        let noted = noted.and_then(|journal| {
            let mut all = names.iter().flat_map(|name| judgements.iter().map(|one| (*name, one)));
            all.try_for_each(|(name, one)| journal.note_judgement(name, one)).map_err(|e| e.to_string())
        });
        noted.err()
    }

    /// Lets this thread run in time on a busy host while it measures a window.
    fn prompt(&self) -> PromptThread {
        PromptThread::begin(self.services.iter().map(|service| service.sampler.processes()).sum())
    }

    fn stay_attached(&mut self, stays: bool) {
        self.services.iter_mut().for_each(|service| service.sampler.stay_attached(stays));
    }

    /// Measures pairs of windows with and without the change, in random order.
    fn alternate(
        &mut self,
        began: Instant,
        stop: &mut dyn FnMut() -> bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Option<Early>, Fault> {
        let round_takes = self.turn() * 2;
        for _ in 0..PAIRS_MAX {
            if began.elapsed() + round_takes > self.within {
                break;
            }
            let mut order = [UNCHANGED, CHANGED];
            self.chance.shuffle(&mut order);
            let mut pair: [Vec<Figures>; 2] = [Vec::new(), Vec::new()];
            let mut void = None;
            for arm in order {
                // On a busy host, this thread would otherwise wait for a CPU for half of the time.
                let _prompt = self.prompt();
                let began_at = Instant::now();
                let Way::Alternates(alternation) = &mut self.way else { return Ok(None) };
                let switched = match alternation.switch_to(arm) {
                    Ok(switched) => switched,
                    // If a process of the service has exited, the settings have disappeared with it.
                    Err(fault) => match self.ended() {
                        Some(service) => return Ok(Some(Early::Ended(service))),
                        None => return Err(fault),
                    },
                };
                if switched.written > 0 {
                    self.switches.push(switched.took);
                }
                pair[arm] = match self.window(stop)? {
                    Ok((figures, late)) => {
                        void = void.or(late);
                        figures
                    }
                    Err(early) => return Ok(Some(early)),
                };
                if let Some(early) = self.stalled(&pair[arm], arm == CHANGED)? {
                    return Ok(Some(early));
                }
                let late = began_at.elapsed() > switched.took + self.turn() + LATE || switched.took > LATE;
                let Way::Alternates(alternation) = &mut self.way else { return Ok(None) };
                void = void.or(alternation.disturbed(arm)?).or(late.then_some(Unfair::Machine));
            }
            let [unchanged, changed] = pair;
            if let Some(early) = self.judge(&unchanged, &changed, void) {
                return Ok(Some(early));
            }
            progress(&self.words(began.elapsed()));
        }
        Ok(None)
    }

    /// Measures windows with the change, and pairs each with a random window from before the change.
    fn hold(
        &mut self,
        deadline: Nanoseconds,
        began: Instant,
        stop: &mut dyn FnMut() -> bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Option<Early>, Fault> {
        let Way::Stays(held) = &mut self.way else { return Ok(None) };
        held.commit(deadline)?;
        for _ in 0..PAIRS_MAX {
            if began.elapsed() + self.turn() > self.within {
                break;
            }
            let (changed, late) = match self.window(stop)? {
                Ok(window) => window,
                Err(early) => return Ok(Some(early)),
            };
            if let Some(early) = self.stalled(&changed, true)? {
                return Ok(Some(early));
            }
            let reference = u32::try_from(REFERENCE_HELD).unwrap_or(1);
            let before = usize::try_from(self.chance.below(reference)).unwrap_or(0);
            let unchanged: Vec<Figures> =
                self.services.iter().map(|service| service.reference[before]).collect();
            if let Some(early) = self.judge(&unchanged, &changed, late) {
                return Ok(Some(early));
            }
            progress(&self.words(began.elapsed()));
        }
        Ok(None)
    }

    /// Adds a pair of windows of each service. If the change must be reverted, returns the reason.
    fn judge(&mut self, unchanged: &[Figures], changed: &[Figures], void: Option<Unfair>) -> Option<Early> {
        for (at, service) in self.services.iter_mut().enumerate() {
            service.rounds.add(&[unchanged[at], changed[at]], void);
        }
        let stays = matches!(self.way, Way::Stays(_));
        let bets: Vec<f64> = self.services.iter().flat_map(|service| service.bets(stays)).collect();
        if is_refused(&bets) {
            return Some(Early::Beyond);
        }
        self.services.iter().any(|service| service.on_gain() == Some(Ruling::Worse)).then_some(Early::NoGain)
    }

    /// Returns the length of a window plus the pause before it.
    fn turn(&self) -> Duration {
        self.settles + self.window
    }

    /// Measures one window of all services at the same time. Also returns whether the machine stalled during
    /// the window. After an error, no program is attached for any service.
    fn window(&mut self, stop: &mut dyn FnMut() -> bool) -> Result<Result<WindowFigures, Early>, Fault> {
        let measured = self.measure_window(stop);
        if measured.is_err() {
            self.services.iter_mut().for_each(|service| service.sampler.detach());
        }
        measured
    }

    fn measure_window(
        &mut self,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Result<WindowFigures, Early>, Fault> {
        let began = Instant::now();
        if let Some(early) = self.wait(began + self.settles, stop) {
            return Ok(Err(early));
        }
        for service in &mut self.services {
            service.sampler.begin()?;
        }
        let takes = self.services.iter().map(|service| service.sampler.takes()).max().unwrap_or(self.window);
        let early = self.wait(Instant::now() + takes, stop);
        let mut figures = Vec::new();
        for service in &mut self.services {
            let sample = service.sampler.end()?;
            let cost = Cost::of(&sample);
            service.unpaired = Unpaired::of(&sample.window.counts);
            figures.push(Figures::of(&sample.window, cost.service, cost.delivery));
        }
        if let Some(early) = early {
            return Ok(Err(early));
        }
        let late = began.elapsed() > self.settles + takes + LATE;
        Ok(Ok((figures, late.then_some(Unfair::Machine))))
    }

    fn wait(&self, until: Instant, stop: &mut dyn FnMut() -> bool) -> Option<Early> {
        loop {
            if stop() {
                return Some(Early::Interrupted);
            }
            if let Some(service) = self.ended() {
                return Some(Early::Ended(service));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            std::thread::sleep(left.min(NAP));
        }
    }

    /// Returns the name of a service of which a process has exited, if any.
    fn ended(&self) -> Option<String> {
        let ended = self.services.iter().find(|service| !service.sampler.all_run());
        ended.map(|service| service.target.name.clone())
    }

    /// Returns an early end if the requests of a service stall or no longer arrive, although they did not do
    /// so before the change.
    fn stalled(&mut self, figures: &[Figures], changed: bool) -> Result<Option<Early>, Fault> {
        for (service, figures) in self.services.iter_mut().zip(figures) {
            if !service.is_stalled(figures, changed) {
                continue;
            }
            // If the clients have closed all connections, they have left; a hung server would keep
            // connections open.
            let target = &service.target;
            let left = match service.connected {
                true => linux::process::connections(&target.netns, &target.ports.tcp)? == 0,
                // If no datagram is unanswered, the clients have left; with a hung server, some datagrams
                // would be.
                false => !target.ports.udp.is_empty() && !service.began_waiting(),
            };
            return Ok(Some(if left { Early::Left } else { Early::Stalled }));
        }
        Ok(None)
    }

    /// Formats the progress of the trial in one line.
    fn words(&self, elapsed: Duration) -> String {
        let of = |service: &Service| {
            let changes = service.limits.iter().map(|(metric, _)| service.rounds.change(CHANGED, *metric));
            let changes = changes.filter(|change| change.change.is_some());
            let changes: Vec<String> = changes.map(|change| format!("{} {change}", change.metric)).collect();
            format!("{}: {} pairs, {}", service.target.name, service.rounds.rounds(), changes.join(", "))
        };
        let services: Vec<String> = self.services.iter().map(of).collect();
        format!("{:.0} of {} s; {}", elapsed.as_secs_f64(), self.within.as_secs(), services.join("; "))
    }
}

/// The figures of each service in a window, and why the window is not valid, if it is not.
type WindowFigures = (Vec<Figures>, Option<Unfair>);

/// Whether writing a plan stops traffic, so that the plan cannot be repeated every second.
fn is_disruptive(plan: &Plan) -> bool {
    plan.changes().any(stops_traffic)
}

fn stops_traffic(change: &Change) -> bool {
    change.to().disruption() != Disruption::None
}

/// The services of a policy that have a guard.
#[derive(Clone, Debug, Default)]
pub struct PolicyGuards {
    /// Running services with a guard.
    pub watched: Vec<JudgedService>,
    /// Services with a guard that are not running, so that no change can harm them now.
    pub absent: Vec<String>,
    /// The longest duration of these guards.
    pub within: Option<Nanoseconds>,
}

/// Returns the guards of a policy's services. If `limits` is given, it applies to all services of the policy.
pub fn guards(policy: &Policy, placement: &Placement, limits: Option<Limits>) -> PolicyGuards {
    let mut guards = PolicyGuards::default();
    for intent in &policy.intents {
        let Subject::Service(name, _) = &intent.target else { continue };
        let Some(limits) = limits.or_else(|| intent.guard.map(|guard| guard.limits)) else { continue };
        let is_it = |part: &&PlacedRequest| matches!(&part.intent.target, Subject::Service(other, _) if other == name);
        let mut parts = placement.parts.iter().filter(is_it).peekable();
        let selection = ServiceSelection::Service(name.clone());
        if parts.peek().is_some() && parts.all(|part| part.runs == ServiceState::No) {
            guards.absent.push(name.clone());
        } else if guards.watched.iter().all(|known| known.selection != selection) {
            guards.within = guards.within.max(intent.guard.map(|guard| guard.within));
            guards.watched.push(JudgedService { selection, limits, gain: None });
        }
    }
    guards
}
