//! Hard interrupts: of the NIC, and of a NAPI's hrtimer.
//!
//! Kernel: 6.11, `drivers/net/ethernet/mellanox/mlx5/core/en_txrx.c` `mlx5e_completion_event()`; `net/core/dev.c`
//! `napi_watchdog()`; `kernel/softirq.c` `irq_exit_rcu()`. Left out: forced threading, other devices' interrupts, the
//! timer tick's own cost.

use crate::softirq::ksoftirqd_holds_softirqs_back;
use crate::watch::{Fact, Watch};
use crate::world::World;

impl<W: Watch> World<W> {
    /// The NIC's interrupt: schedules the NAPI.
    pub(crate) fn hard_irq(&mut self, c: usize, cost: u64, n: usize) {
        self.interrupt(c, cost);
        self.napi_schedule(c, n);
    }

    /// `napi_watchdog()`: schedules the NAPI on the CPU that set the timer, unless someone has it.
    pub(crate) fn timer_event(&mut self, n: usize) {
        let c = self.napis[n].timer_cpu;
        self.calendar.clear(self.slots.timer(n));
        self.tally.timers += 1;
        if W::ON {
            self.watch.see(self.now, Fact::Timer { napi: n, cpu: c });
        }
        self.interrupt(c, self.costs.timer);
        if !self.napis[n].scheduled {
            self.napis[n].preferred = false;
            self.napi_schedule(c, n);
        }
    }

    /// The interrupt is handled: softirqs run now, unless ksoftirqd is to do it.
    pub(crate) fn irq_exit(&mut self, c: usize) {
        let cpu = &self.cpus[c];
        let held_back = ksoftirqd_holds_softirqs_back(self.kernel) && cpu.softirq.ksoftirqd_awake;
        if cpu.poll_list.is_empty() || held_back {
            self.resume(c);
        } else {
            self.softirq_begin(c);
        }
    }
}
