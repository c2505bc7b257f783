//! `top`: shows which context delivers packets, by queue, process and CPU, refreshed every second.
//! [`reading`] is one sample, `keyboard` reads keys, [`state`] handles them, and `screen` (with the feature
//! `top`) draws.

#[cfg(feature = "top")]
mod keyboard;
pub(crate) mod reader;
pub(crate) mod reading;
#[cfg(feature = "top")]
mod screen;
#[cfg(feature = "top")]
pub(crate) mod state;

#[cfg(feature = "top")]
pub(crate) use screen::watch;
