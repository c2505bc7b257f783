//! Keeps irqbalance from moving interrupts that a plan pins.

use model::{Host, IrqKnob, Reason, Setting};

use crate::refusal::Refusal;
use crate::wanted::Collected;

/// Requests that a running irqbalance bans every pinned interrupt. Existing bans stay, and a rollback does
/// not remove them.
pub(crate) fn want(host: &Host, collected: &mut Collected) -> Result<(), Refusal> {
    let Some(running) = &host.irqbalance else { return Ok(()) };
    let irqs = collected.wanted_irqs();
    if irqs.is_empty() {
        return Ok(());
    }
    if running.banned.is_none() {
        collected.note(format!(
            "irqbalance[{}] did not answer: it may move the placed interrupts until they are banned",
            running.pid
        ));
        return Ok(());
    }
    for (irq, source) in irqs {
        let why =
            format!("irqbalance[{}] would move it away from the CPUs that the plan gives it", running.pid);
        collected.want(Setting::Irq(irq, IrqKnob::Ban(true)), Reason::new(why, source))?;
    }
    Ok(())
}
