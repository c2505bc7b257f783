//! Models the softirq `NET_RX`.
//!
//! Kernel: 6.11, `net/core/dev.c` `net_rx_action()`: at most 300 packets or 2 ms per round;
//! `kernel/softirq.c` `handle_softirqs()`: at most ten rounds or 2 ms, and none while a task needs to be
//! scheduled; the rest is left to ksoftirqd. Before 6.5, a woken ksoftirqd prevented softirqs from running
//! after interrupts (`ksoftirqd_running()`, removed by d15121be7485). Omitted: the other softirqs, RPS and
//! the backlog NAPI.

use model::KernelVersion;

use super::napi::NAPI_WEIGHT;
use super::parts::{Poll, Running, Step};
use super::state::World;
use crate::ids::CpuId;
use crate::watch::{Fact, Watch};

/// Kernel: `net_hotdata.netdev_budget`.
pub(crate) const BUDGET: u32 = 300;
/// Kernel: `net_hotdata.netdev_budget_usecs` and `MAX_SOFTIRQ_TIME`.
const TIME_LIMIT: u64 = 2_000_000;
/// Kernel: `MAX_SOFTIRQ_RESTART`.
const ROUNDS_MAX: u32 = 10;

/// Whether softirqs wait for a woken ksoftirqd.
pub(crate) fn ksoftirqd_holds_softirqs_back(kernel: KernelVersion) -> bool {
    (kernel.major, kernel.minor) < (6, 5)
}

impl<W: Watch> World<W> {
    /// Starts softirqs on top of the CPU's activity.
    pub(crate) fn softirq_begin(&mut self, cpu: CpuId) {
        self.begin(cpu, Running::Softirq);
    }

    /// Starts the work of ksoftirqd.
    pub(crate) fn ksoftirqd_turn(&mut self, cpu: CpuId) {
        if self.cpus[cpu].poll_list.is_empty() {
            self.cpus[cpu].softirq.ksoftirqd_awake = false;
            self.sleep_kthread(cpu);
        } else {
            self.begin(cpu, Running::Ksoftirqd);
        }
    }

    fn begin(&mut self, cpu: CpuId, running: Running) {
        let now = self.now;
        let softirq = &mut self.cpus[cpu].softirq;
        softirq.running = Some(running);
        softirq.began = now;
        softirq.rounds = 0;
        self.round(cpu);
    }

    fn round(&mut self, cpu: CpuId) {
        let now = self.now;
        let softirq = &mut self.cpus[cpu].softirq;
        softirq.round_began = now;
        softirq.rounds += 1;
        softirq.packets = 0;
        self.poll_first(cpu);
    }

    fn poll_first(&mut self, cpu: CpuId) {
        let state = &mut self.cpus[cpu];
        let Some(napi) = state.poll_list.pop_front() else { return self.round_ends(cpu) };
        let running = state.softirq.running.unwrap_or(Running::Softirq);
        state.poll = Poll { napi, work: 0, budget: NAPI_WEIGHT, running };
        self.poll_begins(cpu, self.costs.poll);
    }

    /// Handles the end of a poll in `net_rx_action()`.
    pub(crate) fn softirq_polled(&mut self, cpu: CpuId) {
        let Poll { napi, work, .. } = self.cpus[cpu].poll;
        self.cpus[cpu].softirq.packets += work;
        if work < NAPI_WEIGHT {
            self.napi_complete_done(cpu, napi, work);
        } else if !self.leaves_to_busy_poll(cpu, napi, work) {
            self.cpus[cpu].poll_list.push_back(napi);
        }
        let state = &self.cpus[cpu];
        let over = state.softirq.packets >= BUDGET || self.now - state.softirq.round_began >= TIME_LIMIT;
        if over || state.poll_list.is_empty() { self.round_ends(cpu) } else { self.poll_first(cpu) }
    }

    fn round_ends(&mut self, cpu: CpuId) {
        let need_resched = self.need_resched(cpu);
        let now = self.now;
        let state = &mut self.cpus[cpu];
        if W::ON {
            self.watch.see(now, Fact::Round { cpu, packets: state.softirq.packets });
        }
        let pending = !state.poll_list.is_empty();
        let again =
            now - state.softirq.began < TIME_LIMIT && !need_resched && state.softirq.rounds < ROUNDS_MAX;
        if pending && again {
            return self.round(cpu);
        }
        match state.softirq.running.take() {
            Some(Running::Ksoftirqd) => self.boundary(cpu, Step::Ksoftirqd),
            Some(_) | None => {
                if pending && !std::mem::replace(&mut self.cpus[cpu].softirq.ksoftirqd_awake, true) {
                    self.tally.ksoftirqd += 1;
                    self.enqueue(self.slots.ksoftirqd(cpu), cpu);
                }
                self.resume(cpu);
            }
        }
    }
}
