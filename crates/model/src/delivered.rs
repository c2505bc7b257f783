//! Counts which context delivered the packets of each NAPI over an interval. Setting a delivery mode does not
//! ensure that the mode is in effect; these counts show which mode is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{Fd, NapiId, Pid};
use crate::units::Nanoseconds;

/// The number of polls, and of the packets that they delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PollCounts {
    /// The number of calls of the NAPI's poll function.
    pub polls: u64,
    /// The number of packets that these calls returned as work done.
    pub packets: u64,
    /// The number of calls that returned no work.
    pub empty: u64,
}

impl std::ops::AddAssign for PollCounts {
    fn add_assign(&mut self, other: Self) {
        self.polls += other.polls;
        self.packets += other.packets;
        self.empty += other.empty;
    }
}

/// How long a thread was runnable but had no CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuWait {
    /// The total wait.
    pub waited: Nanoseconds,
    /// How often the thread was put on a CPU during the measurement.
    pub turns: u64,
}

impl CpuWait {
    /// Returns the average wait per turn; `None` if the thread never ran.
    pub fn each(&self) -> Option<Nanoseconds> {
        self.waited.0.checked_div(self.turns).map(Nanoseconds)
    }
}

/// The object whose batches were measured: one epoll of a process, or all its epolls on a NAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchesOf {
    /// The epoll with this descriptor.
    Epoll(Fd),
    /// The epolls that suspend this NAPI's IRQ.
    Napi(NapiId),
}

/// The batches of an application: each lasts from the return of an `epoll_wait` with events to the next
/// `epoll_wait`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventBatches {
    /// The number of batches that ended.
    pub count: u64,
    /// The number of events in these batches; 0 if they were not counted, for [`BatchesOf::Napi`].
    pub events: u64,
    /// The total time of these batches, including the time in which the application had no CPU.
    pub total: Nanoseconds,
    /// The duration of the longest batch. For [`BatchesOf::Napi`], a batch that outlasted the timeout while
    /// the thread slept counts only until the timeout, because its end is unknown.
    pub longest: Nanoseconds,
    /// The number of events of the longest batch; 0 if they were not counted.
    pub longest_events: u64,
    /// The `maxevents` that the application passed last; 0 if unknown.
    pub maxevents: u64,
    /// The number of batches in which `irq-suspend-timeout` expired; only for [`BatchesOf::Napi`].
    pub outlasted: u64,
    /// The time since the last `epoll_wait` that returned events, if no other `epoll_wait` followed.
    pub unfinished: Option<Nanoseconds>,
}

impl EventBatches {
    /// Returns the average time per event; `None` without events.
    pub fn each(&self) -> Option<Nanoseconds> {
        self.total.0.checked_div(self.events).map(Nanoseconds)
    }

    /// Returns the duration of the longest batch, including one that has not ended.
    pub fn longest_so_far(&self) -> Nanoseconds {
        self.longest.max(self.unfinished.unwrap_or_default())
    }
}

/// Counts for one NAPI.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NapiDelivered {
    /// The NAPI.
    pub napi: NapiId,
    /// The device's name, as the kernel reported it with the poll.
    pub device: String,
    /// Polls in softirq after an interrupt, or in a softirq that the packet's sender raised (veth). With
    /// [`Delivered::timers_hidden`], also polls after the timer expired.
    pub interrupt: PollCounts,
    /// Polls in softirq after the NAPI's timer expired.
    pub timer: PollCounts,
    /// Polls by an application in its own system call, including those in the softirq that the system call
    /// raises when it resumes the IRQ: at that moment the IRQ is still masked, so no interrupt fired. Kernel:
    /// 7.3, `net/core/dev.c` `napi_resume_irqs()`.
    pub application: PollCounts,
    /// Polls by the NAPI's kernel thread.
    pub kthread: PollCounts,
    /// The polls of `application`, by process, the busiest process first. Empty if pids are unknown because
    /// the observer is not in the initial pid namespace.
    pub by_process: Vec<(Pid, PollCounts)>,
    /// How often the NAPI's timer was armed.
    pub timer_armed: u64,
    /// How often the NAPI's timer expired.
    pub timer_expired: u64,
    /// The longest time for which the timer was armed. It is about a microsecond shorter than the setting
    /// from which it comes, because arming takes that long. A value near `irq-suspend-timeout` shows that
    /// IRQs were suspended.
    pub timer_armed_max: Nanoseconds,
    /// How often the timer was armed with the NAPI's `irq-suspend-timeout`; 0 if that setting is 0.
    pub suspended: u64,
}

impl NapiDelivered {
    /// Sums up all polls of this NAPI.
    pub fn total(&self) -> PollCounts {
        let mut sum = PollCounts::default();
        for part in [self.interrupt, self.timer, self.application, self.kthread] {
            sum += part;
        }
        sum
    }

    /// Sums up the polls in softirq: those after interrupts and those after the timer.
    pub fn softirq(&self) -> PollCounts {
        let mut sum = self.interrupt;
        sum += self.timer;
        sum
    }

    /// Returns the share of packets that an application polled itself, 0..=1; `None` without packets.
    #[expect(clippy::cast_precision_loss, reason = "a share of counts below 2^53")]
    pub fn application_share(&self) -> Option<f64> {
        let packets = self.total().packets;
        (packets > 0).then(|| self.application.packets as f64 / packets as f64)
    }
}

/// Counts for a host over an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delivered {
    /// The length of the interval.
    pub interval: Nanoseconds,
    /// The counts of each NAPI, ordered by id.
    pub napis: Vec<NapiDelivered>,
    /// Polls that belong to no device's NAPI: those of the per-CPU backlog (loopback, RPS, a veth without
    /// NAPI).
    pub backlog: PollCounts,
    /// The number of events that were not counted because a table was full.
    pub lost: u64,
    /// Whether the NAPI timers could not be traced because the kernel hides its symbol addresses
    /// (`kernel.kptr_restrict`). If so, every poll in softirq counts as `interrupt`, and all timer counts are
    /// 0.
    #[serde(default)]
    pub timers_hidden: bool,
}

impl Delivered {
    /// Sums up all polls of all NAPIs.
    pub fn total(&self) -> PollCounts {
        let mut sum = PollCounts::default();
        for napi in &self.napis {
            sum += napi.total();
        }
        sum
    }

    /// Returns the share of all NAPIs' packets that applications polled themselves, 0..=1; `None` without
    /// packets.
    #[expect(clippy::cast_precision_loss, reason = "a share of counts below 2^53")]
    pub fn application_share(&self) -> Option<f64> {
        let packets = self.total().packets;
        let own: u64 = self.napis.iter().map(|napi| napi.application.packets).sum();
        (packets > 0).then(|| own as f64 / packets as f64)
    }

    /// Returns the counts for this NAPI.
    pub fn napi(&self, id: NapiId) -> Option<&NapiDelivered> {
        self.napis.iter().find(|n| n.napi == id)
    }
}
