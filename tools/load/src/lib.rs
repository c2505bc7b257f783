//! A load generator, and servers for it to load.
//!
//! This crate knows when requests are due and how they are sent, answered and timed: from the
//! moment a request was due. It must not know the settings that it measures, and it reads no
//! counters: namespaces, CPUs and counters are up to the caller, through [`Environment`]. Only the
//! benches use it; the daemon is built without it.
//!
//! Read in this order: [`schedule`] (when requests are due), [`protocol`], [`framing`] and
//! [`storage`] (what goes over the wire), [`generator`] (how requests are sent and answered),
//! [`server`] (netpolicy's own servers, for cases where an application's server would distort the
//! result).
#![forbid(unsafe_code)]

mod clock;
pub mod framing;
pub mod generator;
pub mod protocol;
pub mod record;
pub mod schedule;
pub mod server;
pub mod storage;

pub use generator::{Edge, Environment, Run, RunError, memcached, offer};

#[cfg(test)]
pub(crate) use test_values::{test_evidence, test_workload};

#[cfg(test)]
mod test_values {
    use model::{
        Arrivals, Evidence, KeySize, MeasuredOn, MemcachedWorkload, Nanoseconds, OfferedLoad, Origin,
        ValueSize, Waiting, Workload,
    };

    pub(crate) fn test_workload() -> MemcachedWorkload {
        MemcachedWorkload {
            threads: 1,
            connections_per_thread: 4,
            depth: 1,
            arrivals: Arrivals::Exponential,
            set_share: 0.1,
            keys: 100,
            key_size: KeySize::Fixed(20),
            value_size: ValueSize::Fixed(100),
            preload: true,
            warmup: Nanoseconds::ZERO,
            window: Nanoseconds::from_millis(200),
            drain: Nanoseconds::from_millis(200),
            seed: 1,
            waiting: Waiting::Sleep,
        }
    }

    pub(crate) fn test_evidence() -> Evidence {
        let origin = Origin::Measured(MeasuredOn {
            host: "host".to_owned(),
            kernel: "6.18.0".to_owned(),
            machine: "2 CPUs".to_owned(),
            server: "memcached".to_owned(),
            started: 0,
        });
        let workload = Workload::Memcached(test_workload());
        Evidence {
            throughput: 10_000.0,
            generator_busy: 0.5,
            ..Evidence::new("base", origin, workload, OfferedLoad::PerSecond(10_000.0))
        }
    }
}
