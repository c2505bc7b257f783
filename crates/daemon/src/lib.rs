//! The daemon: keeps the policy true while links, queues, processes, sockets and files come and go; with the sockets that it
//! serves, and the process that looks into others for it.
//!
//! This room must not know the command line, a terminal, the simulator or the experiments.
//!
//! One thread and one epoll ([`event_loop`]), no async runtime. Read in this order: [`converge`] (what to do, and when: pure),
//! `keeper` (what the daemon holds, and a turn of its loop), `event_sources` (what it hears with), `look` (what is known of the
//! host, brought up to date), `placing` (what can be done of what is asked), `app_requests` (what applications ask for by themselves), `act` (commits,
//! repairs), `put_back` (lets go),
//! `api_calls` and [`status`] (what others may ask, and read).

#![forbid(unsafe_code)]

mod act;
pub mod api;
mod api_calls;
mod app_requests;
pub mod attach_service;
pub mod converge;
#[cfg(test)]
mod converge_test;
pub mod event_loop;
mod event_sources;
mod instance_lock;
mod keeper;
mod look;
mod notify;
mod options;
mod placing;
#[cfg(test)]
mod placing_test;
mod put_back;
mod report;
mod requests;
mod run;
mod socket_file;
pub mod status;

pub use event_loop::{Door, Guest, House, Ready, Stay, Wishes};
pub use options::{OnStop, Options};
pub use report::objects;
pub use run::{Outside, Sockets, run};
pub use socket_file::ListenError;
pub use status::{Answer, Request, Shared, Status};
