//! Batch files of `tc`, as rules and as netlink bytes.
//!
//! This room knows how iproute2 spells rules and how it writes them: a line becomes a typed rule, and a rule the very
//! bytes that iproute2 6.1 sends. It must not know sockets, files or which devices there are: those are answered
//! through [`lookup::Lookup`]. The wall is held by its dependencies (`model` and `thiserror`), by `clippy.toml` beside
//! `src/`, and by `forbid(unsafe_code)`.
//!
//! Read in this order: [`lines`] and [`words`] (text), [`command`] (what a line says), [`classifier`] and [`action`]
//! (one file for each kind), [`batch`] (all of a file), [`expected`] (what is there against what is expected).
#![forbid(unsafe_code)]

pub mod action;
pub mod attr;
pub mod batch;
pub mod classifier;
pub mod command;
pub mod cookie;
pub mod ematch;
pub mod expected;
pub mod fingerprint;
pub mod lines;
pub mod lookup;
mod memory;
pub mod number;
pub mod percpu;
pub mod program;
pub mod protocol;
pub mod sharing;
pub mod small_vec;
pub mod tunnel_options;
pub mod words;

pub use action::Action;
pub use batch::{Batch, ReadError};
pub use classifier::Classifier;
pub use command::{Command, Filter, Group, Hook, Verb};
pub use cookie::{Marker, Terse};
pub use expected::{Expected, Found};
pub use lookup::{Lookup, Pinned, Table};
pub use percpu::NoPercpu;
pub use sharing::Sharing;
pub use words::Mistake;
