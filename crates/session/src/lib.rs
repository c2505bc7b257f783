//! A session on a host: its network namespace, journal and policy files, and the cycle from a policy to a
//! committed plan.
//!
//! This crate prints nothing and knows no command line: [`Session`] is plain data, messages go to an
//! [`Operator`], and failures are [`Fault`]s with an exit code and the state of the host. It must not know
//! error numbers.
//!
//! Read in this order: [`cycle`] (the cycle), [`staged`] (the cycle once, or twice if queues are created
//! first), [`Session`] (the session), [`Fault`] (failures), [`explain`] and [`verify`] (queries), [`report`]
//! (output as text and JSON), [`page`] (text, tables, JSON and HTML documents of all programs).
#![forbid(unsafe_code)]

pub mod app_requests;
pub mod clock;
mod count;
pub mod cycle;
pub mod drop_in;
mod exit;
pub mod expire;
pub mod explain;
mod fault;
pub mod fullbusy;
pub mod guard_process;
mod idle;
mod missing_queues;
mod operator;
pub mod page;
pub mod recording;
pub mod replaced_file;
pub mod report;
mod rollback;
pub mod searches;
pub mod services;
mod session;
pub mod source;
pub mod staged;
pub mod trial;
pub mod trusted_path;
pub mod verify;
pub mod wake;

pub use count::count;
pub use exit::Exit;
pub use fault::{Fault, HostState, privileges};
pub use missing_queues::recovery_commands;
pub use model::quoted;
pub use operator::{Operator, Silent};
pub use policy_file::nearest;
pub use rollback::{roll_back, unfinished};
pub use session::{API_SOCKET, METRICS_SOCKET, STATE_DIR, Session};
