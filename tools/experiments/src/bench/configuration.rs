//! The configurations under which netpolicy's own server is measured: delivery modes, and threaded NAPI.

use std::fmt;
use std::str::FromStr;

use model::delivery::NotADeliveryMode;
use model::{Cpu, DeliveryMode, Nanoseconds, Scheduling, Threading};

use super::label;
use super::workqueue::{self, Workqueue};

/// A configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Configuration {
    /// A delivery mode.
    Mode(DeliveryMode),
    /// Nothing is set: softirqs poll.
    Softirq,
    /// Each NAPI is polled by a kernel thread.
    Threaded {
        /// Where the threads may run.
        place: KthreadPlacement,
        /// Whether the threads have the real-time class [`Configuration::REAL_TIME`].
        real_time: bool,
    },
    /// Each NAPI is polled by a kernel thread that never sleeps.
    ThreadedBusy,
    /// The server busy-polls for events and never sleeps.
    UserBusy,
    /// A workqueue polls, which only a test kernel supports.
    Workqueue(Workqueue),
}

/// Where the kernel threads of NAPIs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KthreadPlacement {
    /// On the CPUs that the scheduler selects.
    Anywhere,
    /// Each thread on one CPU of the set in `--kthread-cpus`, in turn.
    Pinned,
    /// All threads on this CPU.
    On(Cpu),
}

/// Formats delivery modes for a help text: by name, with `X` for a time.
pub(super) fn in_help(lists: impl Fn(DeliveryMode) -> bool) -> String {
    let modes = DeliveryMode::EACH.into_iter().zip(DeliveryMode::names()).filter(|(mode, _)| lists(*mode));
    let names: Vec<String> = modes
        .map(|(mode, name)| match mode {
            DeliveryMode::Interrupt => format!("{} (also {name})", DeliveryMode::BASE),
            _ => name,
        })
        .collect();
    names.join(", ")
}

impl Configuration {
    /// The configurations that the epoll document compares, and those of the other documents that can be
    /// measured with the same server.
    pub(crate) const RR_MATRIX: [&str; 7] =
        ["base", "defer20", "suspend20", "threaded", "threaded-busy", "eventbusy", "userbusy"];

    /// The configurations that the document on threaded NAPI compares, and the busy variant that the kernel
    /// has gained since then.
    pub(crate) const THREADED_MATRIX: [Self; 5] = [
        Self::Softirq,
        Self::Threaded { place: KthreadPlacement::Anywhere, real_time: false },
        Self::Threaded { place: KthreadPlacement::Pinned, real_time: false },
        Self::ThreadedBusy,
        Self::Workqueue(Workqueue::Unbound),
    ];

    /// The scheduling class that `+fifo` selects.
    pub(crate) const REAL_TIME: Scheduling = Scheduling::Fifo(50);

    /// Returns the reason why this kernel can never measure the configuration; `None` if it may be able to.
    pub(crate) fn impossible(self) -> Option<&'static str> {
        match self {
            Self::Workqueue(_) => workqueue::impossible(),
            Self::Mode(_) | Self::Softirq | Self::Threaded { .. } | Self::ThreadedBusy | Self::UserBusy => {
                None
            }
        }
    }

    /// Returns the timeout of the server's `epoll_wait`; `None` for no timeout.
    pub(crate) fn wait_at_most(self) -> Option<Nanoseconds> {
        match self {
            Self::Mode(mode) => mode.params().epoll_wait_cap,
            Self::UserBusy => Some(Nanoseconds::ZERO),
            Self::Softirq | Self::Threaded { .. } | Self::ThreadedBusy | Self::Workqueue(_) => None,
        }
    }

    /// Returns which kernel threads, if any, poll NAPIs instead of softirqs. A workqueue polls the NAPIs that
    /// have a thread.
    pub(crate) const fn threading(self) -> Threading {
        match self {
            Self::Threaded { .. } | Self::Workqueue(_) => Threading::On,
            Self::ThreadedBusy => Threading::BusyPoll,
            Self::Mode(mode) => mode.threading(),
            Self::Softirq | Self::UserBusy => Threading::Off,
        }
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => f.pad(&label(*mode)),
            Self::Softirq => f.pad("softirq"),
            Self::Threaded { place, real_time } => {
                let place = match place {
                    KthreadPlacement::Anywhere => String::new(),
                    KthreadPlacement::Pinned => PINNED.to_owned(),
                    KthreadPlacement::On(cpu) => format!("@{cpu}"),
                };
                let class = if *real_time { FIFO } else { "" };
                f.pad(&format!("{}{place}{class}", DeliveryMode::Threaded.name()))
            }
            Self::ThreadedBusy => f.pad(DeliveryMode::ThreadedBusy.name()),
            Self::UserBusy => f.pad(DeliveryMode::UserBusy.name()),
            Self::Workqueue(workqueue) => f.pad(workqueue.name()),
        }
    }
}

/// The text after `threaded` that pins each thread to one CPU of `--kthread-cpus`.
const PINNED: &str = "+pinned";

/// The text after `threaded` and its place that selects the real-time class.
const FIFO: &str = "+fifo";

/// Parses `threaded`, a place and a class.
fn threaded(text: &str) -> Option<Configuration> {
    let rest = text.strip_prefix(DeliveryMode::Threaded.name())?;
    let (place, real_time) = rest.strip_suffix(FIFO).map_or((rest, false), |place| (place, true));
    let place = match place {
        "" => KthreadPlacement::Anywhere,
        PINNED => KthreadPlacement::Pinned,
        cpu => KthreadPlacement::On(Cpu(cpu.strip_prefix('@')?.parse().ok()?)),
    };
    Some(Configuration::Threaded { place, real_time })
}

/// The error for a text that is not a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAWay(NotADeliveryMode);

impl fmt::Display for NotAWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; and here also softirq, threaded+pinned, threaded@CPU and workqueue", self.0)
    }
}

impl std::error::Error for NotAWay {}

impl FromStr for Configuration {
    type Err = NotAWay;

    fn from_str(text: &str) -> Result<Self, NotAWay> {
        let workqueue = Workqueue::EACH.into_iter().find(|workqueue| workqueue.name() == text);
        if let Some(configuration) = threaded(text).or(workqueue.map(Self::Workqueue)) {
            return Ok(configuration);
        }
        match text {
            "softirq" => Ok(Self::Softirq),
            mode => Ok(match mode.parse().map_err(NotAWay)? {
                DeliveryMode::ThreadedBusy => Self::ThreadedBusy,
                DeliveryMode::UserBusy => Self::UserBusy,
                mode => Self::Mode(mode),
            }),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_configuration_survives_its_name() {
        for configuration in Configuration::THREADED_MATRIX {
            assert_eq!(configuration.to_string().parse::<Configuration>(), Ok(configuration));
        }
        for name in
            ["threaded@1", "threaded@0+fifo", "threaded+fifo", "threaded+pinned+fifo", "workqueue+bound"]
        {
            assert_eq!(name.parse::<Configuration>().expect("is one").to_string(), name);
        }
        assert!(
            "threaded@".parse::<Configuration>().is_err() && "threaded+".parse::<Configuration>().is_err()
        );
        assert_eq!("base".parse::<Configuration>().expect("a mode").to_string(), "base");
        let error = "threads".parse::<Configuration>().expect_err("is none").to_string();
        assert!(error.contains("suspendX") && error.contains("threaded+pinned"), "{error}");
    }

    #[test]
    fn only_spinning_needs_the_servers_own_help() {
        assert_eq!(
            "userbusy".parse::<Configuration>().expect("is one").wait_at_most(),
            Some(Nanoseconds::ZERO)
        );
        assert_eq!("suspend20".parse::<Configuration>().expect("is one").wait_at_most(), None);
    }
}
