//! Assigns each connection to a listener of the queue on which it arrived, and lists listeners that share an
//! address.
//!
//! Nothing is pinned and no process keeps a descriptor open: the reuseport group references the program, and
//! the program references its maps. A privileged process can find the program and its maps through the group.

mod listeners;
mod program;

pub use listeners::{FoundListener, ListenerScanner};
pub use program::{CLASSIC, Lists, ReuseportProgram};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/reuseport.bpf.o"));

/// Constants of `reuseport.bpf.c`.
const PROGRAM: &str = "np_spread";
const ITERATOR: &str = "listeners";
