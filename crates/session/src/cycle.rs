//! The main cycle: observe → place → plan → commit → keep or roll back. Each step returns the input of the
//! next one.

use apply::{Allow, CommitError, Journal, KeepError, Knobs, TransactionName, TransactionOrigin};
use linux::{Kernel, KernelError};
use model::{EpollId, Host, Nanoseconds, Object, Plan, Policy};
use plan::{Desired, Placement, Refusal, Resolved, ServiceState};

use crate::fault::{Fault, privileges};
use crate::services;
use crate::source::HostSource;

/// The result of planning a policy on this host.
#[derive(Debug)]
pub struct Planned {
    /// The host at planning time.
    pub host: Host,
    /// The objects that each request gets.
    pub placement: Placement,
    /// The desired settings, each with its value and reason.
    pub desired: Desired,
    /// The differences between the host and the desired settings, in the order of writing.
    pub plan: Plan,
}

impl Planned {
    /// Returns the message for a plan without changes.
    ///
    /// # Errors
    /// If it is unknown whether the host matches the policy, because a matching service that could not be
    /// inspected may be running.
    pub fn as_asked(&self) -> Result<&'static str, Fault> {
        let has = |runs| self.placement.parts.iter().any(|part| part.runs == runs);
        if has(ServiceState::NotKnown) {
            let words =
                "whether the host matches the policy is unknown: some processes could not be inspected";
            return Err(Fault::failed(words).hint(privileges()));
        }
        Ok(match (self.wants_defaults(), has(ServiceState::No)) {
            (true, _) => "the policy results in the kernel's defaults here, and they are in force",
            (false, true) => "the host already matches the policy for all running services",
            (false, false) => "the host already matches the policy",
        })
    }

    /// Returns whether each request only has a policy, and that policy resolves to the kernel's default
    /// delivery on this host, as `latency` does on a veth.
    pub fn wants_defaults(&self) -> bool {
        let parts = &self.placement.parts;
        !parts.is_empty()
            && parts.iter().all(|part| {
                part.runs != ServiceState::No
                    && part.intent.nic.is_empty()
                    && part.delivery.is_default_despite(&part.intent)
            })
    }
}

/// Why a plan is not in force.
#[derive(Debug)]
pub enum NotInForce {
    /// The plan could not be committed.
    Commit(CommitError<KernelError>),
    /// The transaction was committed, but could not be recorded as kept.
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

/// Plans what to change for a policy on the host at this moment. Changes nothing.
///
/// # Errors
/// If the host cannot be read, or the planner refuses.
pub fn plan(policy: &Policy, source: &dyn HostSource) -> Result<Planned, Fault> {
    let (resolved, processes) = services::resolve_on(policy, source)?; // Policy → the processes of its services
    let host = source.observe(&processes)?; // Linux → Host
    let resolved = services::without_ended(resolved, &host, source); // processes may exit while they are inspected
    let placement = place(policy, &host, resolved)?;
    let (desired, plan) = plan_placed(&placement, &host).map_err(|refusal| Fault::refused(refusal, &host))?;
    Ok(Planned { host, placement, desired, plan })
}

/// Finds the objects that serve each request on an observed host. This is the first half of [`plan()`].
///
/// # Errors
/// If the planner refuses.
pub fn place(policy: &Policy, host: &Host, resolved: Resolved) -> Result<Placement, Fault> {
    let refused = |refusal| Fault::refused(refusal, host);
    let selection = plan::select(policy, host).without_clashes().map_err(refused)?; // Policy × Host → which devices each request is for
    let resolved = selection.noting(resolved);
    plan::place(&selection.policy, host, &resolved).map_err(refused) // Policy × Host → Placement
}

/// Plans what a placement changes. This is the second half of [`plan()`].
///
/// # Errors
/// If the planner refuses.
pub fn plan_placed(placement: &Placement, host: &Host) -> Result<(Desired, Plan), Refusal> {
    let desired = plan::desired(placement, host)?; // Placement × Host → Desired
    let plan = plan::diff(&desired, host)?; // Desired × Host → Plan
    Ok((desired, plan))
}

/// Plans a policy that names each of its devices, on an observed host. Both the commands and the daemon use
/// this function.
///
/// # Errors
/// If the planner refuses.
pub fn plan_on(
    policy: &Policy,
    host: &Host,
    resolved: &Resolved,
) -> Result<(Placement, Desired, Plan), Refusal> {
    let placement = plan::place(policy, host, resolved)?; // Policy × Host → Placement
    let (desired, plan) = plan_placed(&placement, host)?;
    Ok((placement, desired, plan))
}

/// Refuses a first stage if the second stage would be refused. Before the queues are recreated, only changes
/// to existing objects can be checked.
///
/// # Errors
/// As for [`commit`]. Nothing was changed.
pub fn refuse_second_stage(planned: &Planned, journal: &Journal, allow: Allow) -> Result<(), Fault> {
    if !planned.desired.first_stage || planned.plan.is_empty() {
        return Ok(());
    }
    let host = plan::after_first_stage(&planned.host, &planned.plan);
    // A refusal by the planner may be due to queues that do not exist yet, so ignore it.
    let Ok((_, later)) = plan_placed(&planned.placement, &host) else { return Ok(()) };
    let refused = apply::refuse_early(&later, &mut Kernel::new(), journal, allow);
    refused.map_err(|error| Fault::from(NotInForce::Commit(error)))
}

/// Commits a plan and keeps it, either permanently or, unless it is confirmed, until a deadline. Returns
/// `None` if there was nothing to commit.
///
/// # Errors
/// If a setting cannot be written, read back or recorded. The error includes the state of the host.
pub fn commit<K: Knobs<Error = KernelError>>(
    plan: Plan,
    kernel: &mut K,
    journal: &Journal,
    asked: &TransactionOrigin,
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

/// Commits a plan permanently: see [`commit`].
///
/// # Errors
/// As for [`commit`].
pub fn keep(
    plan: Plan,
    journal: &Journal,
    asked: &TransactionOrigin,
    allow: Allow,
) -> Result<Option<TransactionName>, Fault> {
    Ok(commit(plan, &mut Kernel::new(), journal, asked, allow, None)?)
}

/// Commits a plan until a deadline: see [`commit`].
///
/// # Errors
/// As for [`commit`].
pub fn hold(
    plan: Plan,
    journal: &Journal,
    asked: &TransactionOrigin,
    allow: Allow,
    deadline: Nanoseconds,
) -> Result<Option<TransactionName>, Fault> {
    Ok(commit(plan, &mut Kernel::new(), journal, asked, allow, Some(deadline))?)
}

/// Removes repeated changes of the same epoll from a plan. A forked process inherits the epolls of its
/// parent, so one epoll has several names. After the first write, the repeated changes would find a changed
/// value.
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
