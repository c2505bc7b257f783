//! The response times of a service that runs, measured from outside, window after window.
//!
//! This room knows which ports of which namespace a service's are ([`Target`]), measures them ([`Watcher`]) and keeps what was
//! measured ([`Record`], [`Recording`]). It prints nothing and judges nothing: estimates and what they cannot say are
//! `measure::live`'s, and the programs in the kernel `linux::bpf::live`'s.
#![forbid(unsafe_code)]

mod record;
mod target;
mod watcher;

pub use record::{Header, Record, Recorded, Recording};
pub use target::{Selection, Target};
pub use watcher::{Cost, INTERVAL, Shown, Turn, Watcher};
