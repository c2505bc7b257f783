//! Rules of `tc`: parses batch files, encodes rules as netlink messages, and loads them.
//!
//! A line becomes a typed rule, and a rule becomes exactly the bytes that iproute2 6.1 sends. This needs no
//! socket, file or device: names are resolved through [`Lookup`]. Only [`kernel`] has sockets: it loads
//! rules, dumps them and removes them. `clippy.toml` next to `src/` forbids files and clocks.
//!
//! Read in this order: [`lines`] and [`words`] (text), [`classifier`], [`ematch`] and [`action`] (one file
//! per kind), [`command`] (a line), [`batch`] (a whole file), [`expected`] (the kernel's rules compared with
//! the file's), [`kernel`].
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
pub use expected::{Expected, RuleMatch};
pub use lookup::{Lookup, Pinned, Table};
pub use percpu::NoPercpu;
pub use sharing::Sharing;
pub use words::Mistake;
