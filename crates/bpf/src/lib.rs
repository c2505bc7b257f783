//! Our BPF programs: who polled which NAPI, how long requests took, the epolls of a process, events of processes, requests of
//! applications.
//!
//! Each room below is C beside the Rust that loads it, with one header that is all they share. The programs count
//! and copy; what the counts mean is decided elsewhere. Nothing is pinned but `app_requests`, which applications rely on: a
//! program lives as long as the process that loaded it, however that ends, and any number of processes may load their own.
#![forbid(unsafe_code)]

pub mod app_requests;
mod cost;
pub mod delivery;
pub mod epolls;
pub mod family;
mod iterated;
pub mod live;
mod loaded;
mod mirrored;
pub mod process_events;
pub mod reuseport;
pub mod softirqs;
pub mod wire;

pub use cost::{RunTime, Statistics};
pub use delivery::DeliveryCounter;
pub use epolls::EpollScanner;

/// Whether pids in the kernel are pids here: whether this process is in the initial pid namespace.
///
/// Kernel: 6.18, `include/uapi/linux/nsfs.h` `PID_NS_INIT_INO`.
fn in_initial_pid_namespace() -> bool {
    const PID_NS_INIT: &[u8] = b"pid:[4026531836]";
    rustix::fs::readlink("/proc/self/ns/pid", Vec::new()).is_ok_and(|link| link.as_bytes() == PID_NS_INIT)
}
