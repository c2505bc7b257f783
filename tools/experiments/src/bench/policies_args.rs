//! Defines the command line of `bench policies`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use model::{Arrivals, CpuSet, DeliveryMode, ExchangeWorkload, Nanoseconds, Pace, Waiting, Workload};

use super::foreign::Foreign;
use super::mixture::{AT_ONCE, DOCUMENT_CPUS, Mix, Mixture, mixtures, scaled};
use super::option::span;
use super::size::{Bytes, Sizes};
use super::tuning::Tuning;
use crate::machines::args::TwoMachines;

/// Measure every policy in comparison with no tuning and with manual tuning, as in the NET-policy document,
/// with absolute numbers.
///
/// Throughput-first workloads send blocks as fast as possible (tcp-stream); latency-first workloads have one
/// outstanding request (tcp-rr). Each workload is a connection with its own client thread, and all workloads
/// of a kind use one server. The two kinds run separately and mixed, in the document's numbers and
/// proportions, scaled to the CPUs of this machine (with --server, to the server's), in a lab that is
/// restored after each run. `manual` is what an operator usually sets; RPS replaces the affinity of
/// interrupts, which the lab lacks.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy bench policies --short
  netpolicy bench policies --report policies.html --json policies.json
  netpolicy bench policies --policy none,latency --mix 0:1 --at-once 24,96
  netpolicy bench policies --policy none,cpu --start 'memcached -u nobody -l {address} -p {port}' --port 11211 \\
      --protocol memcached --rate 20K --connections 128
  netpolicy bench policies --server ssh:root@192.0.2.7 --service redis-server --protocol redis
                                          a service that runs on another machine
  netpolicy bench policies --simulated   at the document's own scale, in the model")]
pub struct Policies {
    /// The policies to compare, and manual. The first is the baseline [default: none, manual and all other
    /// policies].
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub policy: Vec<Tuning>,
    /// Delivery modes to compare in addition to the policies, such as defer50.
    #[arg(long, value_name = "MODE,...", value_delimiter = ',', conflicts_with = "simulated")]
    pub delivery: Vec<DeliveryMode>,
    /// The options for two machines.
    #[command(flatten)]
    pub machines: TwoMachines,
    /// Options for a server of your own.
    #[command(flatten)]
    pub foreign: Foreign,
    /// Numbers of concurrent workloads, for a machine with --meant-for CPUs: they are scaled to this one
    /// [default: 1,12,24,48,96, with --short 24,96].
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub at_once: Vec<u32>,
    /// The number of CPUs that --at-once refers to.
    #[arg(long, value_name = "N", default_value_t = DOCUMENT_CPUS, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub meant_for: u32,
    /// Mixes of throughput-first and latency-first workloads, as proportions [default: 1:0,0:1,2:1,1:2,1:1,
    /// with --short 1:0,0:1,1:1].
    #[arg(long, value_name = "T:L,...", value_delimiter = ',')]
    pub mix: Vec<Mix>,
    /// Size of a block of a throughput-first workload.
    #[arg(long, value_name = "SIZE", default_value = "64K")]
    pub block: Bytes,
    /// Outstanding blocks per connection of these workloads.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub depth: u32,
    /// Size of requests and answers of a latency-first workload.
    #[arg(long, value_name = "SIZE[/SIZE]", default_value = "1")]
    pub size: Sizes,
    /// How often to run each configuration [default: 4, with --short 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub repeats: Option<u32>,
    /// How long to measure in each run [default: 600ms, with --short 300ms].
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub seconds: Option<Nanoseconds>,
    /// How long to warm up before measuring in each run.
    #[arg(long, value_name = "SPAN", default_value = "100ms", value_parser = span)]
    pub warmup: Nanoseconds,
    /// Finish within three minutes: fewer numbers and mixes, short runs, and no new run after that time.
    #[arg(long)]
    pub short: bool,
    /// Simulate the evaluation with the model of the receive path instead, at the document's own scale,
    /// without touching any host.
    #[arg(long, conflicts_with_all = ["server_threads", "queues", "server_cpus", "client_cpus", "uncounted", "block", "size", "server"])]
    pub simulated: bool,
    /// Threads of each server [default: one per server CPU].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub server_threads: Option<u32>,
    /// Queues of the lab's network devices [default: one per server CPU].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with = "server")]
    pub queues: Option<u32>,
    /// The servers' CPUs [default: the upper half].
    #[arg(long, value_name = "CPUS")]
    pub server_cpus: Option<CpuSet>,
    /// The clients' CPUs [default: the lower half].
    #[arg(long, value_name = "CPUS")]
    pub client_cpus: Option<CpuSet>,
    /// Seed of all random choices, above all the order of runs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Do not count which context delivers the packets.
    #[arg(long)]
    pub uncounted: bool,
    /// Write a report to this file: a self-contained HTML page.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write the evidence of every run to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Policies {
    /// Returns the configurations to compare, in display order, without duplicates.
    pub(crate) fn tunings(&self) -> Vec<Tuning> {
        let asked = if self.policy.is_empty() { Tuning::ALL.as_slice() } else { &self.policy };
        let modes = self.delivery.iter().copied().map(Tuning::Delivery);
        let mut tunings = Vec::new();
        for tuning in asked.iter().copied().chain(modes) {
            if !tunings.contains(&tuning) {
                tunings.push(tuning);
            }
        }
        tunings
    }

    /// Returns the numbers of workloads, before scaling.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        match (self.at_once.is_empty(), self.short) {
            (false, _) => self.at_once.clone(),
            (true, true) => vec![24, 96],
            (true, false) => AT_ONCE.to_vec(),
        }
    }

    fn mixes(&self) -> Vec<Mix> {
        match (self.mix.is_empty(), self.short) {
            (false, _) => self.mix.clone(),
            (true, true) => vec![Mix::ALL[0], Mix::ALL[1], Mix::ALL[4]],
            (true, false) => Mix::ALL.to_vec(),
        }
    }

    /// Returns the mixtures to run on a machine with this many CPUs.
    pub(crate) fn mixtures(&self, cpus: u32) -> Vec<Mixture> {
        let numbers: Vec<u32> =
            self.numbers().into_iter().map(|number| scaled(number, self.meant_for, cpus)).collect();
        mixtures(&numbers, &self.mixes())
    }

    /// Describes how the numbers were scaled to this many CPUs.
    pub(crate) fn scale(&self, cpus: u32) -> String {
        let list = |numbers: Vec<u32>| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let numbers = self.numbers();
        let here = numbers.iter().map(|number| scaled(*number, self.meant_for, cpus)).collect();
        format!(
            "Scaled: {} concurrent workloads on {} CPUs become {} on the {cpus} CPU(s) here.",
            list(numbers),
            self.meant_for,
            list(here)
        )
    }

    /// Returns how often each configuration is measured.
    pub(crate) fn rounds(&self) -> u32 {
        self.repeats.unwrap_or(if self.short { 2 } else { 4 })
    }

    /// Returns the length of the measured window.
    pub(crate) fn window(&self) -> Nanoseconds {
        self.seconds.unwrap_or(Nanoseconds::from_millis(if self.short { 300 } else { 600 }))
    }

    /// Returns the time after which no further run starts: three minutes, less the time for one run and for
    /// writing the files.
    pub(crate) fn time_for_all(&self) -> Option<Duration> {
        self.short.then_some(Duration::from_secs(170))
    }

    /// Returns the workload for a server of the operator's choice over this many connections; `None` if no
    /// server is given.
    pub(crate) fn of_foreign(&self, connections: u32) -> Option<Workload> {
        let protocol = self.foreign.protocol?;
        let spans = (self.warmup, self.window());
        Some(self.foreign.workload(protocol, connections, spans, (self.size.request, self.size.answer)))
    }

    fn pace(&self, workloads: u32, depth: u32) -> Pace {
        Pace {
            threads: workloads,
            flows: workloads,
            depth,
            arrivals: Arrivals::Fixed,
            warmup: self.warmup,
            window: self.window(),
            drain: Nanoseconds::from_millis(500),
            seed: self.seed,
            waiting: Waiting::Sleep,
        }
    }

    /// Returns the throughput-first workloads; `None` if there are none.
    pub(crate) fn throughput_first(&self, mixture: Mixture) -> Option<Workload> {
        (mixture.throughput > 0).then(|| {
            Workload::TcpStream(ExchangeWorkload {
                pace: self.pace(mixture.throughput, self.depth),
                request_bytes: u32::try_from(self.block.0).unwrap_or(u32::MAX),
                answer_bytes: 1,
            })
        })
    }

    /// Returns the latency-first workloads; `None` if there are none.
    pub(crate) fn latency_first(&self, mixture: Mixture) -> Option<Workload> {
        (mixture.latency > 0).then(|| {
            Workload::TcpRr(ExchangeWorkload {
                pace: self.pace(mixture.latency, 1),
                request_bytes: self.size.request,
                answer_bytes: self.size.answer,
            })
        })
    }
}

#[cfg(test)]
mod test {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        policies: Policies,
    }

    fn parsed(words: &str) -> Policies {
        let line = std::iter::once("bench").chain(words.split_whitespace());
        Line::try_parse_from(line).expect("parses").policies
    }

    #[test]
    fn without_a_word_it_is_the_documents_evaluation_on_this_machine() {
        let all = parsed("");
        assert_eq!((all.tunings().len(), all.mixtures(2).len(), all.rounds()), (7, 15, 4));
        assert_eq!(
            all.scale(2),
            "Scaled: 1, 12, 24, 48, 96 concurrent workloads on 24 CPUs become 1, 1, 2, 4, 8 on the 2 CPU(s) here."
        );
        assert_eq!(all.time_for_all(), None);
    }

    #[test]
    fn a_short_one_keeps_within_its_time() {
        let short = parsed("--short");
        let runs = short.mixtures(2).len() * short.tunings().len() * short.rounds() as usize;
        // A run takes its warm-up, its window and at most half a second to start servers, apply settings and
        // restore them.
        let each = Duration::from_nanos(short.warmup.0 + short.window().0) + Duration::from_millis(500);
        let all = each * u32::try_from(runs).expect("few");
        assert!(all < short.time_for_all().expect("a limit"), "{runs} runs take {all:?}");
    }

    #[test]
    fn every_workload_is_a_connection_with_a_thread_of_its_own_and_in_range() {
        let all = parsed("--meant-for 1 --at-once 1,256 --seconds 1");
        for mixture in all.mixtures(1) {
            for workload in all.throughput_first(mixture).iter().chain(&all.latency_first(mixture)) {
                assert_eq!(workload.check(), Ok(()), "{mixture:?}");
                assert_eq!(workload.pace().threads, workload.pace().flows);
            }
        }
        let mixture = Mixture { throughput: 3, latency: 0 };
        assert_eq!(all.throughput_first(mixture).map(|w| w.pace().flows), Some(3));
        assert_eq!(all.latency_first(mixture), None);
    }

    #[test]
    fn what_is_compared_is_compared_once_and_in_the_order_given() {
        let asked = parsed("--policy latency,none,latency");
        let words: Vec<String> = asked.tunings().iter().map(Tuning::to_string).collect();
        assert_eq!(words, ["latency", "none"]);
        let modes = parsed("--policy none --delivery defer50,defer50").tunings();
        assert_eq!(modes.iter().map(Tuning::to_string).collect::<Vec<_>>(), ["none", "delivery defer50"]);
        assert!(
            Line::try_parse_from(["bench", "--simulated", "--queues", "2"]).is_err(),
            "no lab, no queues"
        );
    }

    #[test]
    fn a_foreign_server_needs_its_port_and_protocol_and_gets_its_address() {
        let line = |words: &[&str]| {
            Line::try_parse_from([&["bench", "--start", "serve {address}:{port}"], words].concat())
        };
        for missing in [&[][..], &["--port", "7"], &["--protocol", "redis"]] {
            assert!(line(missing).is_err(), "{missing:?}");
        }
        assert!(line(&["--port", "7", "--protocol", "redis", "--at-once", "4"]).is_err());
        assert!(
            Line::try_parse_from(["bench", "--rate", "20K"]).is_err(),
            "netpolicy's own servers run in closed loop"
        );
        let asked =
            line(&["--port", "7", "--protocol", "redis", "--rate", "5K,max"]).expect("parses").policies;
        let server = asked.foreign.server().expect("named");
        assert_eq!((server.command.as_str(), server.port), ("serve 192.0.2.1:7", 7));
        for protocol in ["redis", "http", "echo", "memcached"] {
            let asked = line(&["--port", "7", "--protocol", protocol]).expect("parses").policies;
            let workload = asked.of_foreign(16).expect("named");
            assert_eq!(workload.check(), Ok(()), "{protocol}");
            assert_eq!((workload.pace().flows, workload.pace().waiting), (16, Waiting::Block), "{protocol}");
        }
    }
}
