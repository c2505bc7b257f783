//! Defines the command line of `bench live`.

use std::path::PathBuf;

use clap::Args;
use model::{
    Arrivals, DeliveryMode, KeySize, MemcachedWorkload, Nanoseconds, OfferedLoad, ValueSize, Waiting,
};

use super::option::span;

/// Compare the measurements of `watch` with the truth on the wire.
///
/// In a lab, memcached receives requests in open and closed loops under delivery modes. Meanwhile it is
/// measured by the method of `watch` and at both ends of the wire, from when each request is transmitted
/// until its answer is. The report states the error of each estimate, and how many pairs of modes it orders
/// as the wire does.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy bench live                    seven modes, three open loops, three closed ones, three rounds
  netpolicy bench live --repeats 1 --rate 8K --closed 16
  netpolicy bench live --cost             the cost of measuring for the service")]
pub struct Live {
    /// The modes to measure [default: base, defer50, defer200, napibusy, suspend20, suspend200, threaded].
    #[arg(long, value_name = "MODE,...", value_delimiter = ',')]
    pub mode: Vec<DeliveryMode>,
    /// Open loops: requests per second.
    #[arg(long, value_name = "RATE,...", value_delimiter = ',', default_value = "2K,8K,20K", value_parser = rate)]
    pub rate: Vec<OfferedLoad>,
    /// Closed loops: connections, each with one outstanding request.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,16,64", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub closed: Vec<u32>,
    /// How often to run each mode at each load.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
    /// How long to measure in each run.
    #[arg(long, value_name = "SPAN", default_value = "950ms", value_parser = span)]
    pub seconds: Nanoseconds,
    /// Number of connections in the open loops.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub connections: u32,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Instead, measure what measuring costs the service: its CPU time per request without measuring, with
    /// the default sample, and with programs attached all the time.
    #[arg(long)]
    pub cost: bool,
    /// Write every run to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn rate(text: &str) -> Result<OfferedLoad, String> {
    match text.parse() {
        Ok(OfferedLoad::Max) => Err("use --closed for closed loops".to_owned()),
        Ok(load) => Ok(load),
        Err(error) => Err(format!("{error}")),
    }
}

/// A load of the bench.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LiveLoad {
    pub(crate) offered: OfferedLoad,
    /// Number of connections.
    pub(crate) connections: u32,
}

impl LiveLoad {
    /// Returns whether clients wait for each answer.
    pub(crate) fn is_closed(&self) -> bool {
        self.offered == OfferedLoad::Max
    }
}

impl std::fmt::Display for LiveLoad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.offered {
            OfferedLoad::Max => write!(f, "closed {}", self.connections),
            OfferedLoad::PerSecond(_) => write!(f, "open {}", self.offered),
        }
    }
}

impl Live {
    /// Returns the modes. The kernel's default comes first, because the clients' turnaround times are learned
    /// under it.
    pub(crate) fn modes(&self) -> Vec<DeliveryMode> {
        let mut modes: Vec<DeliveryMode> = if self.mode.is_empty() {
            let words = ["base", "defer50", "defer200", "napibusy", "suspend20", "suspend200", "threaded"];
            words.iter().filter_map(|word| word.parse().ok()).collect()
        } else {
            self.mode.clone()
        };
        modes.sort_by_key(|mode| *mode != DeliveryMode::Interrupt);
        modes
    }

    pub(crate) fn loads(&self) -> Vec<LiveLoad> {
        let open = self.rate.iter().map(|&offered| LiveLoad { offered, connections: self.connections });
        let closed =
            self.closed.iter().map(|&connections| LiveLoad { offered: OfferedLoad::Max, connections });
        open.chain(closed).collect()
    }

    /// Returns the workload of a run.
    pub(crate) fn workload(&self, load: LiveLoad, round: u32) -> MemcachedWorkload {
        MemcachedWorkload {
            threads: 1,
            connections_per_thread: load.connections,
            depth: 1,
            arrivals: Arrivals::Exponential,
            set_share: 0.03,
            keys: 1_000,
            key_size: KeySize::Fixed(30),
            value_size: ValueSize::Fixed(200),
            preload: true,
            warmup: Nanoseconds::from_millis(150),
            window: self.seconds,
            drain: Nanoseconds::from_millis(100),
            seed: self.seed + u64::from(round),
            waiting: Waiting::Spin,
        }
    }
}
