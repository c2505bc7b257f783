//! The response times of running services: measured from outside, compared, and reported.
//!
//! [`live`] measures windows of a service, [`judge`] compares settings that alternate on it, and [`reports`]
//! holds the output of `watch` and `compare`. The statistics of windows are in the pure crate `measure`,
//! which the load generators use, too.
#![forbid(unsafe_code)]

pub mod judge;
pub mod live;
pub mod reports;
