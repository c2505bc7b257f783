//! Models hard interrupts: from the NIC and from a NAPI's hrtimer.
//!
//! Kernel: 6.11, `drivers/net/ethernet/mellanox/mlx5/core/en_txrx.c` `mlx5e_completion_event()`;
//! `net/core/dev.c` `napi_watchdog()`; `kernel/softirq.c` `irq_exit_rcu()`. Omitted: forced threading, other
//! devices' interrupts, the cost of the timer tick.

use super::softirq::ksoftirqd_holds_softirqs_back;
use super::state::World;
use crate::ids::{CpuId, NapiId};
use crate::scenario::Processing;
use crate::watch::{Fact, Watch};

impl<W: Watch> World<W> {
    /// Handles the NIC's interrupt, which schedules the NAPI.
    pub(crate) fn hard_irq(&mut self, cpu: CpuId, cost: u64, napi: NapiId) {
        self.raise(cpu, cost, Some(napi));
    }

    /// Models `napi_watchdog()`: schedules the NAPI on the CPU that set the timer, unless it is already
    /// scheduled.
    pub(crate) fn timer_event(&mut self, napi: NapiId) {
        let cpu = self.napis[napi].timer_cpu;
        self.calendar.clear(self.slots.timer(napi));
        self.tally.timers += 1;
        if W::ON {
            self.watch.see(self.now, Fact::Timer { napi, cpu });
        }
        let free = !self.napis[napi].scheduled;
        if free {
            self.napis[napi].preferred = false;
        }
        self.raise(cpu, self.costs.timer, free.then_some(napi));
    }

    /// Raises an interrupt that may schedule a NAPI. With softirq processing, the NAPI is scheduled before the
    /// CPU handles the interrupt. Otherwise the interrupt comes first, and then the NAPI's thread is woken.
    fn raise(&mut self, cpu: CpuId, cost: u64, napi: Option<NapiId>) {
        let in_softirq = self.processing == Processing::Softirq;
        if let Some(napi) = napi.filter(|_| in_softirq) {
            self.napi_schedule(cpu, napi);
        }
        self.interrupt(cpu, cost);
        if let Some(napi) = napi.filter(|_| !in_softirq) {
            self.napi_schedule(cpu, napi);
        }
    }

    /// Ends the interrupt: softirqs run now, unless they are left to ksoftirqd.
    pub(crate) fn irq_exit(&mut self, cpu: CpuId) {
        if self.softirqs_wait(cpu) {
            self.resume(cpu);
        } else {
            self.softirq_begin(cpu);
        }
    }

    /// Whether no softirq will run after an interrupt: none is pending, or ksoftirqd will run it.
    pub(crate) fn softirqs_wait(&self, cpu: CpuId) -> bool {
        let state = &self.cpus[cpu];
        state.poll_list.is_empty()
            || state.softirq.ksoftirqd_awake && ksoftirqd_holds_softirqs_back(self.kernel)
    }
}
