//! The response times of services that run, measured from outside, window after window.
//!
//! This room knows which ports of which namespace a service's are ([`Target`]), measures them ([`Sampler`]; [`Watcher`] one service
//! for an operator who waits, [`Rounds`] several in the background) and keeps what was measured ([`Record`], [`Recording`]). It
//! prints nothing and judges nothing: estimates and what they cannot say are `measure::live`'s, and the programs in the kernel
//! `linux::bpf::live`'s.

mod cost;
mod last_measured;
mod moderation;
mod recent;
mod record;
mod rounds;
mod rules;
mod sampler;
mod subject;
mod target;
pub mod text;
mod thread_names;
mod totals;
mod watcher;

pub use cost::Cost;
pub use last_measured::LastMeasured;
pub use measure::live::{Estimate, Estimator, Percentiles, Summary, Unit};
pub use moderation::moderation_differs;
pub use record::{Header, Record, Recorded, Recording, new_file};
pub use rounds::{Measured, Outcome, Pace, Rounds};
pub use rules::RULES;
pub use sampler::Sampler;
pub use subject::Subject;
pub use target::{Selection, Target};
pub use thread_names::ThreadNames;
pub use totals::{Spans, Totals};
pub use watcher::{INTERVAL, Shown, Turn, Watcher};
