//! The spine: observe → place → plan → commit → keep or roll back. One producer for each type; read from the top.

use apply::{Allow, Asked, CommitError, Journal, KeepError, TransactionName};
use linux::{Kernel, KernelError, Netns};
use model::{EpollId, Host, Nanoseconds, Object, Plan, Policy};
use plan::{Desired, Placement, Refusal, Resolved, Running};

use crate::fault::{Fault, privileges};
use crate::services;

/// What a policy comes to on this host.
#[derive(Debug)]
pub struct Planned {
    /// The host as it was when this was planned.
    pub host: Host,
    /// Which objects serve which request.
    pub placement: Placement,
    /// Every knob with its value and its reason.
    pub desired: Desired,
    /// Only what differs, in the order of writing.
    pub plan: Plan,
}

impl Planned {
    /// The message for a plan without changes.
    ///
    /// # Errors
    /// If that is not known, because a service may run that could not be seen.
    pub fn as_asked(&self) -> Result<&'static str, Fault> {
        let has = |runs| self.placement.parts.iter().any(|part| part.runs == runs);
        if has(Running::NotKnown) {
            let words =
                "cannot tell whether the host matches the policy: some processes could not be inspected";
            return Err(Fault::failed(words).hint(privileges()));
        }
        Ok(match has(Running::No) {
            true => "the host is as the policy says for the services that run",
            false => "the host is as the policy says",
        })
    }
}

/// Why a plan is not in force.
#[derive(Debug)]
pub enum NotInForce {
    /// It could not be committed.
    Commit(CommitError<KernelError>),
    /// It was, and could not be noted as kept.
    Keep(KeepError),
}

impl From<NotInForce> for Fault {
    fn from(error: NotInForce) -> Self {
        match error {
            NotInForce::Commit(error) => Self::from(error),
            NotInForce::Keep(error) => Self::from(error),
        }
    }
}

/// Works out what a policy changes on the host as it is now. Writes nothing.
///
/// # Errors
/// A host that cannot be read, and what the planner refuses.
pub fn plan(policy: &Policy, netns: &Netns) -> Result<Planned, Fault> {
    let (resolved, processes) = services::resolve(policy)?; // Policy → whose processes they are now
    let host = linux::observe(netns, &processes)?; // Linux → Host
    let resolved = services::without_ended(resolved, &host); // processes end while they are looked at
    let placement = place(policy, &host, resolved)?;
    let (desired, plan) = plan_placed(&placement, &host).map_err(|refusal| Fault::refused(refusal, &host))?;
    Ok(Planned { host, placement, desired, plan })
}

/// Finds the objects of every request on a host that is known already: the first half of [`plan()`].
///
/// # Errors
/// What the planner refuses.
pub fn place(policy: &Policy, host: &Host, resolved: Resolved) -> Result<Placement, Fault> {
    let refused = |refusal| Fault::refused(refusal, host);
    let selection = plan::select(policy, host).without_clashes().map_err(refused)?; // Policy × Host → which devices each request is for
    let resolved = selection.noting(resolved);
    plan::place(&selection.policy, host, &resolved).map_err(refused) // Policy × Host → Placement
}

/// What of a placement is not in force: the second half of [`plan()`].
///
/// # Errors
/// What the planner refuses.
pub fn plan_placed(placement: &Placement, host: &Host) -> Result<(Desired, Plan), Refusal> {
    let desired = plan::desired(placement, host)?; // Placement × Host → Desired
    let plan = plan::diff(&desired, host)?; // Desired × Host → Plan
    Ok((desired, plan))
}

/// The same on a host that is known already, with a request for each device: what the commands and the daemon have in
/// common.
///
/// # Errors
/// What the planner refuses.
pub fn plan_on(
    policy: &Policy,
    host: &Host,
    resolved: &Resolved,
) -> Result<(Placement, Desired, Plan), Refusal> {
    let placement = plan::place(policy, host, resolved)?; // Policy × Host → Placement
    let (desired, plan) = plan_placed(&placement, host)?;
    Ok((placement, desired, plan))
}

/// Refuses a first stage whose second stage would be refused, as far as that is known before the queues are recreated: what it
/// changes of objects that are there already.
///
/// # Errors
/// As [`commit`]; nothing was changed.
pub fn refuse_second_stage(planned: &Planned, journal: &Journal, allow: Allow) -> Result<(), Fault> {
    if !planned.desired.first_stage || planned.plan.is_empty() {
        return Ok(());
    }
    let host = plan::after_first_stage(&planned.host, &planned.plan);
    // What the planner refuses here may be about queues that are not there yet.
    let Ok((_, later)) = plan_placed(&planned.placement, &host) else { return Ok(()) };
    let refused = apply::refuse_early(&later, &mut Kernel::new(), journal, allow);
    refused.map_err(|error| Fault::from(NotInForce::Commit(error)))
}

/// Commits a plan and keeps it: for good, or until a deadline unless it is confirmed. `None` if there was nothing to commit.
///
/// # Errors
/// What could not be written, read back or noted, and the state that the host is in.
pub fn commit(
    plan: Plan,
    kernel: &mut Kernel,
    journal: &Journal,
    asked: &Asked,
    allow: Allow,
    until: Option<Nanoseconds>,
) -> Result<Option<TransactionName>, NotInForce> {
    let held = apply::commit(plan, kernel, journal, asked, allow).map_err(NotInForce::Commit)?; // Plan → Held, read back
    let transaction = held.transaction();
    let kept = match until {
        Some(deadline) => held.hold_until(deadline),
        None => held.keep(),
    };
    kept.map_err(NotInForce::Keep)?;
    Ok(transaction)
}

/// As [`commit`], for good.
///
/// # Errors
/// As [`commit`].
pub fn keep(
    plan: Plan,
    journal: &Journal,
    asked: &Asked,
    allow: Allow,
) -> Result<Option<TransactionName>, Fault> {
    Ok(commit(plan, &mut Kernel::new(), journal, asked, allow, None)?)
}

/// As [`commit`], until a deadline.
///
/// # Errors
/// As [`commit`].
pub fn hold(
    plan: Plan,
    journal: &Journal,
    asked: &Asked,
    allow: Allow,
    deadline: Nanoseconds,
) -> Result<Option<TransactionName>, Fault> {
    Ok(commit(plan, &mut Kernel::new(), journal, asked, allow, Some(deadline))?)
}

/// A plan in which each epoll is set once. A process that forks leaves its epolls to its children: theirs is the same epoll
/// under another name, which would be found changed when its turn came.
pub fn without_inherited(plan: Plan) -> Plan {
    let mut seen: Vec<EpollId> = Vec::new();
    let steps = plan.steps.into_iter().filter(|step| {
        let Object::Epoll(epoll) = step.object() else { return true };
        let known = seen
            .iter()
            .any(|&other| other.process != epoll.process && linux::process::same_epoll(other, epoll));
        if !known {
            seen.push(epoll);
        }
        !known
    });
    Plan { steps: steps.collect() }
}
