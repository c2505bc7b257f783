//! Our BPF programs, as far as the rooms above use them directly. The room `bpf` loads and reads them.

pub use ::bpf::{RunTime, Statistics};

/// What sockets and processes ask for by themselves.
pub mod app_requests {
    pub use ::bpf::app_requests::{
        Cgroup, Choice, Enabled, RequestReader, RequestSource, RequestStore, SocketRequest,
    };
}

/// Who polled a NAPI, and where.
pub mod delivery {
    pub use ::bpf::delivery::Sampler;
}

/// How long the requests of a live service take.
pub mod live {
    pub use ::bpf::live::{AnswerHook, LiveMeter, LiveTarget};
}

/// Processes that begin to listen, connect or end.
pub mod process_events {
    pub use ::bpf::process_events::{
        ExtraEvents, ListenedPort, NAMES_MAX, ProcessEvent, ProcessEvents, TimedEvent, Waited,
    };
}

/// How long answers take on the wire.
pub mod wire {
    pub use ::bpf::wire::{Seen, Wire};
}
