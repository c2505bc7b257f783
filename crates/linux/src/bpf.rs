//! The parts of the crate `bpf` that other crates use directly.

use crate::KernelError;

pub use ::bpf::{RunTime, Statistics};

/// The maximum number of BPF programs that [`loaded_programs`] counts.
pub const PROGRAMS_COUNTED_MAX: u32 = 65_536;

/// Counts the BPF programs that any process has loaded on this machine.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN.
pub fn loaded_programs() -> Result<u32, KernelError> {
    sys::bpf::count_programs(PROGRAMS_COUNTED_MAX)
        .map_err(|errno| KernelError::errno("BPF_PROG_GET_NEXT_ID".to_owned(), errno))
}

/// Policy requests of sockets and processes.
pub mod app_requests {
    pub use ::bpf::app_requests::{
        Cgroup, Choice, Enabled, RequestReader, RequestSource, RequestStore, SocketRequest,
    };
}

/// How long applications handle the events of one `epoll_wait`.
pub mod batches {
    pub use ::bpf::batches::BatchMeter;
}

/// Which context polled a NAPI, and on which CPU.
pub mod delivery {
    pub use ::bpf::delivery::DeliverySampler;
}

/// The request latency of a live service.
pub mod live {
    pub use ::bpf::live::{AnswerHook, LiveMeter, LiveTarget};
}

/// Processes that start to listen, connect or exit.
pub mod process_events {
    pub use ::bpf::process_events::{
        ExtraEvents, ListenedPort, NAMES_MAX, ProcessEvent, ProcessEvents, TimedEvent, Waited,
    };
}

/// The response times on the wire.
pub mod wire {
    pub use ::bpf::wire::{WireCounts, WireMeter};
}
