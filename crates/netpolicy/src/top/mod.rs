//! `top`: who delivers packets, now: by queue, process and CPU, refreshed every second.
//!
//! [`reading`] is what one look gives, `keyboard` reads keys, [`state`] is what they do, `screen` (with the feature `top`) how it is drawn.

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
