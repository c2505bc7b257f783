//! System calls that no dependency offers, each behind a safe function: the only room with `unsafe`.
//!
//! With them stand what every room above needs to call the kernel at all: its error numbers as [`KernelError`], network
//! namespaces, the clocks, sysfs and sysctls. What a call is for is decided elsewhere. The rooms that decide or speak to operators
//! reach none of this but through `linux`.

pub mod affinity;
mod answer;
pub mod bpf;
pub mod child;
pub mod clock;
pub mod epoll;
pub mod error;
pub mod ethtool;
pub mod io_uring;
pub mod kcmp;
pub mod memory;
pub mod netlink;
pub mod netns;
pub mod peer_groups;
pub mod perf;
pub mod reuseport;
pub mod scheduling;
pub mod signals;
pub mod socket_policy;
pub mod sockopt;
pub mod sysctl;
pub mod sysfs;
pub mod unshare;

pub use error::{Cause, Errno, KernelError};
pub use netns::Netns;
