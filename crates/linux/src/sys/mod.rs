//! The only place with `unsafe`: system calls that no dependency offers, each behind a safe function.

pub(crate) mod affinity;
mod answer;
pub(crate) mod bpf;
pub(crate) mod child;
pub(crate) mod clock;
pub(crate) mod epoll;
pub(crate) mod ethtool;
pub(crate) mod io_uring;
pub(crate) mod kcmp;
pub(crate) mod keeper;
pub(crate) mod memory;
pub(crate) mod netlink;
pub(crate) mod peer_groups;
pub(crate) mod perf;
pub(crate) mod reuseport;
pub(crate) mod scheduling;
pub(crate) mod signals;
pub mod socket_policy;
pub(crate) mod sockopt;
