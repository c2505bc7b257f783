//! BPF programs. They record which context polled which NAPI, how long requests took, the epolls of a
//! process, process events, and applications' policy requests.
//!
//! Each module has its C program next to the Rust code that loads it, and one header that both share. The
//! programs count and copy; what the counts mean is decided elsewhere. Only `app_requests` is pinned, because
//! applications rely on it. All other programs exist only as long as the process that loaded them, and
//! several processes can load their own copies.
#![forbid(unsafe_code)]

pub mod app_requests;
pub mod batches;
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

/// Returns whether this process is in the initial pid namespace, so that the kernel's pids are valid here.
///
/// Kernel: 6.18, `include/uapi/linux/nsfs.h` `PID_NS_INIT_INO`.
fn in_initial_pid_namespace() -> bool {
    const PID_NS_INIT: &[u8] = b"pid:[4026531836]";
    rustix::fs::readlink("/proc/self/ns/pid", Vec::new()).is_ok_and(|link| link.as_bytes() == PID_NS_INIT)
}
