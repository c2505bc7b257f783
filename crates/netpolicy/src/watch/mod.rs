//! `watch`: the response times of a service that runs, measured from outside.
//!
//! [`args`] (what can be asked), `target` (which ports of which namespace that is), `watcher` (window after window), `record`
//! (what is kept of them).

pub mod args;
pub(crate) mod record;
pub(crate) mod target;
pub(crate) mod watcher;
