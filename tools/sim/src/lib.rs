//! A discrete-event model of the Linux receive path: what a delivery mode costs and brings, before a host is touched.
//!
//! This room knows how packets travel in time: NIC queue, interrupt, softirq, NAPI, socket, epoll, thread, answer. It
//! must not know files, sockets, clocks or threads of its own host, nor recipes. Chance and time are arguments:
//! the same scenario with the same seed gives the same bytes on every machine. Times are whole nanoseconds;
//! mathematics beyond the four operations is [`math`]; whatever is iterated has a fixed order.
//!
//! Read in this order: [`scenario`] (what is simulated), [`ids`] (how things are named in code), `world` (the state, the loop, and
//! the stations in the order of a packet), with `arrivals`, `calendar`, `dim`, `slots` and `wire` that they stand on; then
//! [`watch`], [`checker`] and [`trace`] (who looks on), [`outcome`], and [`fit`].
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
