//! Finds the values of interrupts.

use model::{IrqKnob, IrqNumber};

use crate::index::Index;

pub(super) fn value(number: IrqNumber, like: &IrqKnob, index: &Index<'_>) -> Option<IrqKnob> {
    match like {
        IrqKnob::Affinity(_) => index.irqs.get(&number).map(|irq| IrqKnob::Affinity(irq.affinity.clone())),
        IrqKnob::Ban(_) => {
            let bans = index.host.irqbalance.as_ref().and_then(|running| running.banned.as_ref());
            bans.map(|bans| IrqKnob::Ban(bans.contains(&number)))
        }
    }
}
