//! Defines the command line of `bench`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use model::{
    Arrivals, DeliveryMode, KeySize, MemcachedWorkload, Nanoseconds, OfferedLoad, Threading, ValueSize,
    Waiting,
};

use super::configuration::in_help;
use super::exchange_args::{Serve, Storage, TcpRr, TcpStream, Threaded, UdpRr, UdpStream};
use super::judge_args::Judge;
use super::live_args::Live;
use super::load::Load;
use super::option::span;
use super::policies_args::Policies;
use super::selfcheck_args::Selfcheck;
use crate::machines::args::TwoMachines;

/// Measure delivery modes with an application.
#[derive(Debug, Args)]
pub struct Bench {
    /// The application.
    #[command(subcommand)]
    pub application: Application,
}

/// An application to measure with.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "see the help of each command")]
pub enum Application {
    Memcached(Box<Memcached>),
    Live(Box<Live>),
    Judge(Box<Judge>),
    Report(FromEvidence),
    TcpRr(Box<TcpRr>),
    TcpStream(Box<TcpStream>),
    UdpRr(Box<UdpRr>),
    UdpStream(Box<UdpStream>),
    Threaded(Box<Threaded>),
    Storage(Box<Storage>),
    Policies(Box<Policies>),
    Selfcheck(Box<Selfcheck>),
    Serve(Box<Serve>),
}

/// Create the table and the report of an experiment from its evidence.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy bench report evidence.json --report report.html
  netpolicy bench report evidence.json.gz
  netpolicy bench report evidence.json.gz --orderings irq-suspension
  netpolicy bench report day.jsonl --report day.html
  netpolicy bench report monday.json tuesday.json --gates wanted.gates")]
pub struct FromEvidence {
    /// The output of a bench with `--json` or `-o json`, plain or compressed with gzip, or `-` for standard
    /// input. Several benches with netpolicy's own server are shown side by side. The output of `watch` or
    /// `compare` with --record is accepted, too.
    #[arg(value_name = "FILE", required = true)]
    pub evidence: Vec<PathBuf>,
    /// A file with required ratios between configurations, for the benches with netpolicy's own server.
    #[arg(long, value_name = "FILE")]
    pub gates: Option<PathBuf>,
    /// Instead of the table, list for each pair of configurations of `bench memcached` whether they are in
    /// the same order as in the measured rows of this scenario: a file, or irq-suspension for the rows of the
    /// document.
    #[arg(long, value_name = "SCENARIO", conflicts_with_all = ["gates", "report"])]
    pub orderings: Option<PathBuf>,
    /// Write a report to this file: a self-contained HTML page.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Measure memcached's response times and CPU cost under delivery modes.
///
/// This runs in a lab: two network namespaces connected by a veth, with the distribution's memcached on one
/// side and the load generator on the other. Every run observes, plans, commits, measures, restores and
/// compares. Nothing is left behind, even if the bench is killed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy bench memcached --matrix --report report.html
                                          the eleven configurations of the document at several loads
  netpolicy bench memcached --matrix --short
                                          the same within three minutes
  netpolicy bench memcached --matrix --rate 20%,40%,60%,80%,100%,max --json all.json --resume
                                          all cells of the document's table; go on after a kill
  netpolicy bench memcached --mode base,suspend20 --rate 40%,max --repeats 7
  netpolicy bench memcached --server ssh:root@192.0.2.7 --matrix --json two.json
                                          the same with memcached on another machine
  netpolicy bench memcached --address 192.0.2.7:11211 --rate 50K
                                          your own server, unchanged")]
pub struct Memcached {
    /// Measure this server as it is, instead of creating a lab.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["matrix", "mode", "queues", "server_threads", "server"])]
    pub address: Option<SocketAddr>,
    /// Measure all eleven configurations of the document "IRQ suspension".
    #[arg(long, conflicts_with = "mode")]
    pub matrix: bool,
    /// Measure these configurations.
    #[arg(
        long,
        value_name = "MODE,...",
        value_delimiter = ',',
        help = format!("These configurations: {}", in_help(|mode| mode.threading() == Threading::Off)),
    )]
    pub mode: Vec<DeliveryMode>,
    /// Finish within three minutes: fewer loads, short runs, and no new run after that time.
    #[arg(long)]
    pub short: bool,
    /// Loads: requests per second, such as 50K, or 0 for idle connections; a share of the maximum under base,
    /// such as 40%; or max (closed loop).
    #[arg(long, value_name = "LOAD,...", value_delimiter = ',')]
    pub rate: Vec<Load>,
    /// Also measure in closed loop, with the server's maximum throughput.
    #[arg(long)]
    pub max: bool,
    /// How often to run each configuration at each load [default: 5, with --short 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub repeats: Option<u32>,
    /// How long to measure in each run [default: 5s, with --short 800ms].
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub seconds: Option<Nanoseconds>,
    /// How long to warm up before measuring in each run [default: 1s, with --short 200ms].
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub warmup: Option<Nanoseconds>,
    /// Client threads [default: one per client CPU].
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Connections per client thread.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub connections: u32,
    /// Outstanding requests per connection.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub depth: u32,
    /// Distribution of the times between requests: fixed, exponential, fb_ia.
    #[arg(long, value_name = "NAME", default_value = "exponential")]
    pub arrivals: Arrivals,
    /// The share of requests that set a key, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.03)]
    pub set_ratio: f64,
    /// Number of keys.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub keys: u32,
    /// Size of keys: bytes, or fb_key, the distribution of sizes in Facebook's ETC workload.
    #[arg(long, value_name = "BYTES|NAME", default_value = "fb_key")]
    pub key_size: KeySize,
    /// Size of values: bytes, or fb_value.
    #[arg(long, value_name = "BYTES|NAME", default_value = "fb_value")]
    pub value_size: ValueSize,
    /// Seed of all random choices: arrivals, keys, sizes, the order of runs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Client threads sleep until the next due time instead of polling.
    #[arg(long)]
    pub sleep: bool,
    /// Worker threads of the lab's memcached [default: one per server CPU].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub server_threads: Option<u32>,
    /// Queues of the lab's network devices [default: one per worker thread].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with = "server")]
    pub queues: Option<u32>,
    /// The options for two machines.
    #[command(flatten)]
    pub machines: TwoMachines,
    /// Apply the mode to the client, too: its threads and its device.
    #[arg(long, requires = "server")]
    pub both_sides: bool,
    /// Measure a memcached that is already running on the server, and store the bench's keys in it.
    #[arg(long, value_name = "NAME|PORT", requires = "server", conflicts_with = "server_threads")]
    pub service: Option<String>,
    /// Count neither which context delivers the packets nor the events that each epoll_wait of the server
    /// returns.
    #[arg(long)]
    pub uncounted: bool,
    /// Write a report to this file: a self-contained HTML page.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write the evidence of every run to this file, as JSON. While the bench is running, the runs are in
    /// FILE.runs.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Continue an experiment that was killed or interrupted: make the runs that are missing from the file of
    /// --json, and repeat the void ones.
    #[arg(long, requires = "json")]
    pub resume: bool,
}

impl Memcached {
    /// Returns the configurations, in display order.
    pub fn modes(&self) -> Vec<DeliveryMode> {
        match (self.matrix, self.mode.is_empty()) {
            (true, _) => DeliveryMode::DOCUMENT.to_vec(),
            (false, true) => vec![DeliveryMode::Interrupt],
            (false, false) => self.mode.clone(),
        }
    }

    /// Returns the loads, in display order.
    pub fn loads(&self) -> Vec<Load> {
        let mut loads = self.rate.clone();
        if loads.is_empty() && !self.max {
            loads = match (self.address, self.short) {
                (Some(_), _) => Vec::new(),
                (None, true) => [20, 60].map(Load::Share).to_vec(),
                (None, false) => [20, 40, 60, 80].map(Load::Share).to_vec(),
            };
            loads.push(Load::MAX);
        }
        if self.max && !loads.contains(&Load::MAX) {
            loads.push(Load::MAX);
        }
        loads
    }

    /// Returns the loads on a machine with this capacity, without duplicates.
    pub fn loads_on(&self, requests_per_second: f64) -> Vec<OfferedLoad> {
        let mut loads: Vec<OfferedLoad> = Vec::new();
        for load in self.loads().iter().map(|load| load.on(requests_per_second)) {
            if !loads.contains(&load) {
                loads.push(load);
            }
        }
        loads
    }

    /// Returns, by name, the options that change what is measured but are not part of the configurations, the
    /// loads or the workload.
    pub fn options_of_stage(&self) -> BTreeMap<String, String> {
        fn text<T: ToString>(value: Option<&T>) -> Option<String> {
            value.map(ToString::to_string)
        }
        let flag = |is_given: bool| is_given.then(String::new);
        let TwoMachines { server, token: _, server_address, server_port, server_program: _ } = &self.machines;
        let options = [
            ("--address", text(self.address.as_ref())),
            ("--server-threads", text(self.server_threads.as_ref())),
            ("--queues", text(self.queues.as_ref())),
            ("--server", text(server.as_ref())),
            ("--server-address", text(server_address.as_ref())),
            ("--server-port", text(server_port.as_ref())),
            ("--both-sides", flag(self.both_sides)),
            ("--service", self.service.clone()),
            ("--uncounted", flag(self.uncounted)),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        given.collect()
    }

    /// Returns how often each configuration runs at each load.
    pub fn rounds(&self) -> u32 {
        self.repeats.unwrap_or(if self.short { 3 } else { 5 })
    }

    /// Returns the time after which no further run starts: three minutes, less the time for one run and for
    /// writing the files.
    pub fn time_for_all(&self) -> Option<Duration> {
        self.short.then_some(Duration::from_secs(170))
    }

    /// Returns the workload of a run, with `threads` client threads unless the operator chose a number.
    pub fn workload(&self, threads: u32) -> MemcachedWorkload {
        let millis = |short, long| Nanoseconds::from_millis(if self.short { short } else { long });
        MemcachedWorkload {
            threads: self.threads.unwrap_or(threads),
            connections_per_thread: self.connections,
            depth: self.depth,
            arrivals: self.arrivals,
            set_share: self.set_ratio,
            keys: self.keys,
            key_size: self.key_size,
            value_size: self.value_size,
            preload: true,
            warmup: self.warmup.unwrap_or(millis(200, 1_000)),
            window: self.seconds.unwrap_or(millis(800, 5_000)),
            drain: millis(200, 1_000),
            seed: self.seed,
            waiting: if self.sleep { Waiting::Sleep } else { Waiting::Spin },
        }
    }
}

#[cfg(test)]
mod test {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        memcached: Memcached,
    }

    fn parsed(words: &[&str]) -> Memcached {
        let line = std::iter::once("bench").chain(words.iter().copied());
        Line::try_parse_from(line).expect("parses").memcached
    }

    #[test]
    fn the_matrix_is_the_documents_and_its_loads_are_this_machines() {
        let matrix = parsed(&["--matrix"]);
        assert_eq!(matrix.modes().len(), 11);
        assert_eq!(matrix.loads().last(), Some(&Load::MAX));
        assert!(matrix.loads()[..4].iter().all(|load| matches!(load, Load::Share(_))));
        let named = parsed(&["--mode", "base,suspend20", "--rate", "50K,40%", "--max"]);
        assert_eq!(named.modes().len(), 2);
        assert_eq!(named.loads().len(), 3);
    }

    #[test]
    fn a_foreign_server_is_measured_as_it_is() {
        let line = ["bench", "--address", "127.0.0.1:11211", "--matrix"];
        let error = Line::try_parse_from(line).expect_err("its host must not be configured by the bench");
        assert!(error.to_string().contains("--matrix"), "{error}");
        assert_eq!(parsed(&["--address", "127.0.0.1:11211"]).loads(), [Load::MAX]);
    }

    #[test]
    fn spans_are_seconds_unless_they_say_otherwise() {
        for (text, millis) in [("5", 5_000), ("0.8", 800), ("800ms", 800), ("2s", 2_000)] {
            assert_eq!(span(text), Ok(Nanoseconds::from_millis(millis)), "{text}");
        }
        assert!(span("long").is_err());
    }
}
