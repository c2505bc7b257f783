//! Process events: fork, exec, exit, `listen(2)`, a listener's first connection; if the kernel allows it,
//! also bound UDP ports and new epolls.

mod listener;

pub use listener::{ExtraEvents, ListenedPort, NAMES_MAX, ProcessEvent, ProcessEvents, TimedEvent, Waited};
