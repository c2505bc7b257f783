//! Events of processes: fork, exec, exit, `listen(2)`, and new epolls where the kernel allows a program there.

mod listener;

pub use listener::{NAMES_MAX, ProcessEvent, ProcessEvents, TimedEvent, Waited};
