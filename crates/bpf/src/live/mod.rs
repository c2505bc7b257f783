//! How long the requests of a live service take, measured from outside, window by window.
//!
//! `live.bpf.c` records, for each connection to the service's ports, when requests arrive, are read and are
//! answered, and, for each NAPI, since when its ring has been empty. Read [`meter`] first; `layout` is shared
//! by both sides.

mod layout;
mod meter;

pub use meter::{AnswerHook, LiveMeter, LiveTarget};
