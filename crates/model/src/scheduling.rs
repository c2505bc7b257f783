//! Defines the scheduling of a NAPI's kernel thread: CPUs, class and priority, and utilisation clamp.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::ids::Pid;
use crate::units::Nanoseconds;

/// A scheduling class and its priority, such as `other`, `other:-5`, `batch:5`, `fifo:50` or `rr:10`.
///
/// Kernel: 2.6.16 (`SCHED_BATCH`), `include/uapi/linux/sched.h`, `kernel/sched/syscalls.c` `sched_setattr()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheduling {
    /// `SCHED_OTHER` with its nice value, -20..=19: the default of every thread.
    Other(i8),
    /// `SCHED_BATCH` with its nice value, -20..=19: like `Other`, but never preempts on wake-up.
    Batch(i8),
    /// `SCHED_FIFO` with its priority, 1..=99: runs before all threads of the other classes, until it sleeps.
    Fifo(u8),
    /// `SCHED_RR` with its priority, 1..=99: like `Fifo`, but takes turns with threads of the same priority.
    RoundRobin(u8),
}

impl Scheduling {
    /// The range of nice values. Kernel: `include/linux/sched/prio.h` `MIN_NICE`, `MAX_NICE`.
    pub const NICE: std::ops::RangeInclusive<i8> = -20..=19;

    /// The range of real-time priorities. Kernel: `include/linux/sched/prio.h` `MAX_RT_PRIO` less one.
    pub const PRIORITY: std::ops::RangeInclusive<u8> = 1..=99;

    /// Returns the real-time priority; `None` for other classes.
    pub const fn real_time(self) -> Option<u8> {
        match self {
            Self::Fifo(priority) | Self::RoundRobin(priority) => Some(priority),
            Self::Other(_) | Self::Batch(_) => None,
        }
    }
}

impl fmt::Display for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self {
            Self::Other(0) => "other".to_owned(),
            Self::Other(nice) => format!("other:{nice}"),
            Self::Batch(0) => "batch".to_owned(),
            Self::Batch(nice) => format!("batch:{nice}"),
            Self::Fifo(priority) => format!("fifo:{priority}"),
            Self::RoundRobin(priority) => format!("rr:{priority}"),
        })
    }
}

/// The error for text that is not a scheduling value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotScheduling {
    text: String,
    meant: Cow<'static, str>,
}

impl fmt::Display for NotScheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not {}", self.text, self.meant)
    }
}

impl std::error::Error for NotScheduling {}

impl FromStr for Scheduling {
    type Err = NotScheduling;

    fn from_str(text: &str) -> Result<Self, NotScheduling> {
        let wrong = || {
            NotScheduling {
            text: text.to_owned(),
            meant: "a scheduling class: expected other or batch, with a nice value from -20 to 19 as in other:-5, \
                    and fifo and rr, with a priority from 1 to 99 as in fifo:50"
                .into(),
        }
        };
        let (class, number) = match text.split_once(':') {
            Some((class, number)) => (class, Some(number)),
            None => (text, None),
        };
        let nice = || match number {
            None => Some(0),
            Some(number) => number.parse().ok().filter(|nice| Self::NICE.contains(nice)),
        };
        let priority = || number?.parse().ok().filter(|priority| Self::PRIORITY.contains(priority));
        match class {
            "other" => nice().map(Self::Other),
            "batch" => nice().map(Self::Batch),
            "fifo" => priority().map(Self::Fifo),
            "rr" => priority().map(Self::RoundRobin),
            _ => None,
        }
        .ok_or_else(wrong)
    }
}

/// The minimum and maximum utilisation that the scheduler assumes for a thread when it chooses a CPU and its
/// frequency, in 1024ths of the largest CPU, such as `512-1024`. `0-1024` means no clamp.
///
/// Kernel: 5.3 with `CONFIG_UCLAMP_TASK`, `kernel/sched/syscalls.c` `uclamp_validate()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UtilClamp {
    /// The minimum utilisation, at most `max`.
    pub min: u16,
    /// The maximum utilisation, at most 1024.
    pub max: u16,
}

impl UtilClamp {
    /// The utilisation of a whole CPU. Kernel: `include/linux/sched.h` `SCHED_CAPACITY_SCALE`.
    pub const WHOLE: u16 = 1024;

    /// The value of a thread that was never clamped.
    pub const NONE: Self = Self { min: 0, max: Self::WHOLE };
}

impl fmt::Display for UtilClamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}-{}", self.min, self.max))
    }
}

impl FromStr for UtilClamp {
    type Err = NotScheduling;

    fn from_str(text: &str) -> Result<Self, NotScheduling> {
        let parsed = text.split_once('-').and_then(|(min, max)| {
            let clamp = Self { min: min.trim().parse().ok()?, max: max.trim().parse().ok()? };
            (clamp.min <= clamp.max && clamp.max <= Self::WHOLE).then_some(clamp)
        });
        parsed.ok_or_else(|| NotScheduling {
            text: text.to_owned(),
            meant: "a utilisation clamp: write the least and the most in 1024ths of a CPU, as in 512-1024"
                .into(),
        })
    }
}

/// How long a thread of class `other` or `batch` runs before another waiting thread gets its turn, such as
/// `500us`, or `default`.
///
/// Kernel: 6.12, `kernel/sched/syscalls.c` `__setparam_fair()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slice {
    /// The scheduler's default, which grows with the number of CPUs: `/sys/kernel/debug/sched/base_slice_ns`.
    Default,
    /// A custom slice, from [`Slice::LEAST`] to [`Slice::MOST`].
    Own(Nanoseconds),
}

impl Slice {
    /// The shortest slice that the kernel does not clamp. Kernel: 6.12, `__setparam_fair()`,
    /// `NSEC_PER_MSEC/10`.
    pub const LEAST: Nanoseconds = Nanoseconds(100_000);

    /// The longest slice that the kernel does not clamp. Kernel: 6.12, `__setparam_fair()`,
    /// `NSEC_PER_MSEC*100`.
    pub const MOST: Nanoseconds = Nanoseconds(100_000_000);
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.pad("default"),
            Self::Own(span) => span.fmt(f),
        }
    }
}

impl FromStr for Slice {
    type Err = NotScheduling;

    fn from_str(text: &str) -> Result<Self, NotScheduling> {
        if text == "default" {
            return Ok(Self::Default);
        }
        let span = text.parse().ok().filter(|span| (Self::LEAST..=Self::MOST).contains(span));
        span.map(Self::Own).ok_or_else(|| NotScheduling {
            text: text.to_owned(),
            meant: format!(
                "a slice: write a span of time from {} to {}, or default",
                Self::LEAST,
                Self::MOST
            )
            .into(),
        })
    }
}

/// The CPUs on which a NAPI's kernel thread should run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KthreadCpus {
    /// Any CPU in the thread's initial affinity.
    Any,
    /// The CPUs to which the NAPI's interrupt is delivered.
    Irq,
    /// The other hardware threads of the core that gets the NAPI's interrupt.
    Sibling,
    /// On these CPUs.
    Set(CpuSet),
}

impl fmt::Display for KthreadCpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.pad("any"),
            Self::Irq => f.pad("irq"),
            Self::Sibling => f.pad("sibling"),
            Self::Set(cpus) => f.pad(&cpus.to_string()),
        }
    }
}

impl FromStr for KthreadCpus {
    type Err = NotScheduling;

    fn from_str(text: &str) -> Result<Self, NotScheduling> {
        match text {
            "any" => Ok(Self::Any),
            "irq" => Ok(Self::Irq),
            "sibling" => Ok(Self::Sibling),
            list => {
                list.parse().ok().filter(|cpus: &CpuSet| !cpus.is_empty()).map(Self::Set).ok_or_else(|| {
                    NotScheduling {
                        text: text.to_owned(),
                        meant:
                            "CPUs for kernel threads: expected any, irq, sibling or a list of CPUs as in 4-7"
                                .into(),
                    }
                })
            }
        }
    }
}

crate::as_text! {
    Scheduling: "a policy of the scheduler with its priority: other:0, fifo:50",
    UtilClamp: "bounds of the utilisation: MIN-MAX, each 0 to 1024",
    Slice: "a span of time, or default",
    KthreadCpus: "CPUs, or how they are chosen",
}

/// The scheduling that is requested for the kernel threads of NAPIs; `None` leaves a value unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KthreadRequest {
    /// The CPUs.
    pub cpus: Option<KthreadCpus>,
    /// The scheduling class and priority.
    pub scheduling: Option<Scheduling>,
    /// See [`crate::KthreadKnob::UtilClamp`].
    pub util_clamp: Option<UtilClamp>,
    /// See [`crate::KthreadKnob::Slice`].
    #[serde(default)]
    pub slice: Option<Slice>,
}

impl KthreadRequest {
    /// Whether nothing is requested.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The observed scheduling of a kernel thread; `None` for values that this kernel does not support.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KthreadState {
    /// The thread's current pid; `None` for a thread that does not exist yet.
    pub pid: Option<Pid>,
    /// The CPUs that the thread may run on.
    pub cpus: CpuSet,
    /// The scheduling class; `None` for classes that are not supported for a NAPI's thread, such as
    /// `SCHED_DEADLINE`.
    pub scheduling: Option<Scheduling>,
    /// The utilisation clamp.
    pub util_clamp: Option<UtilClamp>,
    /// The slice. A custom slice that equals the scheduler's default cannot be distinguished from the
    /// default.
    #[serde(default)]
    pub slice: Option<Slice>,
}

/// The share of each period for which real-time threads may run.
///
/// Kernel: 2.6.25, `kernel/sched/rt.c`; `/proc/sys/kernel/sched_rt_runtime_us`, `sched_rt_period_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RtThrottling {
    /// How long real-time threads may run in each period, in microseconds; -1 means the whole period, 0 means
    /// not at all.
    pub runtime_us: i64,
    /// The period, in microseconds.
    pub period_us: i64,
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::KthreadValue;

    #[test]
    fn every_class_and_place_survives_its_name() {
        for text in ["other", "other:-20", "batch", "batch:19", "fifo:1", "rr:99"] {
            assert_eq!(text.parse::<Scheduling>().expect("parses").to_string(), text);
        }
        for text in ["any", "irq", "sibling", "4-7"] {
            assert_eq!(text.parse::<KthreadCpus>().expect("parses").to_string(), text);
        }
        assert_eq!("0-1024".parse::<UtilClamp>(), Ok(UtilClamp::NONE));
    }

    #[test]
    fn a_priority_or_clamp_out_of_range_is_refused() {
        for text in ["fifo", "fifo:0", "fifo:100", "rr:", "other:-21", "other:20", "batch:x", "deadline", ""]
        {
            assert!(text.parse::<Scheduling>().is_err(), "{text}");
        }
        for text in ["5", "6-5", "0-1025", "-1-5"] {
            assert!(text.parse::<UtilClamp>().is_err(), "{text}");
        }
        for text in ["99us", "100.1ms", "0", "5", ""] {
            assert!(text.parse::<Slice>().is_err(), "{text}");
        }
        for text in ["", "core", "4-", "none"] {
            assert!(text.parse::<KthreadCpus>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_key_reads_what_it_writes() {
        for (path, text) in [
            ("kthread.cpus", "irq"),
            ("kthread.class", "fifo:50"),
            ("kthread.util-clamp", "512-1024"),
            ("kthread.slice", "500us"),
            ("kthread.slice", "default"),
        ] {
            let key = KthreadValue::KEYS.iter().find(|key| key.path() == path).expect("a key");
            let value = (key.read)(text).expect("parses");
            assert_eq!((value.path(), value.to_string().as_str()), (path, text));
        }
    }

    #[test]
    fn only_fifo_and_rr_are_real_time() {
        let priorities =
            [Scheduling::Other(-20), Scheduling::Batch(0), Scheduling::Fifo(3), Scheduling::RoundRobin(4)];
        assert_eq!(priorities.map(Scheduling::real_time), [None, None, Some(3), Some(4)]);
    }
}
