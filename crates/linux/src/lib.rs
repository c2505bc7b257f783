//! The only crate that accesses the kernel: it observes, writes, counts and watches events.
//!
//! This crate deals with bytes, error numbers and kernel versions. It must not know goals, services or
//! recipes: other crates decide the purpose of a setting. It is based on three crates: `netlink` (sockets and
//! their messages), `bpf` (our programs) and `sys` (system calls, with all `unsafe`). Except for tests,
//! benchmarks and fuzz targets, crates that depend on this one use only what it re-exports of those three:
//! [`mod@bpf`], [`mod@netlink`].
#![forbid(unsafe_code)]

pub mod attach;
pub mod bpf;
mod conflicting_tools;
pub mod counters;
pub mod cycles;
pub mod follow;
mod idle;
mod ioctl;
pub mod irqbalance;
mod kernel;
pub mod lab;
mod latency;
pub mod machine;
pub mod netlink;
pub mod observe;
pub mod peer;
pub mod pressure;
pub mod process;
mod selection;
pub mod usage;
pub mod work;

pub use ::netlink::events;
pub use conflicting_tools::{conflicting_tools, conflicting_tools_below};
pub use idle::{IdleTimes, idle_depth};
pub use kernel::Kernel;
pub use latency::WakeLatency;
pub use observe::{Processes, observe};
pub use sys::epoll::wait_millis as epoll_wait_millis;
pub use sys::lsm::confinement;
pub use sys::signals::{Arrived, Signal, Signals};
pub use sys::{Cause, Errno, KernelError, Netns, clock, netns, socket_policy, sysfs};
