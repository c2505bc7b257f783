//! The response times of services that run: measured from outside, compared, and reported.
//!
//! [`live`] measures windows of a service, [`judge`] compares settings that alternate on it, and [`reports`] is what `watch` and
//! `compare` print. What windows say together, and how surely, is the crate `measure`'s, which is pure: the tools that make load
//! are built with it, too.
#![forbid(unsafe_code)]

pub mod judge;
pub mod live;
pub mod reports;
