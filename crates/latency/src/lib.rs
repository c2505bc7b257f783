//! The response times of running services: measured from outside, compared, and reported.
//!
//! [`live`] measures windows of a service, [`judge`] compares settings that alternate on a service, and
//! [`reports`] contains the output of `watch` and `compare`. [`measure`] contains the statistics of windows
//! and uses no other part of this crate.
#![forbid(unsafe_code)]

pub mod judge;
pub mod live;
pub mod measure;
pub mod reports;
