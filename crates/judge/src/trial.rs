//! A change of settings under guard: it is judged on the traffic of services, and put back where it hurts one.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use apply::{Allow, AtExit, Journal, TransactionName};
use linux::{Kernel, Netns};
use live::{Cost, Sampler, Selection, Target};
use measure::sequential::PAIRS_MAX;
use measure::switchback::{Figures, Metric, Rule, Switchback, Unfair};
use model::setting::Disruption;
use model::{
    Chance, Guarded, JudgedBy, Judgement, Limits, Nanoseconds, Plan, Policy, Ruling, Target as Subject,
};
use plan::{Part, Placement, Runs};
use session::{Exit, Fault, Operator, Session, clock, cycle};

use crate::alternation::Alternation;
use crate::held::HeldChange;
use crate::judgement::changes_of;
use crate::lock::ComparisonLock;

/// Whose traffic judges a change, and what that service may suffer.
#[derive(Clone, Debug)]
pub struct Watched {
    /// The service.
    pub selection: Selection,
    /// What may grow, and by how much.
    pub limits: Limits,
    /// What must have become less for the change to be kept; `None` where it is enough that nothing is beyond its limit.
    pub gain: Option<Guarded>,
}

/// A change of settings that is put under guard.
#[derive(Debug)]
pub struct Proposal<'a> {
    /// What is asked for.
    pub policy: &'a Policy,
    /// What of it is changed, where that is known: it must be such that it can alternate.
    pub changes: Option<Plan>,
    /// Where.
    pub netns: Netns,
    /// What may be done unasked.
    pub allow: Allow,
    /// On whose traffic it is judged.
    pub watched: Vec<Watched>,
    /// For how long.
    pub within: Duration,
    /// The seed of the order of windows.
    pub seed: u64,
}

/// The most services that one guard looks at: each has programs of its own in the kernel.
pub const SERVICES_MAX: usize = 4;

/// The length of a window. A second shows a stall of a second.
const WINDOW: Duration = Duration::from_secs(1);

/// How long to wait after a switch until a window begins.
const SETTLES: Duration = Duration::from_millis(100);

/// How many windows are measured before the change: whether there is traffic to judge by; and where the change cannot be alternated, what it is
/// compared with.
const REFERENCE: usize = 2;
const REFERENCE_HELD: usize = 10;

/// The fewest pairs by which a change is kept: fewer could not have refused it.
pub(crate) const PAIRS_MIN: usize = 6;

/// How much longer than asked a turn may take before what it shows is the machine's doing.
const LATE: Duration = Duration::from_millis(500);

/// The longest sleep between two looks at the service and at signals.
const NAP: Duration = Duration::from_millis(20);

/// How a trial came out.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Why the change is kept, or is not.
    pub ruling: Ruling,
    /// The same for each service, with what was measured.
    pub judgements: Vec<Judgement>,
    /// How long it took, from the first window with the change.
    pub took: Duration,
    /// How long each switch took that wrote something.
    pub switches: Vec<Duration>,
    /// The last transactions that brought the change into force: they have the verdict. Those of a change that was put back are rolled back.
    pub transactions: Vec<TransactionName>,
}

impl Outcome {
    /// Whether nothing speaks against the change.
    pub fn is_kept(&self) -> bool {
        matches!(self.ruling, Ruling::Kept | Ruling::Better)
    }
}

/// A service that is measured.
struct Service {
    target: Target,
    sampler: Sampler,
    limits: Vec<(Metric, f64)>,
    /// What must become less.
    gain: Option<Metric>,
    rounds: Switchback,
    /// Windows before the change.
    reference: Vec<Figures>,
}

/// How the change is judged.
enum Way<'a> {
    /// It is in force and not, in turn.
    Alternates(Box<Alternation<'a>>),
    /// It stays in force.
    Stays(HeldChange<'a>),
}

/// What ends a trial before its time.
enum Early {
    Interrupted,
    Ended(String),
    Stalled,
    Beyond,
    /// What must become less has grown, or there is a word on it that is not that it is less.
    NoGain,
}

/// A change that can be tried. Dropping it puts everything back.
pub struct Trial<'a> {
    services: Vec<Service>,
    way: Way<'a>,
    plan: Plan,
    netns: Netns,
    within: Duration,
    switches: Vec<Duration>,
    chance: Chance,
    session: &'a Session,
    _lock: ComparisonLock,
}

impl std::fmt::Debug for Trial<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trial").field("within", &self.within).finish_non_exhaustive()
    }
}

impl<'a> Trial<'a> {
    /// Finds the services, plans the change and loads what measures. Writes nothing. `None` if there is nothing to change.
    ///
    /// # Errors
    /// What the planner refuses; a service that cannot be measured; another comparison or guard under way; a change that cannot be put back.
    pub fn prepare(
        proposal: Proposal<'a>,
        session: &'a Session,
        operator: &'a dyn Operator,
    ) -> Result<Option<Self>, Fault> {
        let Proposal { policy, changes, netns, allow, watched, within, seed } = proposal;
        if watched.is_empty() {
            return Err(refused(
                "no service was named: a guard judges a change by the requests of a service",
            ));
        }
        if watched.len() > SERVICES_MAX {
            return Err(refused(format!(
                "{} services under guard, and at most {SERVICES_MAX} are measured at once",
                watched.len()
            )));
        }
        let lock = ComparisonLock::take(session, netns.id())?;
        let (plan, stays) = match changes {
            Some(plan) if is_disruptive(&plan) => {
                return Err(refused("a change that stops a queue or the link cannot alternate")
                    .hint("netpolicy apply --disruptive makes it, and judges it while it stays in force"));
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
            return Err(refused(format!("{change} cannot be put back, and so not be put under guard"))
                .hint("apply it without the guard, with --allow-irreversible"));
        }
        let mut services = Vec::new();
        for watched in watched {
            services.push(Service::find(&watched, session, operator)?);
        }
        let way = match stays {
            true => Way::Stays(HeldChange::new(policy, netns.again()?, allow, session)),
            false => {
                let journal = session.journal()?.owned_by_session(AtExit::RollBack)?;
                let plans = vec![Plan::default(), plan.clone()];
                let alternation = Alternation::of_plans(plans, session, &journal, WINDOW + SETTLES)?;
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
            switches: Vec::new(),
            chance,
            session,
            _lock: lock,
        }))
    }

    /// What is changed, as it was planned first.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How it is judged.
    pub const fn by(&self) -> JudgedBy {
        match self.way {
            Way::Alternates(_) => JudgedBy::Switchback,
            Way::Stays(_) => JudgedBy::BeforeAfter,
        }
    }

    /// The services, by name.
    pub fn services(&self) -> Vec<String> {
        self.services.iter().map(|service| service.target.name.clone()).collect()
    }

    /// The namespaces that have to be held open to put everything back.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub fn namespaces(&self) -> Result<Vec<Netns>, Fault> {
        let all = Kernel::namespaces(&self.plan).into_iter().map(|id| match id == self.netns.id() {
            true => self.netns.again(),
            false => Netns::with_id(id),
        });
        Ok(all.collect::<Result<_, _>>()?)
    }

    /// How long it takes at most, with what is measured before.
    pub fn takes(&self) -> Duration {
        let reference = u32::try_from(self.reference_windows()).unwrap_or(u32::MAX);
        self.within + (WINDOW + SETTLES) * (reference + 2)
    }

    fn reference_windows(&self) -> usize {
        match self.way {
            Way::Alternates(_) => REFERENCE,
            Way::Stays(_) => REFERENCE_HELD,
        }
    }

    /// Measures the services as they are. Writes nothing.
    ///
    /// # Errors
    /// Exit 7 where there are too few requests to judge by what is to be guarded.
    pub fn measure_before(&mut self, stop: &mut dyn FnMut() -> bool) -> Result<(), Fault> {
        // What is polled, and when clients come back, is known after a window.
        for window in 0..=self.reference_windows() {
            let figures = match self.window(stop)? {
                Ok((figures, _)) => figures,
                Err(Early::Ended(service)) => return Err(Fault::failed(format!("{service} ended"))),
                Err(_) => return Err(Fault::failed("interrupted; nothing was changed")),
            };
            if window > 0 {
                self.services.iter_mut().zip(figures).for_each(|(one, figures)| one.reference.push(figures));
            }
        }
        self.services.iter().try_for_each(Service::can_be_judged)
    }

    /// Brings the change into force, judges it, and puts it back, whatever it comes to: [`Trial::keep`] is another step where it alternates. A change that
    /// stays in force is put back if the outcome is against it, and else stays held until `deadline`.
    ///
    /// # Errors
    /// What could not be written or put back, with the state of the host.
    pub fn run(
        &mut self,
        deadline: Nanoseconds,
        stop: &mut dyn FnMut() -> bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Outcome, Fault> {
        let began = Instant::now();
        let judged = match self.way {
            Way::Alternates(_) => self.alternate(began, stop, progress),
            Way::Stays(_) => self.hold(deadline, began, stop, progress),
        };
        let took = began.elapsed();
        let ruling = match &judged {
            Ok(None) if self.services.iter().any(|one| one.rounds.rounds() < PAIRS_MIN) => Ruling::NotJudged,
            Ok(None) => self.services.iter().find_map(Service::on_gain).unwrap_or(Ruling::Kept),
            Ok(Some(Early::Interrupted)) => Ruling::Interrupted,
            Ok(Some(Early::Ended(_))) => Ruling::ServiceEnded,
            Ok(Some(Early::Stalled)) => Ruling::Stalled,
            Ok(Some(Early::Beyond)) => Ruling::BeyondLimit,
            Ok(Some(Early::NoGain)) => Ruling::Worse,
            Err(_) => Ruling::Interrupted,
        };
        // Before anything else is looked at: the service waits.
        let transactions = match &mut self.way {
            Way::Alternates(alternation) => {
                alternation.restore()?;
                alternation.transaction(CHANGED).into_iter().collect()
            }
            Way::Stays(held) => {
                if !matches!(ruling, Ruling::Kept | Ruling::Better) {
                    held.roll_back()?;
                }
                held.transactions().to_vec()
            }
        };
        judged?;
        let by = self.by();
        let judgements = self.services.iter().map(|service| service.judgement(ruling, by, took)).collect();
        let switches = std::mem::take(&mut self.switches);
        let outcome = Outcome { ruling, judgements, took, switches, transactions };
        if !outcome.is_kept() {
            note(&self.session.journal()?, &outcome.transactions, &outcome.judgements)?;
        }
        Ok(outcome)
    }

    /// Keeps a change that was judged, for good.
    ///
    /// # Errors
    /// What could not be written.
    pub fn keep(&mut self, outcome: &Outcome) -> Result<Vec<TransactionName>, Fault> {
        let kept: Vec<TransactionName> = match &mut self.way {
            Way::Alternates(alternation) => alternation.keep(CHANGED)?.into_iter().collect(),
            Way::Stays(held) => held.confirm()?,
        };
        note(&self.session.journal()?, &kept, &outcome.judgements)?;
        Ok(kept)
    }

    /// Pairs of windows with and without the change, in random order.
    fn alternate(
        &mut self,
        began: Instant,
        stop: &mut dyn FnMut() -> bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Option<Early>, Fault> {
        let round_takes = (WINDOW + SETTLES) * 2;
        for _ in 0..PAIRS_MAX {
            if began.elapsed() + round_takes > self.within {
                break;
            }
            let mut order = [UNCHANGED, CHANGED];
            self.chance.shuffle(&mut order);
            let mut pair: [Vec<Figures>; 2] = [Vec::new(), Vec::new()];
            let mut void = None;
            for arm in order {
                let turn = Instant::now();
                let Way::Alternates(alternation) = &mut self.way else { return Ok(None) };
                let switched = match alternation.switch_to(arm) {
                    Ok(switched) => switched,
                    // What it changes went with the process.
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
                if self.stalled(&pair[arm]) {
                    return Ok(Some(Early::Stalled));
                }
                let Way::Alternates(alternation) = &mut self.way else { return Ok(None) };
                let late = turn.elapsed() > switched.took + SETTLES + WINDOW + LATE || switched.took > LATE;
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

    /// Windows with the change, each compared with one of those before it, by chance.
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
            if began.elapsed() + WINDOW + SETTLES > self.within {
                break;
            }
            let (changed, late) = match self.window(stop)? {
                Ok(window) => window,
                Err(early) => return Ok(Some(early)),
            };
            if self.stalled(&changed) {
                return Ok(Some(Early::Stalled));
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

    /// Adds a pair of windows of each service, and says whether one is beyond its limits.
    fn judge(&mut self, unchanged: &[Figures], changed: &[Figures], void: Option<Unfair>) -> Option<Early> {
        let limits: usize = self.services.iter().map(|service| service.limits.len()).sum();
        let stays = matches!(self.way, Way::Stays(_));
        for (at, service) in self.services.iter_mut().enumerate() {
            service.rounds.add(&[unchanged[at], changed[at]], void);
            if service.is_beyond(limits, stays) {
                return Some(Early::Beyond);
            }
            if service.on_gain() == Some(Ruling::Worse) {
                return Some(Early::NoGain);
            }
        }
        None
    }

    /// One window of each service, at the same time. With it, whether the machine stood still meanwhile.
    fn window(&mut self, stop: &mut dyn FnMut() -> bool) -> Result<Result<Measured, Early>, Fault> {
        let began = Instant::now();
        if let Some(early) = self.wait(began + SETTLES, stop) {
            return Ok(Err(early));
        }
        for service in &mut self.services {
            service.sampler.begin()?;
        }
        let takes = self.services.iter().map(|service| service.sampler.takes()).max().unwrap_or(WINDOW);
        let early = self.wait(Instant::now() + takes, stop);
        let mut figures = Vec::new();
        for service in &mut self.services {
            let sample = service.sampler.end()?;
            let cost = Cost::of(&sample);
            figures.push(Figures::of(&sample.window, cost.service, cost.delivery));
        }
        if let Some(early) = early {
            return Ok(Err(early));
        }
        let late = began.elapsed() > SETTLES + takes + LATE;
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

    /// A service of which a process has ended.
    fn ended(&self) -> Option<String> {
        let ended = self.services.iter().find(|service| !service.sampler.all_run());
        ended.map(|service| service.target.name.clone())
    }

    /// Whether requests of a service wait without an answer, and did not before.
    fn stalled(&self, figures: &[Figures]) -> bool {
        self.services.iter().zip(figures).any(|(service, figures)| service.is_stalled(figures))
    }

    /// How far it is, in one line.
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

/// A window of each service, and why it does not count.
type Measured = (Vec<Figures>, Option<Unfair>);

/// The host as it is, and the host with the change.
const UNCHANGED: usize = 0;
const CHANGED: usize = 1;

impl Service {
    fn find(watched: &Watched, session: &Session, operator: &dyn Operator) -> Result<Self, Fault> {
        let target = Target::of(&watched.selection, session, operator)?;
        let sampler = Sampler::load(&target, WINDOW)?;
        let limits: Vec<(Metric, f64)> =
            watched.limits.iter().map(|(guarded, growth)| (metric_of(guarded), growth.share())).collect();
        for finding in &target.findings {
            operator.say(&format!("{}: {}", target.name, finding.summary));
        }
        let gain = watched.gain.map(metric_of);
        let mut deciding: Vec<Metric> = limits.iter().map(|(metric, _)| *metric).collect();
        deciding.extend(gain.filter(|gain| !deciding.contains(gain)));
        // Where clients wait for answers their rate is the change's own doing: pairs with different rates count.
        deciding.push(Metric::Requests);
        let rule = Rule { deciding, margin: 0.0, alpha: Rule::ALPHA };
        let rounds = Switchback::new(vec!["before".to_owned(), "after".to_owned()], rule);
        Ok(Self { target, sampler, limits, gain, rounds, reference: Vec::new() })
    }

    /// Whether there are requests enough for what is guarded.
    fn can_be_judged(&self) -> Result<(), Fault> {
        let name = &self.target.name;
        let windows = self.reference.len();
        let limits = self.limits.iter().map(|(metric, _)| *metric);
        let all: BTreeSet<Metric> = limits.chain(self.gain).collect();
        for metric in all {
            let known = self.reference.iter().filter(|figures| metric.of(figures).is_some()).count();
            if known * 2 > windows {
                continue;
            }
            let requests: u64 = self.reference.iter().map(|figures| figures.requests).sum();
            let each = requests / u64::try_from(windows.max(1)).unwrap_or(1);
            if requests == 0 {
                return Err(refused(format!(
                    "{name} took no request in {windows} s: there is nothing to judge by"
                ))
                .hint("wait for traffic, or apply it without the guard: netpolicy apply --no-guard"));
            }
            let words = match metric {
                Metric::Cpu => format!("what a request of {name} costs cannot be measured"),
                _ => format!("{name} takes {each} requests a second, too few for its {metric}"),
            };
            return Err(
                refused(words).hint("guard p50 or p90: they take 20 and 100 requests a second, p99 1000")
            );
        }
        Ok(())
    }

    /// Whether no request was answered, or one waits for so long; and that is new.
    fn is_stalled(&self, figures: &Figures) -> bool {
        let before = |is: fn(&Figures) -> bool| self.reference.iter().any(is);
        let silent = figures.requests == 0 && !before(|figures| figures.requests == 0);
        silent || (figures.stalled() && !before(Figures::stalled))
    }

    /// Whether the pairs so far refuse that what is guarded has grown by no more than its limit.
    fn is_beyond(&self, limits: usize, stays: bool) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "a handful of limits")]
        let refused = (limits.max(1) as f64 / Rule::ALPHA).ln();
        self.limits.iter().any(|(metric, limit)| {
            let spread = if stays { self.spread(*metric) } else { 0.0 };
            let most = (limit.ln_1p() + spread).exp_m1();
            self.rounds.rounds() >= PAIRS_MIN && self.rounds.against_growth(CHANGED, *metric, most) >= refused
        })
    }

    /// What the pairs say of what must become less, by the whole interval: [`Ruling::Better`], [`Ruling::Worse`], or that there is no word on it;
    /// `None` where nothing must.
    fn on_gain(&self) -> Option<Ruling> {
        let interval = self.rounds.change(CHANGED, self.gain?).change;
        Some(word_on_gain(interval.and_then(|bounds| bounds.low), interval.and_then(|bounds| bounds.high)))
    }

    /// By how much the highest window before the change was above the middle one, as a logarithm: that much a window differs from another anyway.
    fn spread(&self, metric: Metric) -> f64 {
        let known = self.reference.iter().filter_map(|figures| metric.of(figures));
        let logs: Vec<f64> = known.filter(|value| *value > 0.0).map(f64::ln).collect();
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        measure::statistics::median(&logs).map_or(0.0, |middle| (most - middle).max(0.0))
    }

    fn judgement(&self, ruling: Ruling, by: JudgedBy, took: Duration) -> Judgement {
        let mut changes = changes_of(&self.rounds.changes(CHANGED));
        for change in &mut changes {
            let limit = self.limits.iter().find(|(metric, _)| metric.as_str() == change.metric);
            change.limit = limit.map(|(_, limit)| *limit);
            let must_gain = self.gain.is_some_and(|gain| gain.as_str() == change.metric);
            change.decides = limit.is_some() || must_gain;
        }
        changes.sort_by_key(|change| !change.decides);
        Judgement {
            unix_micros: clock::now().unix_micros,
            service: self.target.name.clone(),
            with: "the settings before".to_owned(),
            ruling,
            by,
            pairs: self.rounds.rounds(),
            void: self.rounds.voided().iter().map(|(_, rounds)| rounds).sum(),
            seconds: took.as_secs_f64(),
            changes,
        }
    }
}

/// What an interval for a change says where less is better and only a gain counts: it lies below zero, above it, or holds it.
fn word_on_gain(low: Option<f64>, high: Option<f64>) -> Ruling {
    if high.is_some_and(|high| high < 0.0) {
        Ruling::Better
    } else if low.is_some_and(|low| low > 0.0) {
        Ruling::Worse
    } else {
        Ruling::CannotTell
    }
}

/// The metric that a limit is about.
pub const fn metric_of(guarded: Guarded) -> Metric {
    match guarded {
        Guarded::P50 => Metric::P50,
        Guarded::P90 => Metric::P90,
        Guarded::P99 => Metric::P99,
        Guarded::Cpu => Metric::Cpu,
    }
}

/// Whether a plan stops traffic while it is written: that cannot be done every second.
fn is_disruptive(plan: &Plan) -> bool {
    plan.changes().any(|change| change.to().disruption() != Disruption::None)
}

fn note(journal: &Journal, names: &[TransactionName], judgements: &[Judgement]) -> Result<(), Fault> {
    for name in names {
        for judgement in judgements {
            journal.note_judgement(*name, judgement)?;
        }
    }
    Ok(())
}

fn refused(words: impl Into<String>) -> Fault {
    Fault::new(Exit::Refused, words.into())
}

/// What a policy says of guards, on this host.
#[derive(Clone, Debug, Default)]
pub struct Guards {
    /// The services that have one, and run.
    pub watched: Vec<Watched>,
    /// The services that have one, and do not run: no change hurts them now.
    pub absent: Vec<String>,
    /// The longest time that one of them is watched for.
    pub within: Option<Nanoseconds>,
}

/// The guards of a policy's services; of all its services, where these limits are for all of them.
pub fn guards(policy: &Policy, placement: &Placement, limits: Option<Limits>) -> Guards {
    let mut guards = Guards::default();
    for intent in &policy.intents {
        let Subject::Service(name, _) = &intent.target else { continue };
        let Some(limits) = limits.or_else(|| intent.guard.map(|guard| guard.limits)) else { continue };
        let is_it = |part: &&Part| matches!(&part.intent.target, Subject::Service(other, _) if other == name);
        let mut parts = placement.parts.iter().filter(is_it).peekable();
        let selection = Selection::Service(name.clone());
        if parts.peek().is_some() && parts.all(|part| part.runs == Runs::No) {
            guards.absent.push(name.clone());
        } else if guards.watched.iter().all(|known| known.selection != selection) {
            guards.within = guards.within.max(intent.guard.map(|guard| guard.within));
            guards.watched.push(Watched { selection, limits, gain: None });
        }
    }
    guards
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_gain_is_shown_by_the_whole_interval_and_nothing_less() {
        for (low, high, word) in [
            (Some(-0.6), Some(-0.1), Ruling::Better),
            (None, Some(-0.1), Ruling::Better),
            (Some(-0.6), Some(0.01), Ruling::CannotTell),
            (Some(-0.6), None, Ruling::CannotTell),
            (Some(-0.01), Some(0.3), Ruling::CannotTell),
            (Some(0.02), Some(0.3), Ruling::Worse),
            (Some(0.02), None, Ruling::Worse),
            (None, None, Ruling::CannotTell),
        ] {
            assert_eq!(word_on_gain(low, high), word, "{low:?} to {high:?}");
        }
    }
}
