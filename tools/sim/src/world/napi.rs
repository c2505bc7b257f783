//! Models NAPI: ownership of a queue, polls, and the completion of a poll that finds no more packets.
//!
//! Kernel: 6.11, `net/core/dev.c` `napi_schedule_prep()`, `__napi_schedule()`, `__napi_poll()`,
//! `napi_complete_done()`. The timer is pinned to the CPU that sets it (`HRTIMER_MODE_REL_PINNED`), so a NAPI
//! follows the CPU that last completed it. Omitted: GRO's own flushing, disabling, netpoll.

use super::parts::{Doing, Poll, Running};
use super::state::World;
use crate::ids::{CpuId, NapiId};
use crate::scenario::Processing;
use crate::watch::{Fact, Watch};

/// Packets per poll. Kernel: `NAPI_POLL_WEIGHT`.
pub(crate) const NAPI_WEIGHT: u32 = 64;

impl<W: Watch> World<W> {
    /// Models `napi_schedule()` on this CPU.
    pub(crate) fn napi_schedule(&mut self, cpu: CpuId, napi: NapiId) {
        if std::mem::replace(&mut self.napis[napi].scheduled, true) {
            self.napis[napi].missed = true;
            return;
        }
        self.put_on_poll_list(cpu, napi);
    }

    fn put_on_poll_list(&mut self, cpu: CpuId, napi: NapiId) {
        match self.processing {
            Processing::Softirq => self.cpus[cpu].poll_list.push_back(napi),
            Processing::Kthread | Processing::Workqueue | Processing::BusyKthread => {
                self.wake_kthread(napi, cpu)
            }
        }
    }

    /// Starts a poll; the driver first cleans transmitted packets.
    pub(crate) fn poll_begins(&mut self, cpu: CpuId, cost: u64) {
        self.clean_transmitted(self.cpus[cpu].poll.napi.queue());
        self.segment(cpu, Doing::Poll, cost);
    }

    /// Continues the poll with its next packets, or ends it.
    #[inline]
    pub(crate) fn next_packet(&mut self, cpu: CpuId) {
        if self.packets_move(cpu) {
            return;
        }
        let poll = self.cpus[cpu].poll;
        self.tally.polls += 1;
        if W::ON {
            let Poll { napi, work, budget, running } = poll;
            self.watch.see(self.now, Fact::Polled { napi, cpu, work, budget, by: running.poller() });
        }
        match poll.running {
            Running::Softirq | Running::Ksoftirqd => self.softirq_polled(cpu),
            Running::Kthread => self.kthread_polled(cpu),
            Running::BusyLoop => self.busy_poll_turn(cpu),
            Running::BusyStop => self.busy_stop_polled(cpu),
        }
    }

    /// `napi_complete_done()`: releases the NAPI; a timer or the interrupt takes over.
    pub(crate) fn napi_complete_done(&mut self, cpu: CpuId, napi: NapiId, work: u32) {
        if work > 0 {
            self.napis[napi].deferrals = self.defer_hard_irqs;
        }
        let state = &mut self.napis[napi];
        state.scheduled = false;
        state.preferred = false;
        let deferred = state.deferrals > 0 && self.gro_flush > 0;
        if std::mem::take(&mut state.missed) {
            state.scheduled = true;
            self.put_on_poll_list(cpu, napi);
        }
        if deferred {
            self.napis[napi].deferrals -= 1;
            self.set_timer(cpu, napi, self.gro_flush);
        } else if !self.napis[napi].scheduled {
            self.arm(napi.queue());
        }
    }

    /// `__napi_poll()`: a poll that used its whole budget still ends if busy polling is preferred.
    pub(crate) fn leaves_to_busy_poll(&mut self, cpu: CpuId, napi: NapiId, work: u32) -> bool {
        if !self.napis[napi].preferred {
            return false;
        }
        self.napi_complete_done(cpu, napi, work);
        // Schedule the NAPI again if no timer would poll it.
        if self.queues[napi.queue()].armed {
            self.napi_schedule(cpu, napi);
        }
        true
    }

    /// Starts the NAPI's hrtimer on this CPU, replacing the previous one.
    pub(crate) fn set_timer(&mut self, cpu: CpuId, napi: NapiId, span: u64) {
        self.napis[napi].timer_cpu = cpu;
        self.calendar.set(self.slots.timer(napi), self.now + span);
    }
}
