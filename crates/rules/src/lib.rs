//! Batch files of `tc`, as rules and as netlink bytes.
//!
//! This room knows what a line, a file and a dump say: a line becomes a typed rule, and a rule the very bytes that iproute2
//! 6.1 sends. How each kind of rule is spelled and encoded is `kinds`'. It must not know sockets, files or which devices there
//! are: those are answered through [`Lookup`]. The wall is held by its dependencies (`kinds` and `model`), by
//! `clippy.toml` beside `src/`, and by `forbid(unsafe_code)`.
//!
//! Read in this order: [`command`] (what a line says), [`batch`] (all of a file), [`expected`] (what is there against what
//! is expected).
#![forbid(unsafe_code)]

pub mod batch;
pub mod command;
pub mod cookie;
pub mod expected;
pub mod fingerprint;
mod line;
mod memory;
pub mod percpu;
pub mod sharing;
pub mod verify;

pub use batch::{Batch, ReadError};
pub use command::{Command, Filter, Group, Hook, Listings, Verb};
pub use cookie::{Marker, Terse};
pub use expected::{Expected, Found};
pub use kinds::{Action, Classifier, Lookup, Mistake, Pinned, Table};
pub use kinds::{action, attr, classifier, number, words};
pub use percpu::NoPercpu;
pub use sharing::Sharing;
