//! Who polled which NAPI, and where, as counts since the programs were loaded.
//!
//! Three programs on tracepoints (`napi_poll`, `hrtimer_start`, `hrtimer_expire_entry`) count into tables by NAPI
//! and by process, each CPU into its own copy. A [`DeliveryCounter`] holds them in the kernel; two of its
//! [`Snapshot`]s make a [`model::Delivered`].

mod counter;
mod sampler;
mod snapshot;

pub use counter::DeliveryCounter;
pub use sampler::Sampler;
pub use snapshot::{Snapshot, between};
