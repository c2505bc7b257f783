//! Knobs of one NAPI, and of all NAPIs of a device together.

use super::family::family;
use super::{Threading, Weight};
use crate::facts::{Facts, Interface, KnobUnit, WritePhase};
use crate::keys;
use crate::since;
use crate::units::{EmptyPolls, Nanoseconds};

const NAPI: Facts = Facts { since: since::NAPI_SET, ..Facts::at(Interface::Napi, WritePhase::Queue) };

const DEVICE: Facts = Facts::at(Interface::DeviceNapis, WritePhase::Device);

/// The maximum number of empty polls. Kernel: 6.18, `Documentation/netlink/specs/netdev.yaml`, check `max:
/// s32-max`.
const DEFER_HARD_IRQS_MAX: u32 = i32::MAX.cast_unsigned();

/// The longest timeout: the kernel's timers count signed nanoseconds. Kernel: `include/linux/ktime.h` `ktime_t`.
const TIMEOUT_MAX: u64 = i64::MAX.cast_unsigned();

family! {
    /// A knob of the NAPI that polls a receive queue, with a value.
    NapiKnob {
        /// How many consecutive empty polls to tolerate before the queue's IRQ is re-armed. Until then, a
        /// timer of [`NapiKnob::GroFlushTimeout`] polls.
        ///
        /// 0 disables deferral.
        ///
        /// Kernel: 6.13 (per NAPI, netlink `napi-set`), `net/core/dev.c` `napi_complete_done()`.
        DeferHardIrqs(EmptyPolls) = NAPI {
            name: "defer-hard-irqs",
            in_napi_only: true,
            key: Some(keys::DEFER_HARD_IRQS),
            unit: KnobUnit::Polls,
            range: Some((0, DEFER_HARD_IRQS_MAX as u64)),
            rank: 2,
        } where {
            weight(EmptyPolls(polls)) => Weight::of(u64::from(*polls));
        },

        /// How long the queue's timer waits before it polls, while the IRQ is deferred.
        ///
        /// Nanoseconds; 0 disables the timer, and with it deferral.
        ///
        /// Kernel: 6.13 (per NAPI, netlink `napi-set`), `net/core/dev.c` `napi_complete_done()`, `napi_watchdog()`.
        GroFlushTimeout(Nanoseconds) = NAPI {
            name: "gro-flush-timeout",
            in_napi_only: true,
            key: Some(keys::GRO_FLUSH_TIMEOUT),
            unit: KnobUnit::Nanoseconds,
            range: Some((0, TIMEOUT_MAX)),
            rank: 3,
        } where {
            weight(Nanoseconds(ns)) => Weight::of(*ns);
            tools(span) => span.0.to_string();
        },

        /// How long the queue's IRQ may stay masked while `epoll_wait` keeps finding events.
        ///
        /// Nanoseconds; 0 disables. Should be much larger than [`NapiKnob::GroFlushTimeout`]: it must cover
        /// one iteration of the application's event loop. Takes effect only with `prefer_busy_poll` on the
        /// epoll, and only while both deferral settings are non-zero. There is no sysfs file for it.
        ///
        /// Kernel: 6.13, `net/core/dev.c` `napi_suspend_irqs()`; Documentation/networking/napi.rst, "IRQ suspension".
        IrqSuspendTimeout(Nanoseconds) = NAPI {
            name: "irq-suspend-timeout",
            in_napi_only: true,
            key: Some(keys::IRQ_SUSPEND_TIMEOUT),
            unit: KnobUnit::Nanoseconds,
            range: Some((0, TIMEOUT_MAX)),
            rank: 4,
        } where {
            weight(Nanoseconds(ns)) => Weight::of(*ns);
            tools(span) => span.0.to_string();
        },

        /// Whether a dedicated kernel thread polls the queue instead of softirq.
        ///
        /// Kernel: 6.17 (per NAPI, netlink `napi-set`), `net/core/dev.c` `napi_set_threaded()`.
        Threaded(Threading) = NAPI { name: "threaded", since: since::QUEUE_THREADS } where {
            weight(threading) => threading.weight();
            tools(threading) => threading.in_netlink().to_owned();
        },
    }
}

family! {
    /// A knob of all NAPIs of a device, with a value: for kernels without per-NAPI settings.
    DeviceNapiKnob {
        /// [`NapiKnob::DeferHardIrqs`] for all queues of a device, where the kernel has no per-NAPI setting.
        ///
        /// Kernel: 5.8, `/sys/class/net/DEV/napi_defer_hard_irqs`, `net/core/net-sysfs.c`.
        DeferHardIrqs(EmptyPolls) = DEVICE {
            name: "napi_defer_hard_irqs",
            unit: KnobUnit::Polls,
            range: Some((0, DEFER_HARD_IRQS_MAX as u64)),
            since: since::DEVICE_DEFER_HARD_IRQS,
            rank: 2,
        } where {
            weight(EmptyPolls(polls)) => Weight::of(u64::from(*polls));
        },

        /// [`NapiKnob::GroFlushTimeout`] for all queues of a device, where the kernel has no per-NAPI
        /// setting.
        ///
        /// Kernel: 3.19, `/sys/class/net/DEV/gro_flush_timeout`, `net/core/net-sysfs.c`.
        GroFlushTimeout(Nanoseconds) = DEVICE {
            name: "gro_flush_timeout",
            unit: KnobUnit::Nanoseconds,
            range: Some((0, TIMEOUT_MAX)),
            since: since::DEVICE_GRO_FLUSH_TIMEOUT,
            rank: 3,
        } where {
            weight(Nanoseconds(ns)) => Weight::of(*ns);
            tools(span) => span.0.to_string();
        },

        /// [`NapiKnob::Threaded`] for all queues of a device, where the kernel has no per-NAPI setting.
        ///
        /// Kernel: 5.12, `/sys/class/net/DEV/threaded`, `net/core/net-sysfs.c`.
        Threaded(Threading) = DEVICE { name: "threaded", since: since::NAPI_THREADS } where {
            weight(threading) => threading.weight();
            tools(threading) => threading.number().to_string();
        },
    }
}

impl NapiKnob {
    /// Returns the largest value that netpolicy writes, for display, if this value is larger.
    pub fn beyond(&self) -> Option<String> {
        let (_, most) = self.facts().range?;
        (self.weight().1 > most).then(|| self.facts().written(most))
    }

    /// Formats the value as policy files and output show it.
    pub fn value(&self) -> String {
        match self {
            Self::DeferHardIrqs(polls) => polls.to_string(),
            Self::GroFlushTimeout(span) | Self::IrqSuspendTimeout(span) => span.to_string(),
            Self::Threaded(threading) => threading.to_string(),
        }
    }
}

impl DeviceNapiKnob {
    /// Formats the value as policy files and output show it.
    pub fn value(&self) -> String {
        match self {
            Self::DeferHardIrqs(polls) => polls.to_string(),
            Self::GroFlushTimeout(span) => span.to_string(),
            Self::Threaded(threading) => threading.to_string(),
        }
    }
}
