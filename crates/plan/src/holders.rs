//! Refuses changes that would take a queue from its holder.

use model::host::QueueConflict;
use model::{Host, Plan};

use crate::refusal::{Refusal, RefusalKind};

/// The remedy for a change that would take a queue from its holder.
pub const HELD: &str = "stop that program first, or do not change the setting while it runs";

/// Checks that no change takes a queue from its holder.
///
/// # Errors
/// [`RefusalKind::Safety`] if a change does; the refusal names the holders of the device's queues, at most
/// `HOLDERS_MAX` of them.
pub(crate) fn check(plan: &Plan, host: &Host) -> Result<(), Refusal> {
    for change in plan.changes().filter(|change| QueueConflict::could_be_by(change.to())) {
        let device = change.to().object().device().and_then(|id| host.device(id));
        let Some(device) = device else { continue };
        let Some(taken) = QueueConflict::by(change, &device.holders) else { continue };
        let (knob, from, to) = (change.to().knob(), change.from().value(), change.to().value());
        let message = format!("{knob} {from} → {to} would take a held queue away: it {}", taken.how);
        let holders = device.holders.iter().take(HOLDERS_MAX);
        let refusal = Refusal::new(RefusalKind::Safety, device.id, message)
            .because(format!("requested at {}", change.because().source));
        let refusal = holders.fold(refusal, |refusal, holder| {
            refusal.because(format!("{} {}: held by {}", device.id, holder.queues(), holder.sentence()))
        });
        return Err(refusal.nearest(HELD));
    }
    Ok(())
}

/// The maximum number of holders to name in a refusal.
const HOLDERS_MAX: usize = 8;
