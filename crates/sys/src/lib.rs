//! Safe wrappers for system calls that no dependency offers. This is the only crate with `unsafe`.
//!
//! It also contains what all other crates need to call the kernel: [`KernelError`], network namespaces,
//! clocks, sysfs and sysctls. Crates that make decisions use it only through `linux`.

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
pub mod lsm;
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
