//! Events of processes: fork, exec, exit, `listen(2)`, a listener's first connection, and new epolls where the kernel allows a program there.

mod listener;

pub use listener::{ListenedPort, NAMES_MAX, ProcessEvent, ProcessEvents, TimedEvent, Waited};
