//! Rules of `tc`: batch files as rules, rules as netlink bytes, and rules in the kernel.
//!
//! A line becomes a typed rule, and a rule the very bytes that iproute2 6.1 sends. This needs no socket, no file and no device:
//! what a line names is answered through [`Lookup`]. [`kernel`] alone has sockets: it loads rules, reads them back and removes
//! them. `clippy.toml` beside `src/` refuses files and clocks.
//!
//! Read in this order: [`lines`] and [`words`] (text), [`classifier`], [`ematch`] and [`action`] (one file for each kind),
//! [`command`] (what a line says), [`batch`] (all of a file), [`expected`] (what is there against what is expected),
//! [`kernel`].
#![forbid(unsafe_code)]

pub mod action;
pub mod batch;
pub mod classifier;
pub mod command;
pub mod cookie;
pub mod ematch;
pub mod expected;
pub mod fingerprint;
pub mod kernel;
mod line;
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
pub mod verify;
pub mod words;

pub use action::Action;
pub use batch::{Batch, ReadError};
pub use classifier::Classifier;
pub use command::{Command, Filter, Group, Hook, Listings, Verb};
pub use cookie::{Marker, Terse};
pub use expected::{Expected, Found};
pub use lookup::{Lookup, Pinned, Table};
pub use percpu::NoPercpu;
pub use sharing::Sharing;
pub use words::Mistake;
