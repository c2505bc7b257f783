//! Delivery modes: how packets reach an application, and the parameters of each mode.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::setting::{EpollParams, Threading};
use crate::units::{EmptyPolls, Nanoseconds};

/// How packets are delivered to an application. A policy chooses a mode; an expert can name one.
///
/// The names are those of the IRQ suspension document: `interrupt` (its *base*), `defer20` (microseconds of
/// `gro-flush-timeout`), `napibusy`, `fullbusy`, `suspend20`. `eventbusy` and `userbusy` come from the epoll
/// document, `threaded` from the threaded NAPI document, and `threaded-busy` from later kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeliveryMode {
    /// Every batch of packets begins with an interrupt: the kernel's default.
    Interrupt,
    /// Interrupts are deferred and a timer polls: less interference, but up to one timeout of added delay.
    Defer {
        /// The timer's period, `gro-flush-timeout`.
        gro_flush: Nanoseconds,
    },
    /// `epoll_wait` polls the NAPI for up to 64 µs before it sleeps.
    NapiBusy,
    /// `epoll_wait` polls without sleeping: the lowest latency, at the cost of one CPU per thread.
    FullBusy,
    /// Interrupts stay masked as long as `epoll_wait` finds events, and are deferred otherwise.
    Suspend {
        /// The short timeout, used when the application is idle: `gro-flush-timeout`.
        gro_flush: Nanoseconds,
    },
    /// `epoll_wait` checks for events for up to 200 µs before it sleeps. It polls no NAPI; softirqs deliver.
    EventBusy,
    /// The application calls `epoll_wait` in a loop without ever sleeping: a substitute for `EventBusy` on
    /// kernels that lack event-only polling.
    UserBusy,
    /// A kernel thread polls the NAPI, and the scheduler treats it like any other thread.
    Threaded,
    /// A kernel thread polls the NAPI without sleeping, which takes one CPU per queue.
    ThreadedBusy,
}

/// The parameters of a delivery mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeliveryParams {
    /// See [`crate::NapiKnob::DeferHardIrqs`].
    pub defer_hard_irqs: EmptyPolls,
    /// See [`crate::NapiKnob::GroFlushTimeout`].
    pub gro_flush_timeout: Nanoseconds,
    /// See [`crate::NapiKnob::IrqSuspendTimeout`].
    pub irq_suspend_timeout: Nanoseconds,
    /// The epoll parameters, see [`crate::ProcessKnob::Epoll`]; all zero disables busy polling.
    pub epoll: EpollParams,
    /// The maximum time that `epoll_wait` sleeps; 0 means that it never sleeps. `None` keeps the
    /// application's own timeout.
    pub epoll_wait_cap: Option<Nanoseconds>,
}

impl DeliveryMode {
    /// The eleven configurations of the IRQ suspension document, in its order.
    ///
    /// Source: "Suspend IRQs during application busy periods", v1 cover letter, "Benchmark configs & descriptions".
    pub const DOCUMENT: [Self; 11] = [
        Self::Interrupt,
        Self::Defer { gro_flush: Nanoseconds::from_micros(10) },
        Self::Defer { gro_flush: Nanoseconds::from_micros(20) },
        Self::Defer { gro_flush: Nanoseconds::from_micros(50) },
        Self::Defer { gro_flush: Nanoseconds::from_micros(200) },
        Self::FullBusy,
        Self::NapiBusy,
        Self::Suspend { gro_flush: Nanoseconds::from_micros(10) },
        Self::Suspend { gro_flush: Nanoseconds::from_micros(20) },
        Self::Suspend { gro_flush: Nanoseconds::from_micros(50) },
        Self::Suspend { gro_flush: Nanoseconds::from_micros(200) },
    ];

    /// The two modes that the epoll document compares with [`Self::Interrupt`]: "epoll busyloop" and
    /// "userspace busyloop".
    ///
    /// Source: "Add provision to busyloop for events in ep_poll", linux-kernel, 2024-08-28.
    pub const EPOLL_DOCUMENT: [Self; 2] = [Self::EventBusy, Self::UserBusy];

    /// The mode that the threaded NAPI document compares with [`Self::Interrupt`], and the kernel's later
    /// busy-polling variant.
    ///
    /// Source: "implement kthread based napi poll", netdev, 2021-02; Linux 6.19, `NETDEV_NAPI_THREADED_BUSY_POLL`.
    pub const THREADED: [Self; 2] = [Self::Threaded, Self::ThreadedBusy];

    /// The default time of a mode whose name is given without a time.
    const START: Nanoseconds = Nanoseconds::from_micros(20);

    /// Every mode once, in display order; a mode with a time has the default of 20 µs.
    pub const EACH: [Self; 9] = [
        Self::Interrupt,
        Self::Defer { gro_flush: Self::START },
        Self::NapiBusy,
        Self::FullBusy,
        Self::Suspend { gro_flush: Self::START },
        Self::EventBusy,
        Self::UserBusy,
        Self::Threaded,
        Self::ThreadedBusy,
    ];

    /// The IRQ suspension document's name for [`Self::Interrupt`].
    pub const BASE: &'static str = "base";

    /// Returns the mode's name, without its time.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupt",
            Self::Defer { .. } => "defer",
            Self::NapiBusy => "napibusy",
            Self::FullBusy => "fullbusy",
            Self::Suspend { .. } => "suspend",
            Self::EventBusy => "eventbusy",
            Self::UserBusy => "userbusy",
            Self::Threaded => "threaded",
            Self::ThreadedBusy => "threaded-busy",
        }
    }

    /// Returns the time in the mode's name; `None` for modes without a time.
    pub const fn time(self) -> Option<Nanoseconds> {
        match self {
            Self::Defer { gro_flush } | Self::Suspend { gro_flush } => Some(gro_flush),
            Self::Interrupt
            | Self::NapiBusy
            | Self::FullBusy
            | Self::EventBusy
            | Self::UserBusy
            | Self::Threaded
            | Self::ThreadedBusy => None,
        }
    }

    /// Returns the names of all modes, with `X` for a time: `interrupt`, `deferX` and so on.
    pub fn names() -> [String; 9] {
        Self::EACH.map(|mode| format!("{}{}", mode.name(), if mode.time().is_some() { "X" } else { "" }))
    }

    /// Returns the documents' values for this mode. The epoll document gives no time for its modes; they get
    /// 200 µs, which is longer than the gaps of an event loop that benefits, and with which our own tables
    /// were measured. All of these are starting values: they suit the documents' machines and must be tuned
    /// on other machines.
    pub const fn params(self) -> DeliveryParams {
        const fn epoll(usecs: u32) -> EpollParams {
            EpollParams {
                busy_poll_usecs: usecs,
                busy_poll_budget: 64,
                prefer_busy_poll: true,
                events_only: false,
            }
        }
        const STILL: EpollParams = EpollParams {
            busy_poll_usecs: 0,
            busy_poll_budget: 0,
            prefer_busy_poll: false,
            events_only: false,
        };
        const OFF: DeliveryParams = DeliveryParams {
            defer_hard_irqs: EmptyPolls(0),
            gro_flush_timeout: Nanoseconds::ZERO,
            irq_suspend_timeout: Nanoseconds::ZERO,
            epoll: STILL,
            epoll_wait_cap: None,
        };
        const DEFER: DeliveryParams = DeliveryParams { defer_hard_irqs: EmptyPolls(100), ..OFF };
        match self {
            Self::Interrupt => OFF,
            Self::Defer { gro_flush } => DeliveryParams { gro_flush_timeout: gro_flush, ..DEFER },
            Self::NapiBusy => {
                DeliveryParams { gro_flush_timeout: Nanoseconds::from_micros(200), epoll: epoll(64), ..DEFER }
            }
            Self::FullBusy => DeliveryParams {
                gro_flush_timeout: Nanoseconds::from_millis(5),
                epoll: epoll(1000),
                epoll_wait_cap: Some(Nanoseconds::from_millis(1)),
                ..DEFER
            },
            Self::Suspend { gro_flush } => DeliveryParams {
                gro_flush_timeout: gro_flush,
                irq_suspend_timeout: Nanoseconds::from_millis(20),
                epoll: epoll(0),
                ..DEFER
            },
            Self::EventBusy => DeliveryParams {
                epoll: EpollParams { busy_poll_usecs: 200, events_only: true, ..STILL },
                ..OFF
            },
            Self::UserBusy => DeliveryParams { epoll_wait_cap: Some(Nanoseconds::ZERO), ..OFF },
            Self::Threaded | Self::ThreadedBusy => OFF,
        }
    }

    /// Returns the number of CPUs that may busy-wait per application thread: while there is no traffic or,
    /// with `eventbusy`, while events arrive at intervals shorter than the mode's busy-wait time.
    pub const fn polling_cpus_per_thread(self) -> u32 {
        match self {
            Self::FullBusy | Self::EventBusy | Self::UserBusy => 1,
            Self::Interrupt
            | Self::Defer { .. }
            | Self::NapiBusy
            | Self::Suspend { .. }
            | Self::Threaded
            | Self::ThreadedBusy => 0,
        }
    }

    /// Returns whether and how kernel threads poll the NAPIs if the application does not: see
    /// [`crate::NapiKnob::Threaded`].
    pub const fn threading(self) -> Threading {
        match self {
            Self::Threaded => Threading::On,
            Self::ThreadedBusy => Threading::BusyPoll,
            Self::Interrupt
            | Self::Defer { .. }
            | Self::NapiBusy
            | Self::FullBusy
            | Self::Suspend { .. }
            | Self::EventBusy
            | Self::UserBusy => Threading::Off,
        }
    }

    /// Returns the number of CPUs that busy-poll per NAPI while there is no traffic.
    pub const fn polling_cpus_per_napi(self) -> u32 {
        match self {
            Self::ThreadedBusy => 1,
            Self::Interrupt
            | Self::Defer { .. }
            | Self::NapiBusy
            | Self::FullBusy
            | Self::Suspend { .. }
            | Self::EventBusy
            | Self::UserBusy
            | Self::Threaded => 0,
        }
    }
}

impl fmt::Display for DeliveryMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self.time().map(|time| (time, time.exact_micros())) {
            None => f.pad(name),
            Some((_, Some(micros))) => f.pad(&format!("{name}{micros}")),
            Some((time, None)) => f.pad(&format!("{name}:{time}")),
        }
    }
}

/// The error for text that is not a delivery mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotADeliveryMode(pub String);

impl fmt::Display for NotADeliveryMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = DeliveryMode::names();
        let (last, names) =
            names.split_last().map_or(("", &names[..]), |(last, names)| (last.as_str(), names));
        write!(
            f,
            "`{}` is not a delivery mode: expected {} or {last}, X in microseconds as in suspend20, or with a unit as in \
             suspend:1.5ms",
            self.0,
            names.join(", ")
        )
    }
}

impl std::error::Error for NotADeliveryMode {}

impl FromStr for DeliveryMode {
    type Err = NotADeliveryMode;

    /// Parses the names of [`DeliveryMode`], and `base` for `interrupt`. `defer` and `suspend` without a time
    /// mean 20 µs.
    fn from_str(text: &str) -> Result<Self, NotADeliveryMode> {
        let wrong = || NotADeliveryMode(text.to_owned());
        let span = |rest: &str| match rest.strip_prefix(':') {
            _ if rest.is_empty() => Ok(Self::START),
            Some(span) => span.parse().map_err(|_| wrong()),
            None if rest.bytes().all(|b| b.is_ascii_digit()) => {
                let micros: u64 = rest.parse().map_err(|_| wrong())?;
                micros.checked_mul(1_000).map(Nanoseconds).ok_or_else(wrong)
            }
            None => Err(wrong()),
        };
        let positive = |span: Nanoseconds| if span.is_zero() { Err(wrong()) } else { Ok(span) };
        let named = |mode: &Self| mode.name() == text || (*mode == Self::Interrupt && text == Self::BASE);
        if let Some(mode) = Self::EACH.into_iter().find(named) {
            return Ok(mode);
        }
        let timed = |mode: Self| mode.time().and(text.strip_prefix(mode.name())).map(|rest| (mode, rest));
        let (mode, rest) = Self::EACH.into_iter().find_map(timed).ok_or_else(wrong)?;
        let gro_flush = positive(span(rest)?)?;
        Ok(match mode {
            Self::Suspend { .. } => Self::Suspend { gro_flush },
            _ => Self::Defer { gro_flush },
        })
    }
}

crate::as_text! { DeliveryMode: "a delivery mode: interrupt, suspend20, defer50, ..." }

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_mode_of_the_documents_survives_its_name() {
        let documents = DeliveryMode::DOCUMENT.into_iter().chain(DeliveryMode::EPOLL_DOCUMENT);
        for mode in documents.chain(DeliveryMode::THREADED) {
            assert_eq!(mode.to_string().parse::<DeliveryMode>(), Ok(mode));
        }
        for name in ["suspend:1.5us", "suspend5110000000"] {
            assert_eq!(name.parse::<DeliveryMode>().expect("parses").to_string(), name);
        }
    }

    #[test]
    fn a_mode_without_a_time_or_with_nonsense_is_refused() {
        for text in
            ["suspend0", "defer-1", "suspends", "defer20us", "busy", "", "suspend:", "defer18446744073709552"]
        {
            assert!(text.parse::<DeliveryMode>().is_err(), "{text}");
        }
    }

    #[test]
    fn waiting_for_events_alone_goes_with_interrupts_and_counts_as_polling() {
        for mode in DeliveryMode::EPOLL_DOCUMENT {
            let params = mode.params();
            assert!(params.gro_flush_timeout.is_zero() && !params.epoll.prefer_busy_poll, "{mode}");
            assert_eq!(mode.polling_cpus_per_thread(), 1, "{mode}");
        }
        assert_eq!(DeliveryMode::EventBusy.params().epoll.to_string(), "200us/0/0/events-only");
    }

    #[test]
    fn irq_suspend_outlasts_gro_flush_in_the_documents_modes() {
        for params in DeliveryMode::DOCUMENT.map(DeliveryMode::params) {
            let suspends = !params.irq_suspend_timeout.is_zero();
            assert!(!suspends || params.irq_suspend_timeout > params.gro_flush_timeout, "{params:?}");
            assert!(!suspends || params.epoll.prefer_busy_poll, "{params:?}");
        }
    }
}
