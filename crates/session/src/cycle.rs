//! The spine: observe → place → plan → commit → keep or roll back. One producer for each type; read from the top.

use apply::{Allow, Asked, Journal, TransactionName};
use linux::{Kernel, Netns};
use model::{Host, Nanoseconds, Plan, Policy};
use plan::{Desired, Placement, Runs};

use crate::fault::{Fault, PRIVILEGES};
use crate::services;

/// What a policy comes to on this host.
#[derive(Debug)]
pub struct Planned {
    /// The host as it was when this was planned.
    pub host: Host,
    /// Who lives where.
    pub placement: Placement,
    /// Every knob with its value and its reason.
    pub desired: Desired,
    /// Only what differs, in the order of writing.
    pub plan: Plan,
}

impl Planned {
    /// What can be said of a host on which nothing is to be changed.
    ///
    /// # Errors
    /// If that is not known, because a service may run that could not be seen.
    pub fn as_asked(&self) -> Result<&'static str, Fault> {
        let has = |runs| self.placement.parts.iter().any(|part| part.runs == runs);
        if has(Runs::NotKnown) {
            let words = "whether the host is as the policy says is not known: there are processes that could not be looked into";
            return Err(Fault::failed(words).hint(PRIVILEGES));
        }
        Ok(match has(Runs::No) {
            true => "the host is as the policy says for the services that run",
            false => "the host is as the policy says",
        })
    }
}

/// Works out what a policy changes. Writes nothing.
pub fn plan(policy: &Policy, netns: &Netns) -> Result<Planned, Fault> {
    let (resolved, processes) = services::resolve(policy, netns)?; // Policy → whose processes they are now
    let host = linux::observe(netns, &processes)?; // Linux → Host
    let refused = |refusal| Fault::refused(refusal, &host);
    let placement = plan::place(policy, &host, &resolved).map_err(refused)?; // Policy × Host → Placement
    let desired = plan::desired(&placement, &host).map_err(refused)?; // Placement × Host → Desired
    let plan = plan::diff(&desired, &host).map_err(refused)?; // Desired × Host → Plan
    Ok(Planned { host, placement, desired, plan })
}

/// Commits a plan and keeps it. `None` if there was nothing to commit.
pub fn keep(
    plan: Plan,
    journal: &Journal,
    asked: &Asked,
    allow: Allow,
) -> Result<Option<TransactionName>, Fault> {
    let mut kernel = Kernel::new();
    let held = apply::commit(plan, &mut kernel, journal, asked, allow)?; // Plan → Held, read back
    let transaction = held.transaction();
    held.keep()?;
    Ok(transaction)
}

/// Commits a plan and keeps it until a deadline, unless it is confirmed. `None` if there was nothing to commit.
pub fn hold(
    plan: Plan,
    journal: &Journal,
    asked: &Asked,
    allow: Allow,
    deadline: Nanoseconds,
) -> Result<Option<TransactionName>, Fault> {
    let mut kernel = Kernel::new();
    let held = apply::commit(plan, &mut kernel, journal, asked, allow)?; // Plan → Held, read back
    let transaction = held.transaction();
    held.hold_until(deadline)?;
    Ok(transaction)
}
