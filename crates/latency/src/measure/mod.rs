//! Statistics of response times.
//!
//! This module evaluates histograms and noise: what many windows of a running service show together, and
//! whether one setting is better than another by more than noise. It does not know which settings it
//! compares. It generates no load, opens nothing and reads no clock: the caller supplies the counts.
//!
//! Read in this order: [`statistics`] (medians and intervals), [`live`] (windows of a service),
//! [`sequential`] and [`switchback`] (alternating settings), [`foresight`] (how soon these detect a change),
//! [`tuning`] (the best of many settings).

pub mod expectation;
pub mod foresight;
pub mod live;
pub mod sequential;
pub mod statistics;
pub mod switchback;
pub mod tuning;

pub use statistics::Interval;
