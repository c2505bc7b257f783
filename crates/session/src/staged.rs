//! Plans and commits once, or twice if the first plan recreates queues, because the settings of a queue can
//! only be planned once the queue exists. The part of the second stage that is already known is checked
//! before the first stage is committed. Each stage is a separate transaction; they are undone in reverse
//! order. If the second stage fails, the first is rolled back, too.

use std::collections::BTreeSet;

use apply::{Allow, TransactionName};
use linux::{Netns, Processes};
use model::host::Device;
use model::{DeviceId, NicKnob, Offload, Plan, Policy, Setting};

use crate::clock;
use crate::cycle;
use crate::exit::Exit;
use crate::fault::{Fault, HostState};
use crate::idle::IdleComparison;
use crate::operator::Operator;
use crate::session::Session;

/// The maximum number of stages: one for queues, and one for their settings. If a second plan would recreate
/// the queues again, the device did not keep the values, which the first stage has already reported.
const STAGES_MAX: usize = 2;

/// The wording of a command's outcome.
#[derive(Clone, Copy, Debug)]
pub struct OutcomeWords<'a> {
    /// Why there is nothing to change; `None` for the default message.
    pub nothing: Option<&'a str>,
    /// What was done, in one word.
    pub done: &'a str,
}

/// Plans what a policy changes, commits it and keeps it.
pub fn keep(
    policy: &Policy,
    netns: &Netns,
    allow: Allow,
    words: &OutcomeWords<'_>,
    session: &Session,
    operator: &dyn Operator,
) -> Result<Exit, Fault> {
    let idle = IdleComparison::before(policy, operator);
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

/// Reports offloads that were switched but do not have the requested state: the kernel stores the request and
/// applies it when it can.
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
    report_unswitched(&|device, offload| switched.contains(&(device.id, offload)), netns, operator)
}

/// Reports offloads that do not have the requested state. `switched` selects the offloads.
///
/// # Errors
/// If the host cannot be observed.
pub fn report_unswitched(
    switched: &dyn Fn(&Device, Offload) -> bool,
    netns: &Netns,
    operator: &dyn Operator,
) -> Result<(), Fault> {
    let word = |on: bool| if on { "on" } else { "off" };
    let host = linux::observe(netns, &Processes::None)?;
    for device in &host.devices {
        for (offload, requested) in &device.offloads_requested {
            if switched(device, *offload) {
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

/// State that both stages share.
#[derive(Default)]
struct SoFar {
    /// The changes of all stages so far.
    changes: Plan,
    /// The notes that were already reported.
    said: BTreeSet<String>,
}

/// Commits the changes that can be planned now. Returns the transaction, and whether a second stage follows.
fn stage(
    policy: &Policy,
    netns: &Netns,
    allow: Allow,
    words: &OutcomeWords<'_>,
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
            Some(because) if !planned.wants_defaults() => because,
            Some(_) | None => planned.as_asked()?,
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

/// Rolls back the first stage because the second has failed, so that the queues return to their previous
/// state.
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
