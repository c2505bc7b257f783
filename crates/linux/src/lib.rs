//! The only room that speaks to the kernel: it observes, writes, counts and listens.
//!
//! This room knows bytes, error numbers and kernel versions. It must not know goals, services or recipes: what a
//! setting is good for is decided elsewhere. The wall is held by `cargo xtask tidy` (no import of
//! `model::policy` here) and by the workspace's lints (`unsafe` only below `sys/`).

pub mod attach;
pub mod bpf;
pub mod clock;
pub mod counters;
pub mod cycles;
mod error;
pub mod events;
pub mod follow;
mod idle;
mod ioctl;
pub mod irqbalance;
mod kernel;
pub mod lab;
mod latency;
pub mod live;
pub mod machine;
pub mod netlink;
pub mod netns;
pub mod observe;
mod others;
pub mod peer;
pub mod pressure;
pub mod process;
mod sys;
mod sysctl;
pub mod sysfs;
pub mod tc;
pub mod work;

pub use error::{Cause, Errno, KernelError};
pub use idle::{IdleTimes, idle_depth};
pub use kernel::Kernel;
pub use latency::WakeLatency;
pub use netns::Netns;
pub use observe::{Processes, observe};
pub use others::others;
pub use sys::signals::{Arrived, Signal, Signals};
pub use sys::socket_policy;
