//! Checks invariants of every run, as a passive observer.
//!
//! Packets are conserved; an interrupt that is not armed never fires; budgets hold; time never goes
//! backwards; each CPU's accounted time equals the elapsed time; a connection has at most one outstanding
//! request. Little's law concerns averages, so a test checks it.

use crate::ids::{ConnectionId, CpuId, QueueId};
use crate::index_vec::IndexVec;
use crate::watch::{Fact, Watch};
use crate::world::softirq::BUDGET;

/// Observes a run and keeps the first violation.
#[derive(Clone, Debug)]
pub struct Checker {
    now: u64,
    queues: IndexVec<QueueId, Ring>,
    /// Accounted time.
    spent: IndexVec<CpuId, u64>,
    sent: u64,
    answered: u64,
    waiting: IndexVec<ConnectionId, bool>,
    wrong: Option<String>,
}

/// The packet counts of one queue.
#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    arrived: u64,
    taken: u64,
}

/// A round may exceed its budget by the packets of the last poll.
const ROUND_PACKETS_MAX: u32 = BUDGET + crate::world::napi::NAPI_WEIGHT - 1;

impl Checker {
    /// Creates a checker without violations.
    pub const fn new() -> Self {
        Self {
            now: 0,
            queues: IndexVec::new(),
            spent: IndexVec::new(),
            sent: 0,
            answered: 0,
            waiting: IndexVec::new(),
            wrong: None,
        }
    }

    fn wrong(&mut self, what: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            self.wrong = Some(format!("at {} ns: {}", self.now, what()));
        }
    }

    /// Returns the verdict after a run of this length.
    ///
    /// # Errors
    /// The first violation.
    pub fn verdict(mut self, end: u64) -> Result<(), String> {
        self.now = end;
        for cpu in self.spent.ids() {
            let spent = self.spent[cpu];
            if spent != end {
                self.wrong(|| format!("CPU {cpu} accounts for {spent} ns of {end}"));
            }
        }
        let under_way = self.waiting.iter().filter(|&&waits| waits).count() as u64;
        let (sent, answered) = (self.sent, self.answered);
        if sent != answered + under_way {
            self.wrong(|| {
                format!("{sent} requests were sent, {answered} were answered, and {under_way} are in flight")
            });
        }
        self.wrong.map_or(Ok(()), Err)
    }
}

impl Default for Checker {
    fn default() -> Self {
        Self::new()
    }
}

impl Watch for Checker {
    fn see(&mut self, now: u64, fact: Fact) {
        if now < self.now {
            self.wrong(|| format!("time went backwards, to {now}"));
        }
        self.now = now;
        match fact {
            Fact::Arrived { queue } => self.queues.entry(queue).arrived += 1,
            Fact::Taken { queue } => {
                let ring = self.queues.entry(queue);
                ring.taken += 1;
                let Ring { arrived, taken } = *ring;
                if taken > arrived {
                    self.wrong(|| format!("queue {queue} delivered {taken} packets but received {arrived}"));
                }
            }
            Fact::Irq { queue, armed, .. } => {
                if !armed {
                    self.wrong(|| format!("the interrupt of queue {queue} fired while it was masked"));
                }
            }
            Fact::Polled { napi, work, budget, .. } => {
                if work > budget {
                    self.wrong(|| {
                        format!("a poll of NAPI {napi} took {work} packets with a budget of {budget}")
                    });
                }
            }
            Fact::Round { packets, .. } => {
                if packets > ROUND_PACKETS_MAX {
                    self.wrong(|| format!("a round of net_rx_action took {packets} packets"));
                }
            }
            Fact::Spent { cpu, span, .. } => {
                let account = self.spent.entry(cpu);
                *account += span;
                let spent = *account;
                if spent > now {
                    self.wrong(|| format!("CPU {cpu} accounts for {spent} ns of {now}"));
                }
            }
            Fact::Sent { connection } => {
                self.sent += 1;
                if std::mem::replace(self.waiting.entry(connection), true) {
                    self.wrong(|| {
                        format!("connection {connection} sent a request before the previous one was answered")
                    });
                }
            }
            Fact::Answered { connection, .. } => {
                self.answered += 1;
                if !std::mem::replace(self.waiting.entry(connection), false) {
                    self.wrong(|| format!("connection {connection} received an answer without a request"));
                }
            }
            Fact::Dropped { .. }
            | Fact::Timer { .. }
            | Fact::EpollReturned { .. }
            | Fact::Slept { .. }
            | Fact::Woken { .. }
            | Fact::Suspended { .. }
            | Fact::Resumed { .. } => {}
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn judged(facts: &[(u64, Fact)]) -> Result<(), String> {
        let mut checker = Checker::new();
        for &(now, fact) in facts {
            checker.see(now, fact);
        }
        let end = checker.now;
        checker.verdict(end)
    }

    #[test]
    fn what_may_not_be_is_said() {
        let (queue, cpu, connection) = (QueueId::new(0), CpuId::new(0), ConnectionId::new(3));
        let wrongs: [(&str, &[(u64, Fact)]); 5] = [
            ("time went backwards", &[(5, Fact::Arrived { queue }), (4, Fact::Taken { queue })]),
            ("delivered 1 packets", &[(5, Fact::Taken { queue })]),
            ("while it was masked", &[(5, Fact::Irq { queue, cpu, armed: false })]),
            (
                "before the previous one was answered",
                &[(5, Fact::Sent { connection }), (6, Fact::Sent { connection })],
            ),
            (
                "accounts for 7 ns of 6",
                &[(6, Fact::Spent { cpu, class: crate::watch::Class::Idle, span: 7 })],
            ),
        ];
        for (words, facts) in wrongs {
            let said = judged(facts).expect_err(words);
            assert!(said.contains(words), "{said}");
        }
        assert_eq!(judged(&[(5, Fact::Arrived { queue }), (5, Fact::Taken { queue })]), Ok(()));
    }
}
