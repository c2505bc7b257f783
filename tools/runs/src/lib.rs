//! Repeats the runs of a benchmark, and summarises their results.
//!
//! This crate orders the runs, separates their results from noise, and renders them as text and HTML. It must
//! not know the settings that it judges, and it offers no load itself: a [`Stage`] does. Only the benches use
//! it; the daemon is built without it.
//!
//! Read in this order: [`experiment`] (every configuration at every load in every round), [`summary`] and
//! [`mod@verdict`] (the results of one experiment), [`table`], [`mod@variant`], [`grid`], [`mod@overall`] and
//! [`cost`] (several experiments side by side), [`gate`] (bounds on their ratios), [`html`].
#![forbid(unsafe_code)]

pub mod cost;
pub mod experiment;
pub mod gate;
pub mod grid;
pub mod html;
pub mod overall;
pub mod summary;
pub mod table;
pub mod variant;
pub mod verdict;

pub use experiment::{Cell, Experiment, Failure, Progress, Results, Stage, Stopped};
pub use gate::{Gates, Judged};
pub use grid::{Grid, Skipped};
pub use overall::Overall;
pub use variant::Variant;
pub use verdict::{Comparison, Shortfall, Verdict, Void, verdict};

#[cfg(test)]
pub(crate) use test_values::test_evidence;

#[cfg(test)]
mod test_values {
    use model::{
        Arrivals, Evidence, KeySize, MeasuredOn, MemcachedWorkload, Nanoseconds, OfferedLoad, Origin,
        ValueSize, Waiting, Workload,
    };

    fn test_workload() -> MemcachedWorkload {
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
