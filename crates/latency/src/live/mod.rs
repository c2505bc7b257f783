//! Measures the response times of running services from outside, in windows.
//!
//! This module finds the ports of a service in the service's namespace ([`MeasuredService`]), measures them
//! ([`Sampler`]; [`Watcher`] for one service in the foreground, [`Rounds`] for several in the background) and
//! records the windows ([`WatchRecord`], [`RecordedWindows`]). It neither prints nor judges: estimates and
//! their caveats are in `crate::measure::live`, and the BPF programs in `linux::bpf::live`.

mod cost;
mod last_measured;
mod moderation;
mod prospect;
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

pub use crate::measure::expectation::Expected;
pub use crate::measure::live::{Estimate, Estimator, Percentiles, Summary, Unit};
pub use cost::Cost;
pub use last_measured::LastMeasured;
pub use moderation::moderation_differs;
pub use prospect::Prospect;
pub use record::{RecordedWindow, RecordedWindows, WatchHeader, WatchRecord, new_file};
pub use rounds::{Measured, MeasuredOutcome, Rounds, SamplingPace};
pub use rules::RULES;
pub use sampler::{Sample, Sampler};
pub use subject::ListeningService;
pub use target::{MeasuredService, ServiceSelection};
pub use thread_names::ThreadNames;
pub use totals::{SpanTotals, Totals};
pub use watcher::{INTERVAL, MeasuredWindow, WatchEvent, Watcher};
