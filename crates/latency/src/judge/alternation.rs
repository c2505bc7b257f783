//! Alternates candidates, of which at most one is in force at a time. Each is applied by an ordinary
//! transaction.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use crate::live::MeasuredService;
use crate::measure::switchback::Unfair;
use apply::{Allow, Journal, Knobs, RollBackError, TransactionName};
use linux::{Kernel, KernelError, Netns};
use model::setting::Disruption;
use model::{Change, Intent, Nanoseconds, Plan, PolicyName, Setting, Step, Target as Subject};
use session::{Exit, Fault, Operator, Session, clock, cycle};

use crate::judge::candidate::Candidate;
use crate::judge::held::Proposed;

/// How long a candidate may stay in force after its window if this program dies. The next netpolicy command
/// that checks for expired transactions then rolls the candidate back.
const GRACE: Duration = Duration::from_secs(30);

/// Candidates, of which at most one is in force. Dropping this value restores the host.
#[derive(Debug)]
pub struct Alternation<'a, K: Knobs<Error = KernelError> = Kernel> {
    session: &'a Session,
    journal: Journal,
    kernel: K,
    candidates: Vec<Arm>,
    /// The candidate in force with its transaction; `None` if the current candidate changes nothing.
    in_force: Option<(usize, TransactionName)>,
    /// When the candidate in force was applied, and for how long in total each candidate was in force before
    /// that.
    since: Instant,
    in_force_for: Vec<Duration>,
    /// The journal's newest transaction when it was last checked.
    newest: Option<TransactionName>,
    /// For each candidate, its last transaction that was rolled back.
    spent: Vec<Option<TransactionName>>,
    /// The length of a window, including the pause before it.
    turn: Duration,
}

/// A candidate, with the changes that it makes on this host.
#[derive(Debug)]
struct Arm {
    plan: Plan,
    /// The settings that each object is expected to have while this candidate is in force, for all settings
    /// that any candidate changes.
    expected: Vec<Vec<Setting>>,
}

/// A switch.
#[derive(Clone, Copy, Debug)]
pub struct Switched {
    /// How long it took to write the settings and read them back.
    pub took: Duration,
    /// The number of settings that were written.
    pub written: usize,
}

impl<'a> Alternation<'a> {
    /// Plans each candidate, without writing anything. The journal must be [owned by this
    /// program](Journal::owned_by_session).
    ///
    /// # Errors
    /// If the planner refuses. Exit 7 for a candidate that cannot alternate, because it disturbs traffic or
    /// cannot be undone.
    pub fn plan(
        candidates: &[Candidate],
        target: &MeasuredService,
        session: &'a Session,
        operator: &dyn Operator,
        journal: &Journal,
        turn: Duration,
    ) -> Result<Self, Fault> {
        let mut plans = Vec::new();
        for candidate in candidates {
            plans.push(on_host(candidate, target, session, operator, Allow::default())?.plan);
        }
        Self::of_plans(plans, session, journal, turn)
    }

    /// Creates an alternation of these plans, which must all be made for the current host.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub(crate) fn of_plans(
        plans: Vec<Plan>,
        session: &'a Session,
        journal: &Journal,
        turn: Duration,
    ) -> Result<Self, Fault> {
        Self::on(Kernel::new(), plans, session, journal, turn)
    }
}

impl<'a, K: Knobs<Error = KernelError>> Alternation<'a, K> {
    /// Creates an alternation of these plans on a host.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub fn on(
        kernel: K,
        plans: Vec<Plan>,
        session: &'a Session,
        journal: &Journal,
        turn: Duration,
    ) -> Result<Self, Fault> {
        let newest = journal.newest()?;
        let candidates =
            plans.iter().map(|plan| Arm { plan: plan.clone(), expected: expected(plan, &plans) });
        let candidates: Vec<Arm> = candidates.collect();
        let spent = vec![None; candidates.len()];
        Ok(Self {
            session,
            journal: journal.clone(),
            kernel,
            candidates,
            in_force: None,
            since: Instant::now(),
            in_force_for: vec![Duration::ZERO; spent.len()],
            newest,
            spent,
            turn,
        })
    }

    /// Opens all namespaces that must stay open so that the host can be restored.
    ///
    /// # Errors
    /// If a namespace cannot be opened.
    pub fn namespaces(&self, netns: &Netns) -> Result<Vec<Netns>, Fault> {
        let all = self.candidates.iter().flat_map(|arm| Kernel::namespaces(&arm.plan));
        let all: std::collections::BTreeSet<_> = all.collect();
        let open =
            all.into_iter().map(|id| if id == netns.id() { netns.again() } else { Netns::with_id(id) });
        Ok(open.collect::<Result<_, _>>()?)
    }

    /// Returns a candidate's changes compared with the unchanged host.
    pub fn changes(&self, candidate: usize) -> &Plan {
        &self.candidates[candidate].plan
    }

    /// Whether two candidates result in the same settings on this host.
    pub fn are_same(&self, one: usize, other: usize) -> bool {
        let to = |candidate: usize| -> Vec<&Setting> {
            self.candidates[candidate].plan.changes().map(Change::to).collect()
        };
        to(one) == to(other)
    }

    /// Applies this candidate, after undoing any other.
    ///
    /// # Errors
    /// If a setting cannot be written or read back. The host is then restored, or the error lists the
    /// settings that are not.
    pub fn switch_to(&mut self, candidate: usize) -> Result<Switched, Fault> {
        let began = Instant::now();
        if self.in_force.is_some_and(|(now, _)| now == candidate) {
            return Ok(Switched { took: Duration::ZERO, written: 0 });
        }
        let mut written = self.restore()?;
        let plan = self.candidates[candidate].plan.clone();
        written += plan.changes().count();
        if !plan.is_empty() {
            let deadline = self.deadline();
            let asked = self.session.asked(Some(deadline));
            let committed = cycle::commit(
                plan,
                &mut self.kernel,
                &self.journal,
                &asked,
                Allow::default(),
                Some(deadline),
            );
            let committed = committed.map_err(|fault| self.overtaken(candidate, fault.into()))?;
            self.in_force = committed.map(|name| (candidate, name));
            self.since = began;
            self.newest = committed.or(self.newest);
        }
        Ok(Switched { took: began.elapsed(), written })
    }

    /// Returns when a transaction that begins now expires if this program does not end it before.
    fn deadline(&self) -> Nanoseconds {
        let life = u64::try_from((self.turn + GRACE).as_nanos()).unwrap_or(u64::MAX);
        Nanoseconds(clock::now().since_boot.0.saturating_add(life))
    }

    /// Adds a hint to the failure of a candidate, if another program has changed the same settings in the
    /// meantime.
    fn overtaken(&mut self, candidate: usize, fault: Fault) -> Fault {
        let mut before: Vec<Setting> =
            self.candidates[candidate].plan.changes().map(|change| change.from().clone()).collect();
        before.sort_by_key(Setting::object);
        let is_same = before
            .chunk_by(|one, other| one.object() == other.object())
            .all(|object| self.kernel.read(object).map_or(true, |now| now == object));
        match fault.is_passing() && !is_same {
            true => fault.hint(
                "another program has changed the compared settings: stop that program, then start over",
            ),
            false => fault,
        }
    }

    /// Restores the host to its state without any candidate. Returns the number of settings that were undone.
    ///
    /// # Errors
    /// If a setting cannot be restored.
    pub fn restore(&mut self) -> Result<usize, Fault> {
        let Some((candidate, name)) = self.in_force.take() else { return Ok(0) };
        let undone = match self.journal.roll_back(name, &mut self.kernel, clock::now()) {
            Ok(undone) => undone.changes.len(),
            // An operator has already rolled the transaction back.
            Err(RollBackError::NothingToUndo { .. }) => 0,
            Err(error) => {
                self.in_force = Some((candidate, name));
                return Err(error.into());
            }
        };
        self.in_force_for[candidate] += self.since.elapsed();
        // A comparison makes hundreds of transactions, so keep only one per candidate in the journal.
        if let Some(earlier) = self.spent[candidate].replace(name) {
            self.journal.forget(earlier)?;
        }
        Ok(undone)
    }

    /// Returns for how long a candidate was in force in total, including the time to write it and to restore
    /// the host.
    pub(crate) fn in_force_for(&self, candidate: usize) -> Duration {
        self.in_force_for[candidate]
    }

    /// Returns why the window that has just ended is not valid for its candidate, or `None` if it is valid.
    ///
    /// # Errors
    /// If the journal or the host cannot be read.
    pub fn disturbed(&mut self, candidate: usize) -> Result<Option<Unfair>, Fault> {
        let newest = self.journal.newest()?;
        if newest > self.newest {
            self.newest = newest;
            return Ok(Some(Unfair::Transaction));
        }
        for expected in &self.candidates[candidate].expected {
            match self.kernel.read(expected) {
                Ok(found) if found == *expected => {}
                Ok(_) => return Ok(Some(Unfair::Drift)),
                // The setting disappeared with a process that has exited. Another check reports the restart
                // of the service.
                Err(error) if K::is_gone(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Applies a candidate permanently. Returns `None` if there is nothing to write.
    ///
    /// # Errors
    /// As for [`Alternation::switch_to`].
    pub fn keep(&mut self, candidate: usize) -> Result<Option<TransactionName>, Fault> {
        self.restore()?;
        let plan = self.candidates[candidate].plan.clone();
        // The settings stay in force after this program exits. If the program is killed before the commit is
        // complete, its guard process restores them, or any netpolicy command does after the deadline.
        let asked = self.session.asked(Some(self.deadline()));
        let journal = self.journal.left_in_force();
        let kept = cycle::commit(plan, &mut self.kernel, &journal, &asked, Allow::default(), None)?;
        self.newest = kept.or(self.newest);
        Ok(kept)
    }

    /// Returns a candidate's transaction in the journal: the one in force, or otherwise the last one that was
    /// rolled back.
    pub fn transaction(&self, candidate: usize) -> Option<TransactionName> {
        match self.in_force {
            Some((now, name)) if now == candidate => Some(name),
            _ => self.spent[candidate],
        }
    }

    /// The journal.
    pub const fn journal(&self) -> &Journal {
        &self.journal
    }
}

impl<K: Knobs<Error = KernelError>> Drop for Alternation<'_, K> {
    fn drop(&mut self) {
        // If restoring fails, the guard process restores the host from the journal at the deadline.
        let _best_effort = self.restore();
    }
}

/// A candidate's plan on the current host.
pub(crate) struct OnHost {
    pub(crate) plan: Plan,
    /// The change that is applied only once, if the candidate disturbs traffic and therefore cannot
    /// alternate.
    pub(crate) once: Option<Proposed<'static>>,
}

/// Plans a candidate on the current host. `allow` determines which disruption is permitted.
pub(crate) fn on_host(
    candidate: &Candidate,
    target: &MeasuredService,
    session: &Session,
    operator: &dyn Operator,
    allow: Allow,
) -> Result<OnHost, Fault> {
    let requests = candidate.requests(target)?;
    let refused = |words: String| Fault::new(Exit::Refused, format!("candidate {}: {words}", candidate.name));
    let (mut plan, mut staged) = (Plan::default(), None);
    if !requests.whole.is_empty() {
        let policy = session.policy_of(requests.whole, allow.disruptive, false)?;
        session::fullbusy::refuse_from_outside(&policy)?;
        let planned = cycle::plan(&policy, &target.netns)?;
        if planned.desired.first_stage && !planned.plan.is_empty() {
            if !allow.disruptive {
                return Err(refused("it recreates queues, so it cannot alternate".to_owned()).hint(ONCE));
            }
            if !requests.nic.is_empty() {
                return Err(refused("it recreates queues and also changes other device settings".to_owned())
                    .hint("put both into a policy file and compare that file"));
            }
            staged = Some(Proposed::Policy(Cow::Owned(policy)));
        }
        let notes = planned.placement.parts.iter().flat_map(|part| &part.notes).chain(&planned.desired.notes);
        notes.for_each(|note| operator.detail(&format!("{}: {note}", candidate.name)));
        plan = cycle::without_inherited(planned.plan);
    }
    if !requests.nic.is_empty() {
        plan.steps.extend(device_steps(&requests.nic, &candidate.name, target, session, (&plan, allow))?);
    }
    let disruptive = plan.changes().find(|change| change.to().disruption() != Disruption::None);
    let once = match disruptive {
        Some(change) if !allow.disruptive => {
            return Err(refused(format!("{change} disturbs traffic, so it cannot alternate")).hint(ONCE));
        }
        Some(_) => Some(staged.unwrap_or_else(|| Proposed::Changes(plan.clone()))),
        None => staged,
    };
    if let Some(change) = plan.changes().find(|change| !change.from().restorable()) {
        return Err(refused(format!("{change} cannot be undone, so it is not compared")));
    }
    Ok(OnHost { plan, once })
}

/// The hint for a candidate that cannot alternate.
const ONCE: &str = "compare settings that stop neither queue nor link; or use --disruptive to apply it once and measure before, with and after it, which is less certain";

/// Returns the changes that these device settings make. Other settings of the device are kept: changes that
/// the policy `none` would make are dropped.
fn device_steps(
    settings: &[(String, model::NicRequest)],
    name: &str,
    target: &MeasuredService,
    session: &Session,
    (before, allow): (&Plan, Allow),
) -> Result<Vec<Step>, Fault> {
    let origin = format!("netpolicy compare, candidate {name}");
    let mut intents: Vec<Intent> = Vec::new();
    for (device, request) in settings {
        let subject = Subject::Device(device.clone());
        match intents.iter_mut().find(|intent| intent.target == subject) {
            Some(intent) => intent.nic.push(request.clone()),
            None => {
                let intent = Intent::new(subject, PolicyName::None, origin.as_str());
                intents.push(Intent { nic: vec![request.clone()], ..intent });
            }
        }
    }
    let bare = intents.iter().map(|intent| Intent { nic: Vec::new(), ..intent.clone() }).collect();
    let with = cycle::plan(&session.policy_of(intents, allow.disruptive, false)?, &target.netns)?.plan;
    let without = cycle::plan(&session.policy_of(bare, allow.disruptive, false)?, &target.netns)?.plan;
    let is_new = |change: &Change| {
        without.changes().chain(before.changes()).all(|other| !other.to().same_knob(change.to()))
    };
    let steps = with.steps.into_iter().filter_map(|step| {
        let changes: Vec<Change> = step.changes().iter().filter(|change| is_new(change)).cloned().collect();
        Step::try_from(changes).ok()
    });
    Ok(steps.collect())
}

/// Returns the settings that each object is expected to have while the candidate with the plan `own` is in
/// force, for all settings that any candidate changes.
fn expected(own: &Plan, all: &[Plan]) -> Vec<Vec<Setting>> {
    let mut expected: Vec<Vec<Setting>> = Vec::new();
    let mut add = |setting: &Setting| {
        let object = setting.object();
        match expected.iter_mut().find(|group| group[0].object() == object) {
            Some(group) if group.iter().any(|known| known.same_knob(setting)) => {}
            Some(group) => group.push(setting.clone()),
            None => expected.push(vec![setting.clone()]),
        }
    };
    own.changes().map(Change::to).for_each(&mut add);
    all.iter().flat_map(Plan::changes).map(Change::from).for_each(&mut add);
    expected
}
