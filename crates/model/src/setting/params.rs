//! Structured values of settings.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Weight;

/// Whether and how a kernel thread polls a NAPI.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Threading {
    /// Softirq polls the NAPI.
    #[default]
    Off,
    /// A kernel thread polls the NAPI, and sleeps when there are no packets.
    On,
    /// A kernel thread polls the NAPI and never sleeps. Kernel: 6.19, `napi_threaded_poll()`.
    BusyPoll,
}

impl Threading {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Off, Self::On, Self::BusyPoll];

    /// Returns the kernel's number for the value, in netlink (`enum netdev_napi_threaded`) and in
    /// `/sys/class/net/DEV/threaded` (`net/core/net-sysfs.c` `threaded_show()`).
    pub const fn number(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::On => 1,
            Self::BusyPoll => 2,
        }
    }

    /// Returns the value with this number; `None` for an unknown one.
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|threading| threading.number() == number)
    }

    /// Returns the kernel's name for the value. Kernel: 6.18, `Documentation/netlink/specs/netdev.yaml`,
    /// `napi-threaded`.
    pub const fn in_netlink(self) -> &'static str {
        match self {
            Self::Off => "disabled",
            Self::On => "enabled",
            Self::BusyPoll => "busy-poll",
        }
    }

    /// Returns the weight of the value.
    pub(super) const fn weight(self) -> Weight {
        match self {
            Self::Off => Weight(0, 0, 0),
            Self::On => Weight(1, 0, 0),
            Self::BusyPoll => Weight(2, 0, 0),
        }
    }
}

impl fmt::Display for Threading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Off => "off",
            Self::On => "on",
            Self::BusyPoll => "busy-poll",
        })
    }
}

/// The busy-poll parameters of an epoll: `struct epoll_params`, field by field.
///
/// Kernel: 6.9, `include/uapi/linux/eventpoll.h`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct EpollParams {
    /// How long `epoll_wait` polls the NAPI before it sleeps, in microseconds; 0 together with
    /// `prefer_busy_poll` polls exactly once (6.13). Range 0..=2147483647.
    pub busy_poll_usecs: u32,
    /// The maximum number of packets per poll; 0 means the kernel's default of 8. More than 64 needs
    /// CAP_NET_ADMIN.
    pub busy_poll_budget: u16,
    /// Whether the device's IRQ stays masked between polls, as long as the deferral settings allow.
    pub prefer_busy_poll: bool,
    /// Whether `epoll_wait` busy-waits for events only: for `busy_poll_usecs` it checks for events, but polls
    /// no NAPI. `busy_poll_usecs` must then be non-zero, `busy_poll_budget` zero and `prefer_busy_poll`
    /// false.
    ///
    /// Kernel: not released; patches in `kernel/epoll-event-busy-loop/`, `EPOLL_PARAMS_F_EVENTS_ONLY`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub events_only: bool,
}

impl EpollParams {
    /// Whether the epoll prefers busy polling or busy-waits for events.
    pub const fn waits_busily(self) -> bool {
        self.prefer_busy_poll || self.events_only
    }
}

impl fmt::Display for EpollParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!(
            "{}us/{}/{}{}",
            self.busy_poll_usecs,
            self.busy_poll_budget,
            u8::from(self.prefer_busy_poll),
            if self.events_only { "/events-only" } else { "" }
        ))
    }
}

/// How a receive call on one socket busy-polls, without an epoll.
///
/// Kernel: 5.11, `include/net/sock.h` `sk_ll_usec`, `sk_prefer_busy_poll`, `sk_busy_poll_budget`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct SocketPolling {
    /// How long a receive polls the NAPI before it sleeps, in microseconds (`SO_BUSY_POLL`); 0 means that it
    /// does not poll. Range 0..=2147483647.
    pub busy_poll_usecs: u32,
    /// Whether the device's IRQ stays masked between polls, as long as the deferral settings allow
    /// (`SO_PREFER_BUSY_POLL`).
    pub prefer_busy_poll: bool,
    /// The maximum number of packets per poll (`SO_BUSY_POLL_BUDGET`); 0 means the kernel's default of 8.
    /// `None` leaves the budget unchanged: `getsockopt` does not report it, so it can only be read with BPF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_poll_budget: Option<u16>,
}

impl SocketPolling {
    /// Whether a receive call polls at all.
    pub const fn polls(self) -> bool {
        self.busy_poll_usecs > 0
    }
}

impl fmt::Display for SocketPolling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let budget = self.busy_poll_budget.map_or_else(|| "-".to_owned(), |budget| budget.to_string());
        f.pad(&format!("{}us/{budget}/{}", self.busy_poll_usecs, u8::from(self.prefer_busy_poll)))
    }
}

/// The busy-poll parameters of an io_uring that can be set from outside: part of `struct io_uring_napi`.
///
/// Kernel: 6.9, `include/uapi/linux/io_uring.h`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct RingNapi {
    /// How long a wait for completions polls before it sleeps, in microseconds.
    pub busy_poll_usecs: u32,
    /// Whether the device's IRQ stays masked between polls.
    pub prefer_busy_poll: bool,
}

impl fmt::Display for RingNapi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}us/{}", self.busy_poll_usecs, u8::from(self.prefer_busy_poll)))
    }
}
