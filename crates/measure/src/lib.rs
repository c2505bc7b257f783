//! What response times say, and how surely.
//!
//! This room knows histograms and noise: what windows of a service that runs say together, and whether one setting is better than
//! another beyond noise. It must not know settings (it must not know what it is judging), and it offers no load, opens nothing and
//! reads no clock: what was counted is the caller's.
//!
//! Read in this order: [`record`] (how spans are kept), [`statistics`] (medians and intervals), [`live`] (windows of a service),
//! [`sequential`] and [`switchback`] (settings that alternate on it).
#![forbid(unsafe_code)]

pub mod live;
pub mod record;
pub mod sequential;
pub mod statistics;
pub mod switchback;

pub use statistics::Interval;
