//! The daemon: keeps the policy true while links, queues, processes, sockets and files come and go; with the sockets that it
//! serves, and the process that looks into others for it.
//!
//! This room must not know the command line, a terminal, the simulator or the experiments.
//!
//! One thread and one epoll ([`event_loop`]), no async runtime. Read in this order: [`reconciler`] (what to do, and when: pure),
//! `daemon` (what the daemon holds, and a turn of its loop), `event_sources` (what it waits for), `look` (what is known of
//! the host, brought up to date), `app_requests` (what applications ask for by themselves), `pass` (commits, repairs),
//! `put_back` (lets go), `api_calls` and [`status`] (what others may ask, and read).
#![forbid(unsafe_code)]

pub mod api;
mod api_calls;
mod app_requests;
pub mod attach_service;
mod daemon;
pub mod event_loop;
mod event_sources;
mod instance_lock;
mod look;
mod notify;
mod options;
mod pass;
mod placing;
#[cfg(test)]
mod placing_test;
mod put_back;
pub mod reconciler;
#[cfg(test)]
mod reconciler_test;
mod request_status;
mod requests;
mod run;
mod socket_file;
pub mod status;

pub use event_loop::{EventLoop, Interest, Ready, Registrar, Source, Stay};
pub use options::{OnStop, Options};
pub use request_status::objects;
pub use run::{Outside, Sockets, run};
pub use socket_file::ListenError;
pub use status::{Answer, Request, Shared, Status};
