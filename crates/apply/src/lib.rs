//! (being written)
#![forbid(unsafe_code)]
mod knobs;
pub use knobs::Knobs;
