//! Sessions: API calls that measure a service and may change settings to do so.
//!
//! A session runs the command with the same name (`watch`, `compare`, `tune`, `try`) as a child process of
//! the daemon. The command commits by ordinary transactions, with its own guard process. Read in this order:
//! `desk` (which sessions may run, without side effects), `params` (from parameters to a command line),
//! `child` (the process), `run` (one session, from admission to its last reply).
//!
//! - While a session changes settings, the daemon changes none ([`HoldBack`]), because it would repair the
//!   session's settings.
//! - If the client disconnects or calls `Cancel`, or the time limit is reached, the process gets SIGTERM and
//!   restores the host. If the process does not exit in time, it is killed, and its guard process restores
//!   the host.
//! - If the daemon is killed, the kernel sends SIGTERM to the process.

mod child;
mod desk;
mod hold;
mod params;
#[cfg(test)]
mod property_test;
mod run;

pub use child::{SESSION_SECONDS_MAX, SessionEnd, SessionProgram, end_line};
pub use desk::{OpenSession, Refusal, SESSIONS_MAX, SESSIONS_PER_USER_MAX, SessionDesk, SessionKind};
pub(crate) use hold::HeldBack;
pub use hold::HoldBack;
pub use params::{CompareParams, ServiceParams, SessionCall, TryParams, TuneParams, WatchParams};
pub(crate) use run::reply_parameters;
pub use run::{SessionEvent, SessionHandle, SessionSink, Sessions};
