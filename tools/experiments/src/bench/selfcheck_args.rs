//! Defines the command line of `bench selfcheck`.

use clap::Args;
use model::{Arrivals, ExchangeWorkload, Nanoseconds, OfferedLoad, Pace, Waiting};

use super::option::span;

/// Check the load generator against independent instruments.
///
/// In a lab, a server with a known service time receives requests from the load generator, polling and
/// sleeping, and from an independent open-loop client: a C program, compiled by cc. BPF programs at both ends
/// of the wire measure the same requests. In closed loop, redis-benchmark and wrk are compared. The check
/// compares the rate, the response times since requests were sent and since they were due, and the CPU time
/// per request of server and client by two methods. If programs are missing, the exit code is 6. If another
/// program or guest takes CPU time, no comparison passes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy bench selfcheck                    three rates, three numbers of connections, five rounds: about six minutes
  netpolicy bench selfcheck --rate 20K --connections 128
  netpolicy bench selfcheck --short            one of each, two rounds: seconds")]
pub struct Selfcheck {
    /// Requests per second.
    #[arg(long, value_name = "RATE,...", value_delimiter = ',', default_value = "1K,5K,20K", value_parser = rate)]
    pub rate: Vec<OfferedLoad>,
    /// Connections, each with one outstanding request.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,16,128", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub connections: Vec<u32>,
    /// CPU time that the server spends on a request.
    #[arg(long, value_name = "SPAN", default_value = "5us", value_parser = span)]
    pub service_time: Nanoseconds,
    /// How often to run each client at each rate and number of connections.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=100))]
    pub repeats: u32,
    /// How long to measure in each run.
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = span)]
    pub seconds: Nanoseconds,
    /// Run only one rate, one number of connections and two rounds of 200 ms: this checks whether the command
    /// works, not whether the instruments are accurate.
    #[arg(long, conflicts_with_all = ["rate", "connections", "repeats", "seconds"])]
    pub short: bool,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

fn rate(text: &str) -> Result<OfferedLoad, String> {
    match text.parse() {
        Ok(OfferedLoad::Max) => Err("closed loops are part of every check: give a rate".to_owned()),
        Ok(load) => Ok(load),
        Err(error) => Err(format!("{error}")),
    }
}

/// An offered rate, and the number of connections that carry it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    /// Requests per second.
    pub(crate) rate: f64,
    /// Connections.
    pub(crate) connections: u32,
}

impl Selfcheck {
    /// The length of a request, and of its answer, in bytes.
    pub(crate) const BYTES: u32 = 64;

    /// Time before the window.
    pub(crate) const WARMUP: Nanoseconds = Nanoseconds::from_millis(150);

    /// Returns the combinations of rates and numbers of connections.
    pub(crate) fn shapes(&self) -> Vec<Shape> {
        if self.short {
            return vec![Shape { rate: 5_000.0, connections: 16 }];
        }
        let rates = self.rate.iter().filter_map(|load| match load {
            OfferedLoad::PerSecond(rate) => Some(*rate),
            OfferedLoad::Max => None,
        });
        let shapes = |rate| self.connections.iter().map(move |&connections| Shape { rate, connections });
        rates.flat_map(shapes).collect()
    }

    /// Returns how often each client runs.
    pub(crate) const fn rounds(&self) -> u32 {
        if self.short { 2 } else { self.repeats }
    }

    /// Returns how long a run measures.
    pub(crate) const fn window(&self) -> Nanoseconds {
        if self.short { Nanoseconds::from_millis(200) } else { self.seconds }
    }

    /// Returns the pace of requests over this many connections.
    pub(crate) fn pace(&self, connections: u32, waiting: Waiting, round: u32) -> Pace {
        Pace {
            threads: 1,
            flows: connections,
            depth: 1,
            arrivals: Arrivals::Exponential,
            warmup: Self::WARMUP,
            window: self.window(),
            drain: Nanoseconds::from_millis(500),
            seed: self.seed + u64::from(round),
            waiting,
        }
    }

    /// Returns the workload of a run of the generator.
    pub(crate) fn workload(&self, shape: Shape, waiting: Waiting, round: u32) -> ExchangeWorkload {
        ExchangeWorkload {
            pace: self.pace(shape.connections, waiting, round),
            request_bytes: Self::BYTES,
            answer_bytes: Self::BYTES,
        }
    }
}
