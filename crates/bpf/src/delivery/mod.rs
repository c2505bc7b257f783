//! Counts who polled which NAPI, and in which context, since the programs were loaded.
//!
//! Three programs on tracepoints (`napi_poll`, `hrtimer_start`, `hrtimer_expire_entry`) count by NAPI and by
//! process, per CPU. A [`DeliveryCounter`] keeps the programs loaded; the difference of two of its
//! [`Snapshot`]s is a [`model::Delivered`].

mod counter;
mod sampler;
mod snapshot;

pub use counter::DeliveryCounter;
pub(crate) use counter::address_of;
pub use sampler::DeliverySampler;
pub use snapshot::{Snapshot, between};
