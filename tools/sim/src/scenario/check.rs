//! Detects scenarios that no machine can have.

use super::{Scenario, Waits};

/// The error for a scenario that cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct Impossible {
    /// The invalid key.
    pub key: &'static str,
    /// The keys that `key` contradicts.
    pub beside: &'static [&'static str],
    /// The reason.
    pub reason: String,
}

/// Maximum number of CPUs in a scenario: a thread's CPU set is one word of 128 bits.
pub(crate) const CPUS_MAX: u32 = 128;

impl Scenario {
    /// Returns how many threads idle because they have no queue, if connections belong to the thread of their
    /// queue.
    pub fn idle_threads(&self) -> u32 {
        match self.layout.by_napi {
            true => self.application.threads.saturating_sub(self.hardware.queues),
            false => 0,
        }
    }

    /// Checks whether a machine with these values can exist.
    ///
    /// # Errors
    /// [`Impossible`] names the first key that contradicts another.
    pub fn check(&self) -> Result<(), Impossible> {
        let no =
            |key, beside: &'static [&'static str], reason: String| Err(Impossible { key, beside, reason });
        let (hardware, layout) = (&self.hardware, &self.layout);
        for (key, cpus) in
            [("layout.irq-cpus", &layout.irq_cpus), ("layout.thread-cpus", &layout.thread_cpus)]
        {
            if cpus.is_empty() {
                return no(key, &[], "no CPU is left".to_owned());
            }
            if let Some(cpu) = cpus.iter().find(|&&cpu| cpu >= hardware.cpus) {
                return no(
                    key,
                    &["hardware.cpus"],
                    format!("there is no CPU {cpu}: hardware.cpus = {}", hardware.cpus),
                );
            }
        }
        let threads = self.application.threads as usize;
        if layout.pinned && threads > layout.thread_cpus.len() {
            let cpus = layout.thread_cpus.len();
            return no(
                "layout.pinned",
                &["application.threads", "layout.thread-cpus"],
                format!("{threads} threads cannot have a CPU each: layout.thread-cpus has {cpus}"),
            );
        }
        if layout.by_napi && self.application.threads < hardware.queues {
            let (threads, queues) = (self.application.threads, hardware.queues);
            return no(
                "layout.by-napi",
                &["hardware.queues", "application.threads"],
                format!("{threads} threads cannot take {queues} queues: some queues would have no thread"),
            );
        }
        if hardware.smt && hardware.cpus % 2 == 1 {
            return no(
                "hardware.smt",
                &["hardware.cpus"],
                format!("{} CPUs cannot form pairs of hyper-threads", hardware.cpus),
            );
        }
        if hardware.node_cpus < hardware.cpus && hardware.node_distance <= 10 {
            return no(
                "hardware.node-distance",
                &["hardware.node-cpus"],
                format!(
                    "a distance of 10 means local, but there are several nodes: {} CPUs in nodes of {}; numactl --hardware shows distances",
                    hardware.cpus, hardware.node_cpus
                ),
            );
        }
        let epoll = &self.delivery.params.epoll;
        if (epoll.prefer_busy_poll || epoll.busy_poll_usecs > 0) && self.application.waits != Waits::Sleep {
            return no(
                "application.waits",
                &["delivery.prefer-busy-poll", "delivery.busy-poll-usecs", "delivery.mode"],
                "busy polling and spinning for events exclude each other".to_owned(),
            );
        }
        if !self.delivery.params.irq_suspend_timeout.is_zero()
            && self.delivery.params.irq_suspend_timeout <= self.delivery.params.gro_flush_timeout
        {
            let (suspended, timer) =
                (self.delivery.params.irq_suspend_timeout, self.delivery.params.gro_flush_timeout);
            return no(
                "delivery.irq-suspend-timeout",
                &["delivery.gro-flush-timeout", "delivery.mode"],
                format!("{suspended} does not outlast gro-flush-timeout = {timer}"),
            );
        }
        Ok(())
    }
}
