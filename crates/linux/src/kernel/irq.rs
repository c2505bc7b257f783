//! Settings of interrupts: those of the kernel, and irqbalance's bans.

use model::{IrqKnob, IrqNumber};
use sys::error::KernelError;

use crate::irqbalance::Irqbalance;
use crate::observe::irq;

pub(super) fn read(
    irqbalance: &Irqbalance,
    number: IrqNumber,
    like: &IrqKnob,
) -> Result<IrqKnob, KernelError> {
    Ok(match like {
        IrqKnob::Affinity(_) => IrqKnob::Affinity(irq::affinity(number)?),
        IrqKnob::Ban(_) => IrqKnob::Ban(irqbalance.is_banned(number)?),
    })
}

pub(super) fn write(irqbalance: &Irqbalance, number: IrqNumber, knob: &IrqKnob) -> Result<(), KernelError> {
    match knob {
        IrqKnob::Affinity(cpus) => irq::set_affinity(number, cpus),
        IrqKnob::Ban(banned) => irqbalance.ban(number, *banned),
    }
}
