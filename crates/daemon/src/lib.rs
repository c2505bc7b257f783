//! The daemon, which keeps the policy in force while links, queues, processes, sockets and files change. This
//! crate includes the daemon's sockets and the attach service, which inspects other processes for the daemon.
//!
//! This crate must not depend on the command line, a terminal, the simulator or the experiments.
//!
//! One thread with one epoll ([`event_loop`]) keeps the policy in force, and another thread serves the
//! sockets ([`api`]); there is no async runtime. Read in this order: [`reconciler`] (pending work and its
//! schedule, without kernel or clock), `daemon` (the parts, and a turn of the loop), `look` and `pass` (the
//! work of a turn: observe, plan, commit). Then read the parts, each of which owns its state:
//! `event_sources`, `known` (the host), `requests` and `app_requests`, `current_plan`, `held` (settings in
//! force), `goals`, `guards` and `goal_search` (the effect on services), `rejections`, `answers`,
//! `telemetry`. `api_calls` handles clients' requests; [`status`] is what clients read. [`sessions`] runs the
//! calls that measure services.
#![forbid(unsafe_code)]

mod answers;
pub mod api;
mod api_calls;
mod app_requests;
pub mod attach_service;
mod bell;
mod change_log;
mod current_plan;
mod daemon;
pub mod event_loop;
mod event_sources;
mod first_connections;
mod goal_search;
mod goals;
mod guard_groups;
mod guards;
mod held;
pub mod inspector;
mod instance_lock;
mod known;
mod look;
mod notify;
mod options;
mod pass;
mod placing;
#[cfg(test)]
mod placing_test;
mod query;
pub mod reconciler;
#[cfg(test)]
mod reconciler_test;
mod rejections;
mod request_status;
mod requests;
mod run;
pub mod running_daemon;
mod scans;
pub mod sessions;
mod socket_file;
mod standing_proofs;
pub mod status;
mod telemetry;

pub use event_loop::{EventLoop, Interest, Ready, Registrar, Source, Stay};
pub use goal_search::SEARCH_RULES;
pub use instance_lock::RunningDaemon;
pub use options::{DaemonOptions, OnStop};
pub use run::{LogSink, Sockets, run};
pub use socket_file::ListenError;
pub use standing_proofs::PROOF_RULES;
pub use status::{Answer, ApiRequest, Shared, Status};
