//! The response times of running services: measured from outside, compared, and reported.
//!
//! [`live`] measures windows of a service, [`judge`] compares settings that alternate on it, and [`reports`]
//! holds the output of `watch` and `compare`. [`measure`] has the statistics of windows and uses nothing else of
//! this crate.
#![forbid(unsafe_code)]

pub mod judge;
pub mod live;
pub mod measure;
pub mod reports;
