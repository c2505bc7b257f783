//! The configurations under which netpolicy's own server is measured: delivery modes, and threaded NAPI.

use std::fmt;
use std::str::FromStr;

use model::delivery::NotADeliveryMode;
use model::{DeliveryMode, Nanoseconds, Threading};

use super::label;

/// A configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Configuration {
    /// A delivery mode.
    Mode(DeliveryMode),
    /// Nothing is set: softirqs poll.
    Softirq,
    /// Each NAPI is polled by a kernel thread.
    Threaded {
        /// Whether each thread is pinned to its own CPU of the given set; otherwise the scheduler chooses.
        pinned: bool,
    },
    /// The kernel threads never sleep.
    ThreadedBusy,
    /// The server busy-polls for events and never sleeps.
    UserBusy,
    /// Polling in a workqueue.
    Workqueue,
}

/// Delivery modes for a help text: by name, with `X` for a time.
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
    /// The configurations that the epoll document compares, and those of the other documents that suit the
    /// same server.
    pub(crate) const RR_MATRIX: [&str; 7] =
        ["base", "defer20", "suspend20", "threaded", "threaded-busy", "eventbusy", "userbusy"];

    /// The configurations that the document on threaded NAPI compares, and what the kernel has gained since.
    pub(crate) const THREADED_MATRIX: [Self; 5] = [
        Self::Softirq,
        Self::Threaded { pinned: false },
        Self::Threaded { pinned: true },
        Self::ThreadedBusy,
        Self::Workqueue,
    ];

    /// Why the configuration can never be measured; `None` if it may be possible.
    pub(crate) const fn impossible(self) -> Option<&'static str> {
        match self {
            Self::Workqueue => Some(
                "no kernel has it: its patches were proposed with those for kernel threads, but not merged; it can only be simulated",
            ),
            Self::Mode(_) | Self::Softirq | Self::Threaded { .. } | Self::ThreadedBusy | Self::UserBusy => {
                None
            }
        }
    }

    /// Timeout of the server's `epoll_wait`; `None` for no timeout.
    pub(crate) fn wait_at_most(self) -> Option<Nanoseconds> {
        match self {
            Self::Mode(mode) => mode.params().epoll_wait_cap,
            Self::UserBusy => Some(Nanoseconds::ZERO),
            Self::Softirq | Self::Threaded { .. } | Self::ThreadedBusy | Self::Workqueue => None,
        }
    }

    /// Which kernel threads, if any, poll NAPIs instead of softirqs.
    pub(crate) const fn threading(self) -> Threading {
        match self {
            Self::Threaded { .. } => Threading::On,
            Self::ThreadedBusy => Threading::BusyPoll,
            Self::Mode(mode) => mode.threading(),
            Self::Softirq | Self::UserBusy | Self::Workqueue => Threading::Off,
        }
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => f.pad(&label(*mode)),
            Self::Softirq => f.pad("softirq"),
            Self::Threaded { pinned: false } => f.pad(DeliveryMode::Threaded.name()),
            Self::Threaded { pinned: true } => f.pad("threaded+pinned"),
            Self::ThreadedBusy => f.pad(DeliveryMode::ThreadedBusy.name()),
            Self::UserBusy => f.pad(DeliveryMode::UserBusy.name()),
            Self::Workqueue => f.pad("workqueue"),
        }
    }
}

/// Why a text is not a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAWay(NotADeliveryMode);

impl fmt::Display for NotAWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; and here also softirq and threaded+pinned", self.0)
    }
}

impl std::error::Error for NotAWay {}

impl FromStr for Configuration {
    type Err = NotAWay;

    fn from_str(text: &str) -> Result<Self, NotAWay> {
        match text {
            "softirq" => Ok(Self::Softirq),
            "threaded+pinned" => Ok(Self::Threaded { pinned: true }),
            "workqueue" => Ok(Self::Workqueue),
            mode => Ok(match mode.parse().map_err(NotAWay)? {
                DeliveryMode::Threaded => Self::Threaded { pinned: false },
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
        assert!(Configuration::Workqueue.impossible().is_some());
    }
}
