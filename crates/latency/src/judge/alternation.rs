//! Candidates that are in force in turn, each by the ordinary transaction.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use crate::live::Target;
use apply::{Allow, Journal, Knobs, RollBackError, TransactionName};
use linux::{Kernel, Netns};
use measure::switchback::Unfair;
use model::setting::Disruption;
use model::{Change, Intent, Nanoseconds, Plan, PolicyName, Setting, Step, Target as Subject};
use session::{Exit, Fault, Operator, Session, clock, cycle};

use crate::judge::candidate::Candidate;
use crate::judge::held::Proposed;

/// How long a candidate stays in force after its window should have ended, if its program dies: then whichever netpolicy looks next restores it.
const GRACE: Duration = Duration::from_secs(30);

/// Candidates of which at most one is in force. Dropping it restores everything.
#[derive(Debug)]
pub struct Alternation<'a> {
    session: &'a Session,
    journal: Journal,
    kernel: Kernel,
    candidates: Vec<Arm>,
    /// The candidate whose plan is in force, where it has one, and its transaction.
    in_force: Option<(usize, TransactionName)>,
    /// The newest transaction of the journal when this one last looked.
    newest: Option<TransactionName>,
    /// The last transaction of each candidate that was rolled back.
    spent: Vec<Option<TransactionName>>,
    /// How long a window lasts, with what goes before it.
    turn: Duration,
}

/// A candidate with what it changes on this host.
#[derive(Debug)]
struct Arm {
    plan: Plan,
    /// What its settings are while it is in force, and those of the others: by object.
    expected: Vec<Vec<Setting>>,
}

/// A switch.
#[derive(Clone, Copy, Debug)]
pub struct Switched {
    /// How long it took to write and read back.
    pub took: Duration,
    /// How many settings were written.
    pub written: usize,
}

impl<'a> Alternation<'a> {
    /// Works out what each candidate changes. Writes nothing. The journal must be [owned by this program](Journal::owned_by_session).
    ///
    /// # Errors
    /// What the planner refuses. Exit 7 for a candidate that cannot be alternated: it disturbs traffic, or cannot be restored.
    pub fn plan(
        candidates: &[Candidate],
        target: &Target,
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

    /// The same, of what each candidate changes on the host as it is.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub(crate) fn of_plans(
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
            kernel: Kernel::new(),
            candidates,
            in_force: None,
            newest,
            spent,
            turn,
        })
    }

    /// The namespaces that have to be held open to restore everything.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub fn namespaces(&self, netns: &Netns) -> Result<Vec<Netns>, Fault> {
        let all = self.candidates.iter().flat_map(|arm| Kernel::namespaces(&arm.plan));
        let all: std::collections::BTreeSet<_> = all.collect();
        let open =
            all.into_iter().map(|id| if id == netns.id() { netns.again() } else { Netns::with_id(id) });
        Ok(open.collect::<Result<_, _>>()?)
    }

    /// What a candidate changes on the host as it is without any of them.
    pub fn changes(&self, candidate: usize) -> &Plan {
        &self.candidates[candidate].plan
    }

    /// Whether two candidates come to the same on this host.
    pub fn are_same(&self, one: usize, other: usize) -> bool {
        let to = |candidate: usize| -> Vec<&Setting> {
            self.candidates[candidate].plan.changes().map(Change::to).collect()
        };
        to(one) == to(other)
    }

    /// Brings a candidate into force, and no other.
    ///
    /// # Errors
    /// What could not be written or read back. The host is then as before all of them, or the error says how it is.
    pub fn switch_to(&mut self, candidate: usize) -> Result<Switched, Fault> {
        let began = Instant::now();
        if self.in_force.is_some_and(|(now, _)| now == candidate) {
            return Ok(Switched { took: Duration::ZERO, written: 0 });
        }
        let mut written = self.restore()?;
        let plan = self.candidates[candidate].plan.clone();
        written += plan.changes().count();
        if !plan.is_empty() {
            let life = u64::try_from((self.turn + GRACE).as_nanos()).unwrap_or(u64::MAX);
            let deadline = Nanoseconds(clock::now().since_boot.0.saturating_add(life));
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
            self.newest = committed.or(self.newest);
        }
        Ok(Switched { took: began.elapsed(), written })
    }

    /// Why a candidate could not be brought into force, with what to do where another has set the same meanwhile.
    fn overtaken(&mut self, candidate: usize, fault: Fault) -> Fault {
        let mut before: Vec<Setting> =
            self.candidates[candidate].plan.changes().map(|change| change.from().clone()).collect();
        before.sort_by_key(Setting::object);
        let is_same = before
            .chunk_by(|one, other| one.object() == other.object())
            .all(|object| self.kernel.read(object).map_or(true, |now| now == object));
        match fault.is_passing() && !is_same {
            true => fault
                .hint("another program has changed the compared settings: start over once it no longer does"),
            false => fault,
        }
    }

    /// Restores the host to what it was without any candidate. Returns how many settings were written.
    ///
    /// # Errors
    /// What could not be restored.
    pub fn restore(&mut self) -> Result<usize, Fault> {
        let Some((candidate, name)) = self.in_force.take() else { return Ok(0) };
        let undone = match self.journal.roll_back(name, &mut self.kernel, clock::now()) {
            Ok(undone) => undone.changes.len(),
            // An operator has rolled it back already.
            Err(RollBackError::NothingToUndo { .. }) => 0,
            Err(error) => {
                self.in_force = Some((candidate, name));
                return Err(error.into());
            }
        };
        // Keep one transaction per candidate in the journal: a comparison makes hundreds.
        if let Some(earlier) = self.spent[candidate].replace(name) {
            self.journal.forget(earlier)?;
        }
        Ok(undone)
    }

    /// Why the window that has just ended does not show what the candidate does.
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
                // The process exited and took the setting with it: the restart is reported elsewhere.
                Err(error) if Kernel::is_gone(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Brings a candidate into force for good. `None` if there is nothing to write.
    ///
    /// # Errors
    /// As [`Alternation::switch_to`].
    pub fn keep(&mut self, candidate: usize) -> Result<Option<TransactionName>, Fault> {
        self.restore()?;
        let plan = self.candidates[candidate].plan.clone();
        // Keep the journal entry after exit: the settings no longer belong to this program.
        let journal = self.session.journal()?;
        let kept = cycle::commit(
            plan,
            &mut self.kernel,
            &journal,
            &self.session.asked(None),
            Allow::default(),
            None,
        )?;
        self.newest = kept.or(self.newest);
        Ok(kept)
    }

    /// The transaction of a candidate that is in the journal: the one in force, or the last one that was rolled back.
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

impl Drop for Alternation<'_> {
    fn drop(&mut self) {
        // If this fails, the guard restores the host from the journal at the deadline.
        let _best_effort = self.restore();
    }
}

/// What a candidate comes to on the host as it is.
pub(crate) struct OnHost {
    /// What it changes.
    pub(crate) plan: Plan,
    /// What is brought into force, where it disturbs traffic and so is not alternated.
    pub(crate) once: Option<Proposed<'static>>,
}

/// What a candidate comes to on the host as it is, with what may be done to traffic for it.
pub(crate) fn on_host(
    candidate: &Candidate,
    target: &Target,
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
                    .hint("write both into a policy file and compare that file"));
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

/// What can be done about a candidate that is not alternated.
const ONCE: &str = "compare settings that stop neither queue nor link; or use --disruptive to apply it once and measure before, with and after it, which is less certain";

/// What settings of devices change, beside what `none` would change of these devices: that stays as it is.
fn device_steps(
    settings: &[(String, model::NicRequest)],
    name: &str,
    target: &Target,
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

/// What the settings of all candidates are while one is in force, by object.
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
