//! The softirq `NET_RX`.
//!
//! Kernel: 6.11, `net/core/dev.c` `net_rx_action()`: at most 300 packets or 2 ms a round; `kernel/softirq.c`
//! `handle_softirqs()`: at most ten rounds or 2 ms, and none while a task should run, then ksoftirqd. Before 6.5 a
//! waking ksoftirqd kept softirqs from running after interrupts (`ksoftirqd_running()`, taken out by d15121be7485).
//! Left out: the other softirqs, RPS and the backlog NAPI.

use model::KernelVersion;

use crate::napi::{NAPI_WEIGHT, Poll, Running};
use crate::watch::{Fact, Watch};
use crate::world::{Step, World};

/// Kernel: `net_hotdata.netdev_budget`.
pub(crate) const BUDGET: u32 = 300;
/// Kernel: `net_hotdata.netdev_budget_usecs` and `MAX_SOFTIRQ_TIME`.
const TIME_LIMIT: u64 = 2_000_000;
/// Kernel: `MAX_SOFTIRQ_RESTART`.
const ROUNDS_MAX: u32 = 10;

/// Softirq processing on a CPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Softirq {
    /// Whether it runs, and where.
    running: Option<Running>,
    /// When it began.
    began: u64,
    /// When this round began.
    round_began: u64,
    rounds: u32,
    packets: u32,
    pub(crate) ksoftirqd_awake: bool,
}

impl Softirq {
    /// Whether it runs outside any thread.
    pub(crate) const fn inline(&self) -> bool {
        matches!(self.running, Some(Running::Softirq))
    }
}

/// Whether softirqs wait for a ksoftirqd that is awake.
pub(crate) fn ksoftirqd_holds_softirqs_back(kernel: KernelVersion) -> bool {
    (kernel.major, kernel.minor) < (6, 5)
}

impl<W: Watch> World<W> {
    /// Softirqs begin on top of whatever the CPU did.
    pub(crate) fn softirq_begin(&mut self, c: usize) {
        self.begin(c, Running::Softirq);
    }

    /// ksoftirqd begins to work.
    pub(crate) fn ksoftirqd_turn(&mut self, c: usize) {
        if self.cpus[c].poll_list.is_empty() {
            self.cpus[c].softirq.ksoftirqd_awake = false;
            self.sleep_kthread(c);
        } else {
            self.begin(c, Running::Ksoftirqd);
        }
    }

    fn begin(&mut self, c: usize, running: Running) {
        let now = self.now;
        let softirq = &mut self.cpus[c].softirq;
        softirq.running = Some(running);
        softirq.began = now;
        softirq.rounds = 0;
        self.round(c);
    }

    fn round(&mut self, c: usize) {
        let now = self.now;
        let softirq = &mut self.cpus[c].softirq;
        softirq.round_began = now;
        softirq.rounds += 1;
        softirq.packets = 0;
        self.poll_first(c);
    }

    fn poll_first(&mut self, c: usize) {
        let cpu = &mut self.cpus[c];
        let Some(n) = cpu.poll_list.pop_front() else { return self.round_ends(c) };
        let running = cpu.softirq.running.unwrap_or(Running::Softirq);
        cpu.poll = Poll { napi: n, work: 0, budget: NAPI_WEIGHT, running };
        self.poll_begins(c, self.costs.poll);
    }

    /// A poll of `net_rx_action` is over.
    pub(crate) fn softirq_polled(&mut self, c: usize) {
        let Poll { napi: n, work, .. } = self.cpus[c].poll;
        self.cpus[c].softirq.packets += work;
        if work < NAPI_WEIGHT {
            self.napi_complete_done(c, n, work);
        } else if !self.leaves_to_busy_poll(c, n, work) {
            self.cpus[c].poll_list.push_back(n);
        }
        let cpu = &self.cpus[c];
        let over = cpu.softirq.packets >= BUDGET || self.now - cpu.softirq.round_began >= TIME_LIMIT;
        if over || cpu.poll_list.is_empty() { self.round_ends(c) } else { self.poll_first(c) }
    }

    fn round_ends(&mut self, c: usize) {
        let need_resched = self.need_resched(c);
        let now = self.now;
        let cpu = &mut self.cpus[c];
        if W::ON {
            self.watch.see(now, Fact::Round { cpu: c, packets: cpu.softirq.packets });
        }
        let pending = !cpu.poll_list.is_empty();
        let again = now - cpu.softirq.began < TIME_LIMIT && !need_resched && cpu.softirq.rounds < ROUNDS_MAX;
        if pending && again {
            return self.round(c);
        }
        match cpu.softirq.running.take() {
            Some(Running::Ksoftirqd) => self.boundary(c, Step::Ksoftirqd),
            Some(_) | None => {
                if pending && !std::mem::replace(&mut self.cpus[c].softirq.ksoftirqd_awake, true) {
                    self.tally.ksoftirqd += 1;
                    self.enqueue(self.slots.ksoftirqd(c), c);
                }
                self.resume(c);
            }
        }
    }
}
