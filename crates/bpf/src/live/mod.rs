//! Measures how long the requests of a live service take, from outside the service and window by window.
//!
//! For each connection to the service's ports, `live.bpf.c` records when requests arrive, are read and are
//! answered; for each NAPI, it records when the ring was last empty. Start reading at [`meter`]; `layout`
//! mirrors the structures of `live.h`.

mod layout;
mod meter;

pub use meter::{AnswerHook, LiveMeter, LiveTarget};
