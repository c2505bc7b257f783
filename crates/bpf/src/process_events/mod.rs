//! Events of processes: fork, exec, exit, `listen(2)`, a listener's first connection; UDP ports that are bound and new epolls where the kernel
//! allows a program there.

mod listener;

pub use listener::{ExtraEvents, ListenedPort, NAMES_MAX, ProcessEvent, ProcessEvents, TimedEvent, Waited};
