//! Delivery modes: how packets reach an application, and the parameters that make it so.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::setting::{EpollParams, Threading};
use crate::units::{EmptyPolls, Nanoseconds};

/// How packets are delivered to an application. A policy chooses one; an expert may name one.
///
/// Written as the IRQ-suspension document writes them: `interrupt` (its *base*), `defer20` (microseconds of
/// `gro-flush-timeout`), `napibusy`, `fullbusy`, `suspend20`; `eventbusy` and `userbusy` are the epoll document's,
/// `threaded` is the threaded NAPI document's, and `threaded-busy` what the kernel has made of it since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeliveryMode {
    /// Every batch begins with an interrupt: the kernel's own way without any setting.
    Interrupt,
    /// Interrupts are put off, and a timer polls: less interference, at the price of up to one timeout of delay.
    Defer {
        /// The timer's span, `gro-flush-timeout`.
        gro_flush: Nanoseconds,
    },
    /// `epoll_wait` polls the NAPI for up to 64 µs before it sleeps.
    NapiBusy,
    /// `epoll_wait` polls all the time: lowest latency, one whole CPU per thread.
    FullBusy,
    /// Interrupts stay masked as long as `epoll_wait` finds events, and are put off otherwise.
    Suspend {
        /// The short span, used when the application idles: `gro-flush-timeout`.
        gro_flush: Nanoseconds,
    },
    /// `epoll_wait` looks for events for up to 200 µs before it sleeps, and polls no NAPI: softirq delivers.
    EventBusy,
    /// The application calls `epoll_wait` again and again, which never sleeps: what `EventBusy` is, without a kernel
    /// that has it.
    UserBusy,
    /// A kernel thread polls, which the scheduler sees and places like any other.
    Threaded,
    /// A kernel thread polls all the time: one whole CPU per queue.
    ThreadedBusy,
}

/// The values behind a delivery mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeliveryParams {
    /// See [`crate::NapiKnob::DeferHardIrqs`].
    pub defer_hard_irqs: EmptyPolls,
    /// See [`crate::NapiKnob::GroFlushTimeout`].
    pub gro_flush_timeout: Nanoseconds,
    /// See [`crate::NapiKnob::IrqSuspendTimeout`].
    pub irq_suspend_timeout: Nanoseconds,
    /// See [`crate::ProcessKnob::Epoll`]; all zero leaves busy polling off.
    pub epoll: EpollParams,
    /// The longest that `epoll_wait` may sleep, 0 for not at all; `None` leaves the application's own timeout.
    pub epoll_wait_cap: Option<Nanoseconds>,
}

impl DeliveryMode {
    /// The document's eleven configurations, in its order.
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

    /// The epoll document's two, which it compares with [`Self::Interrupt`]: its "epoll busyloop" and "userspace
    /// busyloop".
    ///
    /// Source: "Add provision to busyloop for events in ep_poll", linux-kernel, 2024-08-28.
    pub const EPOLL_DOCUMENT: [Self; 2] = [Self::EventBusy, Self::UserBusy];

    /// The threaded NAPI document's one, which it compares with [`Self::Interrupt`], and the kernel's busy variant of it.
    ///
    /// Source: "implement kthread based napi poll", netdev, 2021-02; Linux 6.19, `NETDEV_NAPI_THREADED_BUSY_POLL`.
    pub const THREADED: [Self; 2] = [Self::Threaded, Self::ThreadedBusy];

    /// The time of a mode that is named without one.
    const START: Nanoseconds = Nanoseconds::from_micros(20);

    /// One of each, in the order in which they are listed; those that take a time with 20 µs, which is meant where none is said.
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

    /// What the document calls [`Self::Interrupt`].
    pub const BASE: &'static str = "base";

    /// Its name, without its time.
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

    /// The time that is part of its name; `None` of modes without one.
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

    /// The names of all, with `X` for a time: `interrupt`, `deferX` and so on.
    pub fn names() -> [String; 9] {
        Self::EACH.map(|mode| format!("{}{}", mode.name(), if mode.time().is_some() { "X" } else { "" }))
    }

    /// The documents' values for this mode. The epoll document gives no time; 200 µs outlast the gaps of a loop that
    /// is worth it, and are what our own tables were made with. They are start values: they suit its machine, and are
    /// measured on yours.
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

    /// How many CPUs the mode may keep busy with waiting, per application thread: without traffic, or, with
    /// `eventbusy`, while events come more often than its time.
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

    /// Who polls the NAPIs where the application does not: see [`crate::NapiKnob::Threaded`].
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

    /// How many CPUs the mode keeps busy without traffic, per NAPI.
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

/// Why a text names no delivery mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotADeliveryMode(pub String);

impl fmt::Display for NotADeliveryMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = DeliveryMode::names();
        let (last, names) =
            names.split_last().map_or(("", &names[..]), |(last, names)| (last.as_str(), names));
        write!(
            f,
            "`{}` is not a delivery mode: there are {} and {last}, X in microseconds as in suspend20, or with a unit as in \
             suspend:1.5ms",
            self.0,
            names.join(", ")
        )
    }
}

impl std::error::Error for NotADeliveryMode {}

impl FromStr for DeliveryMode {
    type Err = NotADeliveryMode;

    /// Takes the names above; `base` for `interrupt`; `defer` and `suspend` alone mean 20 µs.
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
