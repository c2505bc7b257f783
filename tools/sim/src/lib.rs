//! A discrete-event model of the Linux receive path: predicts the costs and benefits of a delivery mode
//! before a host is changed.
//!
//! This crate models how packets travel over time: NIC queue, interrupt, softirq, NAPI, socket, epoll,
//! thread, answer. It must not know recipes, nor use files, sockets, clocks or threads of its own host.
//! Randomness and time are arguments: the same scenario with the same seed gives identical results on every
//! machine. Times are whole nanoseconds; mathematics beyond the four basic operations is in [`math`];
//! everything is iterated in a fixed order.
//!
//! Read in this order: [`scenario`] (what is simulated), [`ids`] (typed ids), `world` (the state, the event
//! loop, and the stations in the order of a packet), with the building blocks `arrivals`, `calendar`, `dim`,
//! `slots` and `wire`; then [`watch`], [`checker`] and [`trace`] (observers), [`outcome`], and [`fit`].
#![forbid(unsafe_code)]

mod arrivals;
mod calendar;
mod chance;
pub mod checker;
mod cpu_mask;
mod dim;
pub mod fit;
mod histogram;
pub mod ids;
mod index_vec;
pub mod math;
pub mod outcome;
pub mod scenario;
mod slots;
pub mod trace;
pub mod watch;
mod wire;
mod world;

pub use chance::{Chance, Draws};
pub use histogram::Histogram;
pub use outcome::{Outcome, run, run_watched};
pub use scenario::{Costs, Impossible, Parameter, Scenario};
