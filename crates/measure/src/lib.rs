//! Proof by measurement.
//!
//! This room knows due times, histograms and noise: it offers a load to a server, records how long each answer
//! took from the moment its request was due, and says whether one set of runs is better than another beyond
//! noise. It must not know settings (it must not know what it is judging), and it reads no counters itself:
//! namespaces, CPUs and counters are the caller's, through [`Surroundings`]. The wall is held by its
//! dependencies (model alone), by `cargo xtask tidy`, which finds any mention of settings, and by
//! `forbid(unsafe_code)`.
//!
//! Read in this order: [`schedule`] (when requests are due), [`protocol`] and [`generator`] (how they are sent
//! and answered), [`record`] (how spans are kept), [`statistics`] and [`mod@verdict`] (what they mean),
//! [`experiment`], [`summary`], [`table`], [`grid`], [`mod@overall`] and [`report`] (many runs, and how they are shown),
//! [`live`] (what windows of a service that runs say together), [`switchback`] and [`sequential`] (settings that alternate on it), [`server`] (our own, where an application's would distort the result).
#![forbid(unsafe_code)]

mod clock;
pub mod cost;
pub mod experiment;
pub mod framing;
pub mod gate;
pub mod generator;
pub mod grid;
pub mod live;
pub mod overall;
pub mod protocol;
pub mod record;
pub mod report;
pub mod schedule;
pub mod sequential;
pub mod server;
pub mod statistics;
pub mod storage;
pub mod summary;
pub mod switchback;
pub mod table;
pub mod verdict;

pub use experiment::{Cell, Experiment, Failure, Progress, Results, Stage, Stopped};
pub use gate::{Gates, Judged};
pub use generator::{Edge, Run, RunError, Surroundings, memcached, offer};
pub use grid::{Grid, Skipped, Variant};
pub use overall::Overall;
pub use statistics::Interval;
pub use verdict::{Comparison, Shortfall, Verdict, Void, verdict};

#[cfg(test)]
pub(crate) use test_values::{test_evidence, test_workload};

#[cfg(test)]
mod test_values {
    use model::{
        Arrivals, Distribution, Evidence, KeySize, MeasuredOn, MemcachedWorkload, Nanoseconds, OfferedLoad,
        Origin, Requests, Schema, ValueSize, Waiting, Workload,
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
        Evidence {
            schema: Schema,
            label: "base".to_owned(),
            origin: Origin::Measured(MeasuredOn {
                host: "host".to_owned(),
                kernel: "6.18.0".to_owned(),
                machine: "2 CPUs".to_owned(),
                server: "memcached".to_owned(),
                started: 0,
            }),
            workload: Workload::Memcached(test_workload()),
            load: OfferedLoad::PerSecond(10_000.0),
            window: Nanoseconds::from_millis(200),
            requests: Requests::default(),
            throughput: 10_000.0,
            latency: Distribution::default(),
            lateness: Distribution::default(),
            generator_lateness: Distribution::default(),
            generator_busy: 0.5,
            cpu: None,
            counters: None,
            cpu_per_answer: None,
            cycles_per_request: None,
            interrupts_per_request: None,
            epoll_batch: None,
            delivered: None,
            void: None,
        }
    }
}
