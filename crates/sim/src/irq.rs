//! Hard interrupts: of the NIC, and of a NAPI's hrtimer.
//!
//! Kernel: 6.11, `drivers/net/ethernet/mellanox/mlx5/core/en_txrx.c` `mlx5e_completion_event()`; `net/core/dev.c`
//! `napi_watchdog()`; `kernel/softirq.c` `irq_exit_rcu()`. Left out: forced threading, other devices' interrupts, the
//! timer tick's own cost.

use crate::scenario::Processing;
use crate::softirq::ksoftirqd_holds_softirqs_back;
use crate::watch::{Fact, Watch};
use crate::world::World;

impl<W: Watch> World<W> {
    /// The NIC's interrupt: schedules the NAPI.
    pub(crate) fn hard_irq(&mut self, c: usize, cost: u64, n: usize) {
        self.raise(c, cost, Some(n));
    }

    /// `napi_watchdog()`: schedules the NAPI on the CPU that set the timer, unless someone has it.
    pub(crate) fn timer_event(&mut self, n: usize) {
        let c = self.napis[n].timer_cpu;
        self.calendar.clear(self.slots.timer(n));
        self.tally.timers += 1;
        if W::ON {
            self.watch.see(self.now, Fact::Timer { napi: n, cpu: c });
        }
        let free = !self.napis[n].scheduled;
        if free {
            self.napis[n].preferred = false;
        }
        self.raise(c, self.costs.timer, free.then_some(n));
    }

    /// An interrupt comes that may schedule a NAPI. A softirq's is on the list before the CPU turns to the interrupt; whoever
    /// wakes a thread is interrupted already.
    fn raise(&mut self, c: usize, cost: u64, n: Option<usize>) {
        let in_softirq = self.processing == Processing::Softirq;
        if let Some(n) = n.filter(|_| in_softirq) {
            self.napi_schedule(c, n);
        }
        self.interrupt(c, cost);
        if let Some(n) = n.filter(|_| !in_softirq) {
            self.napi_schedule(c, n);
        }
    }

    /// The interrupt is handled: softirqs run now, unless ksoftirqd is to do it.
    pub(crate) fn irq_exit(&mut self, c: usize) {
        if self.softirqs_wait(c) {
            self.resume(c);
        } else {
            self.softirq_begin(c);
        }
    }

    /// Whether no softirq will run when an interrupt is handled: there is none, or ksoftirqd is to do it.
    pub(crate) fn softirqs_wait(&self, c: usize) -> bool {
        let cpu = &self.cpus[c];
        cpu.poll_list.is_empty() || cpu.softirq.ksoftirqd_awake && ksoftirqd_holds_softirqs_back(self.kernel)
    }
}
