//! Connections to the listeners of their queues, and who listens at one address together.
//!
//! Nothing is pinned and no process keeps anything: the group of sockets holds the program, and the program its maps, so
//! that whoever has the right finds them again from the group.

mod listeners;
mod program;

pub(crate) use listeners::{FoundListener, ListenerScanner};
pub(crate) use program::{CLASSIC, Lists, SpreadProgram};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/spread.bpf.o"));

/// `spread.bpf.c`, of the same names.
const PROGRAM: &str = "np_spread";
const ITERATOR: &str = "listeners";
