//! Who delivered the packets: what was counted over an interval, per NAPI.
//!
//! A mode that is set is not yet engaged: these counts show the difference.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{NapiId, Pid};
use crate::units::Nanoseconds;

/// Polls and the packets they delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PollCounts {
    /// Calls of the NAPI's poll function.
    pub polls: u64,
    /// Packets that they returned as work.
    pub packets: u64,
    /// Calls that found nothing.
    pub empty: u64,
}

impl std::ops::AddAssign for PollCounts {
    fn add_assign(&mut self, other: Self) {
        self.polls += other.polls;
        self.packets += other.packets;
        self.empty += other.empty;
    }
}

/// For how long a thread was ready to run and had no CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuWait {
    /// All of it.
    pub waited: Nanoseconds,
    /// How often it was put on a CPU meanwhile.
    pub turns: u64,
}

impl CpuWait {
    /// How long it waited each time, on average; `None` where it never ran.
    pub fn each(&self) -> Option<Nanoseconds> {
        self.waited.0.checked_div(self.turns).map(Nanoseconds)
    }
}

/// What was counted for one NAPI.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NapiDelivered {
    /// The NAPI.
    pub napi: NapiId,
    /// The device's name, as the kernel gave it with the poll.
    pub device: String,
    /// Polled in softirq, after an interrupt or by the sender of the packet (veth, loopback); with
    /// [`Delivered::timers_hidden`] also after the timer.
    pub interrupt: PollCounts,
    /// Polled in softirq, because the NAPI's timer expired.
    pub timer: PollCounts,
    /// Polled by an application in its own system call, also in the softirq that it raises there when it resumes the IRQ: that
    /// is still masked, so no interrupt came. Kernel: 7.3, `net/core/dev.c` `napi_resume_irqs()`.
    pub application: PollCounts,
    /// Polled by the NAPI's kernel thread.
    pub kthread: PollCounts,
    /// `application` by process, the busiest first. Empty where pids are unknown, because the observer is not
    /// in the initial pid namespace.
    pub by_process: Vec<(Pid, PollCounts)>,
    /// How often the NAPI's timer was armed.
    pub timer_armed: u64,
    /// How often it expired.
    pub timer_expired: u64,
    /// The longest span that the timer was armed with, short of the setting it came from by the microsecond that
    /// arming takes: near `irq-suspend-timeout`, suspension was in force.
    pub timer_armed_max: Nanoseconds,
    /// How often the timer was armed with the NAPI's own `irq-suspend-timeout`; 0 where that is not set.
    pub suspended: u64,
}

impl NapiDelivered {
    /// All polls of this NAPI together.
    pub fn total(&self) -> PollCounts {
        let mut sum = PollCounts::default();
        for part in [self.interrupt, self.timer, self.application, self.kthread] {
            sum += part;
        }
        sum
    }

    /// Polls in softirq, for whatever cause.
    pub fn softirq(&self) -> PollCounts {
        let mut sum = self.interrupt;
        sum += self.timer;
        sum
    }

    /// The share of packets that an application polled for itself, 0..=1; `None` without packets.
    #[expect(clippy::cast_precision_loss, reason = "a share of counts below 2^53")]
    pub fn application_share(&self) -> Option<f64> {
        let packets = self.total().packets;
        (packets > 0).then(|| self.application.packets as f64 / packets as f64)
    }
}

/// What was counted on a host over an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delivered {
    /// How long was counted.
    pub interval: Nanoseconds,
    /// By NAPI, by id.
    pub napis: Vec<NapiDelivered>,
    /// Packets on no NAPI: the per-CPU backlog (loopback, RPS, a veth without NAPI).
    pub backlog: PollCounts,
    /// Events that could not be counted because a table was full.
    pub lost: u64,
    /// Whether the NAPI timers could not be watched, because the kernel hides its symbols (`kernel.kptr_restrict`).
    /// Then every poll in softirq counts as `interrupt` and all counts of timers are 0, which says nothing.
    #[serde(default)]
    pub timers_hidden: bool,
}

impl Delivered {
    /// All polls of all NAPIs together.
    pub fn total(&self) -> PollCounts {
        let mut sum = PollCounts::default();
        for napi in &self.napis {
            sum += napi.total();
        }
        sum
    }

    /// The share of the packets of all NAPIs that applications polled for themselves, 0..=1; `None` without packets.
    #[expect(clippy::cast_precision_loss, reason = "a share of counts below 2^53")]
    pub fn application_share(&self) -> Option<f64> {
        let packets = self.total().packets;
        let own: u64 = self.napis.iter().map(|napi| napi.application.packets).sum();
        (packets > 0).then(|| own as f64 / packets as f64)
    }

    /// What was counted for this NAPI.
    pub fn napi(&self, id: NapiId) -> Option<&NapiDelivered> {
        self.napis.iter().find(|n| n.napi == id)
    }
}
