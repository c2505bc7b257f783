//! Gives connections to the listeners of their queues, and lists the listeners that share an address.
//!
//! Nothing is pinned and no process keeps a reference: the group of sockets holds the program, and the program its maps. A
//! privileged process finds them again from the group.

mod listeners;
mod program;

pub use listeners::{FoundListener, ListenerScanner};
pub use program::{CLASSIC, Lists, ReuseportProgram};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/reuseport.bpf.o"));

/// `reuseport.bpf.c`, of the same names.
const PROGRAM: &str = "np_spread";
const ITERATOR: &str = "listeners";
