//! Interrupts: the script writes a file in `/proc/irq`, or uses irqbalance's socket.

use model::{IrqKnob, IrqNumber};

use super::call::{Call, Part, ShellWords};

pub(super) fn call(words: &ShellWords, irq: IrqNumber, knob: &IrqKnob) -> Call {
    match knob {
        IrqKnob::Affinity(_) => {
            Call::anywhere(&[Part::File], words, "file", &format!("/proc/irq/{irq}/smp_affinity_list"))
        }
        IrqKnob::Ban(_) => Call::anywhere(&[Part::Irqbalance], words, "irqbalance_ban", &irq.to_string()),
    }
}
