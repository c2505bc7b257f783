//! Process events: fork, exec, exit, `listen(2)` and a listener's first connection; also bound UDP ports and
//! new epolls if the kernel supports them.

mod listener;

pub use listener::{ExtraEvents, ListenedPort, NAMES_MAX, ProcessEvent, ProcessEvents, TimedEvent, Waited};
