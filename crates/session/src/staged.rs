//! Planning and committing once, or twice where the first plan recreates queues: settings of a queue can be planned only
//! when the queue exists. What is known of the second stage already is checked before the first. Each stage is a transaction of its own and is undone by itself, the last one first. If the
//! second stage fails, the first is rolled back with it.

use std::collections::BTreeSet;

use apply::{Allow, TransactionName};
use linux::{Netns, Processes};
use model::{DeviceId, NicKnob, Offload, Plan, Policy, Setting};

use crate::clock;
use crate::cycle;
use crate::exit::Exit;
use crate::fault::{Fault, HostState};
use crate::idle::Watch;
use crate::operator::Operator;
use crate::session::Session;

/// How many stages there are: queues, and the settings of queues. A device that would recreate its queues once more for
/// the same values did not keep them, and read-back reported that in the first stage.
const STAGES_MAX: usize = 2;

/// The words that a command uses for its outcome.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    /// Why nothing is to be changed, if so; `None` for what the policy files come to.
    pub nothing: Option<&'a str>,
    /// What was done, in one word.
    pub done: &'a str,
}

/// Works out what a policy changes, commits it and keeps it.
pub fn keep(
    policy: &Policy,
    netns: &Netns,
    allow: Allow,
    words: &Words<'_>,
    session: &Session,
    operator: &dyn Operator,
) -> Result<Exit, Fault> {
    let idle = Watch::before(policy, operator);
    let (mut earlier, mut so_far) = (None, SoFar::default());
    for _ in 0..STAGES_MAX {
        match stage(policy, netns, allow, words, session, operator, &mut so_far) {
            Ok((Some(transaction), true)) => earlier = Some(transaction),
            Ok(_) => break,
            Err(fault) => {
                return Err(match earlier {
                    Some(earlier) => taken_back(fault, earlier, session, operator),
                    None => fault,
                });
            }
        }
    }
    if !so_far.changes.is_empty() {
        idle.after(operator);
        report_waiting_offloads(&so_far.changes, netns, operator)?;
    }
    Ok(Exit::Done)
}

/// Reports the offloads that were switched and are not as requested: the kernel keeps the request, and switches them when it can.
fn report_waiting_offloads(changes: &Plan, netns: &Netns, operator: &dyn Operator) -> Result<(), Fault> {
    let switched: Vec<(DeviceId, Offload)> = changes
        .changes()
        .filter_map(|change| match change.to() {
            Setting::Nic(device, NicKnob::Offload(offload, _)) => Some((*device, *offload)),
            _ => None,
        })
        .collect();
    if switched.is_empty() {
        return Ok(());
    }
    let word = |on: bool| if on { "on" } else { "off" };
    let host = linux::observe(netns, &Processes::None)?;
    for device in &host.devices {
        for (offload, requested) in &device.offloads_requested {
            if switched.contains(&(device.id, *offload)) {
                let (requested, is) = (word(*requested), word(!requested));
                operator.say(&format!(
                    "{}: {offload} is requested {requested} and stays {is}: the driver or another offload does not allow it now.",
                    device.id
                ));
            }
        }
    }
    Ok(())
}

/// What the stages have in common.
#[derive(Default)]
struct SoFar {
    /// What is changed.
    changes: Plan,
    /// Which notes were reported.
    said: BTreeSet<String>,
}

/// Commits what can be planned now. Returns the transaction, and whether a second stage follows.
fn stage(
    policy: &Policy,
    netns: &Netns,
    allow: Allow,
    words: &Words<'_>,
    session: &Session,
    operator: &dyn Operator,
    so_far: &mut SoFar,
) -> Result<(Option<TransactionName>, bool), Fault> {
    let planned = cycle::plan(policy, netns)?;
    Session::report_again(&planned, operator, &mut so_far.said);
    let changes = &mut so_far.changes;
    let first_stage = planned.desired.first_stage && !planned.plan.is_empty();
    changes.steps.extend(planned.plan.steps.iter().cloned());
    if !first_stage {
        operator.plan(changes)?;
    }
    if changes.is_empty() {
        let because = match words.nothing {
            Some(_) if planned.desired.wanted.is_empty() => "nothing to set here",
            Some(because) => because,
            None => planned.as_asked()?,
        };
        operator.say(&format!("Nothing to change: {because}."));
        session.report_trials(operator);
    }
    let journal = session.journal()?;
    cycle::refuse_second_stage(&planned, &journal, allow)?;
    let kept = cycle::keep(planned.plan, &journal, &session.asked(None), allow)?;
    if let Some(transaction) = kept {
        let done = words.done;
        operator.say(&format!("{done} and read back. `netpolicy rollback {transaction}` undoes it."));
    }
    Ok((kept, first_stage))
}

/// The second stage failed: rolls back the first, so that the queues become what they were.
fn taken_back(fault: Fault, earlier: TransactionName, session: &Session, operator: &dyn Operator) -> Fault {
    let undone = session
        .journal()
        .and_then(|journal| Ok(journal.roll_back(earlier, &mut linux::Kernel::new(), clock::now())?));
    match undone {
        Ok(_) if matches!(fault.host, HostState::Unchanged | HostState::Restored) => {
            operator.say(&format!("Rolled back {earlier}, too."));
            fault.leaving(HostState::Restored)
        }
        Ok(_) => fault,
        Err(stuck) => Fault {
            exit: Exit::NotRestored,
            host: HostState::NotRestored {
                stuck: vec![format!("transaction {earlier} is in force: {}", stuck.cause)],
                undo: None,
            },
            ..fault
        },
    }
}
