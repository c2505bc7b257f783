//! Knobs of an interrupt.

use super::family::family;
use super::on_off;
use crate::cpu_set::CpuSet;
use crate::facts::{Facts, Interface, KnobUnit, WritePhase};
use crate::since;

const AFFINITY: Facts = Facts::at(Interface::IrqAffinity, WritePhase::Irq);
const IRQBALANCE: Facts = Facts::at(Interface::Irqbalance, WritePhase::IrqBan);

family! {
    /// A knob of an interrupt, with a value.
    IrqKnob {
        /// The CPUs that an interrupt may be delivered to.
        ///
        /// Kernel: 3.0, `/proc/irq/N/smp_affinity_list`, `kernel/irq/proc.c`. A CPU that goes offline leaves the
        /// set, and does not come back with the CPU.
        Affinity(CpuSet) = AFFINITY {
            name: "smp_affinity",
            unit: KnobUnit::Cpus,
            since: since::IRQ_AFFINITY_LIST,
        } where {
            // `write_irq_affinity()` returns EINVAL if no CPU of the set is online. Kernel: 6.18,
            // `kernel/irq/proc.c`.
            irreversible(cpus) if cpus.is_empty() => "a set without an online CPU, which write_irq_affinity() rejects";
        },

        /// Whether irqbalance leaves the interrupt alone.
        ///
        /// The ban is kept in memory by the running irqbalance and ends with it.
        ///
        /// Source: irqbalance 1.0.9, `irqbalance.c` `sock_handle()`, `setup` and `settings ban irqs`.
        Ban(bool) = IRQBALANCE { name: "irqbalance-ban", unit: KnobUnit::Switch },
    }
}

impl IrqKnob {
    /// Formats the value as policy files and output show it.
    pub fn value(&self) -> String {
        match self {
            Self::Affinity(cpus) => cpus.to_string(),
            Self::Ban(on) => on_off(*on),
        }
    }
}
