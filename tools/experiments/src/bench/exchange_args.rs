//! Defines the command line of the benches with netpolicy's own server.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use model::{Arrivals, CpuSet, ExchangeWorkload, Nanoseconds, Pace, StorageWorkload, Waiting, Workload};

use super::configuration::{Configuration, in_help};
use super::load::Load;
use super::option::span;
use super::size::{Bytes, Sizes};
use crate::machines::args::TwoMachines;

/// Measure response times of requests and answers of fixed sizes, like neper's tcp_rr.
///
/// netpolicy's own server and client run in a lab of two network namespaces, or both on this host over
/// loopback. Configurations are applied to the server from outside, and rolled back after every run; those
/// that this kernel does not support are skipped, with the reason.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy bench tcp-rr --matrix --flows 1,16,64 --report rr.html
  netpolicy bench tcp-rr --mode base,suspend20 --size 1,5K,1M --rate 40%,max
  netpolicy bench tcp-rr --loopback --mode base,userbusy --flows 15,30,60")]
pub struct TcpRr {
    /// Sizes of requests and answers. With several, each is measured in turn.
    #[arg(long, value_name = "SIZE[/SIZE],...", value_delimiter = ',', default_value = "1")]
    pub size: Vec<Sizes>,
    /// The options that all of these benches share.
    #[command(flatten)]
    pub common: Common,
}

/// Measure throughput in one direction, like neper's tcp_stream.
///
/// Like tcp-rr, with large blocks, many of them outstanding on each connection; the receiver confirms each
/// block with a byte. The rate is in gigabits of blocks per second; the response time is the time until the
/// confirmation.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy bench tcp-stream --mode softirq,threaded --flows 1,8")]
pub struct TcpStream {
    /// Size of a block.
    #[arg(long, value_name = "SIZE", default_value = "256K")]
    pub block: Bytes,
    /// Outstanding blocks per connection.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub depth: u32,
    /// The server sends the blocks, instead of the client.
    #[arg(long)]
    pub from_server: bool,
    /// The options that all of these benches share.
    #[command(flatten)]
    pub common: Common,
}

/// Measure response times of requests and answers in UDP datagrams, like neper's udp_rr.
///
/// Like tcp-rr. A request whose answer takes more than 200ms counts as unanswered. The kernel selects the
/// server thread of a flow by a hash of its addresses and ports.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy bench udp-rr --matrix --flows 1,16,64 --report udp.html
  netpolicy bench udp-rr --mode base,suspend20 --size 64/512 --rate 40%,max")]
pub struct UdpRr {
    /// Sizes of requests and answers, at least 8 bytes. With several, each is measured in turn.
    #[arg(long, value_name = "SIZE[/SIZE],...", value_delimiter = ',', default_value = "64")]
    pub size: Vec<Sizes>,
    /// The options that all of these benches share.
    #[command(flatten)]
    pub common: Common,
}

/// Measure throughput of UDP datagrams in one direction, like neper's udp_stream.
///
/// Like tcp-stream, with a datagram for each block and each confirmation. A lost datagram is not
/// retransmitted and counts as unanswered.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy bench udp-stream --mode softirq,threaded --flows 1,8")]
pub struct UdpStream {
    /// Size of a block.
    #[arg(long, value_name = "SIZE", default_value = "1400")]
    pub block: Bytes,
    /// Outstanding blocks per flow.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub depth: u32,
    /// The server sends the blocks, instead of the client.
    #[arg(long)]
    pub from_server: bool,
    /// The options that all of these benches share.
    #[command(flatten)]
    pub common: Common,
}

/// Compare polling in softirqs with polling in the NAPIs' kernel threads, as in the cover letter of threaded
/// NAPI.
///
/// Like tcp-rr, at equal offered load. The document's 1000 flows on 56 hyper-threads are scaled to the CPUs
/// here. --matrix also measures the letter's second table: reads and writes of 4 KB, 64 KB and 1 MB on the
/// server's storage, on a temporary file in /var/tmp.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy bench threaded --matrix --background 2 --report threaded.html
  netpolicy bench threaded --mode softirq,threaded+pinned --kthread-cpus 0 --size 1 --rate 30%")]
pub struct Threaded {
    /// Sizes of requests and answers. With several, each is measured in turn.
    #[arg(long, value_name = "SIZE[/SIZE],...", value_delimiter = ',', default_value = "1,5K,1M")]
    pub size: Vec<Sizes>,
    /// With --matrix, omit the letter's second table.
    #[arg(long, requires = "matrix")]
    pub no_storage: bool,
    /// The options that all of these benches share.
    #[command(flatten)]
    pub common: Common,
}

impl Threaded {
    /// The size of the bench's own file that is used, in bytes.
    pub(crate) const STORAGE_BYTES: u64 = 64 << 20;

    /// Returns whether to measure the storage table of the document, too.
    pub(crate) const fn has_storage(&self) -> bool {
        self.common.matrix && !self.no_storage
    }
}

/// The operation sizes in the document's storage table.
const LETTERS_OPS: [Bytes; 3] = [Bytes(4 << 10), Bytes(64 << 10), Bytes(1 << 20)];

/// The share of writes. The document states neither this share nor the number of connections.
const STORAGE_WRITES: f64 = 0.5;
const STORAGE_FLOWS: u32 = 16;

/// Creates one experiment for each operation size and number of connections.
fn operations(ops: &[Bytes], common: &Common, threads: u32, write_share: f64, span_bytes: u64) -> Vec<Case> {
    let flows = common.flows_or(STORAGE_FLOWS);
    let case = |op: &Bytes, flows: u32| Case {
        name: format!("operations of {op}, {flows} flows"),
        workload: Workload::Storage(StorageWorkload {
            pace: common.pace(threads, flows, 1),
            op_bytes: u32::try_from(op.0).unwrap_or(u32::MAX),
            write_share,
            span_bytes,
        }),
    };
    ops.iter().flat_map(|op| flows.iter().map(move |&flows| case(op, flows))).collect()
}

/// Measure reads and writes of a server's storage for a remote client, at a fixed rate.
///
/// The server bypasses the page cache (O_DIRECT), and performs one operation at a time in each of its
/// threads, at uniformly random offsets: the remote-SSD application in the cover letter of threaded NAPI.
/// Without --file it uses a temporary file that no other process sees, and that disappears when the bench
/// ends.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy bench storage --mode softirq,threaded --op 4K,64K,1M --rate 200
  netpolicy bench storage --file /dev/nvme1n1 --write-ratio 0 --rate 2K")]
pub struct Storage {
    /// Bytes per operation. With several sizes, each is measured in turn.
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "4K,64K,1M")]
    pub op: Vec<Bytes>,
    /// The share of operations that write, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = STORAGE_WRITES)]
    pub write_ratio: f64,
    /// An existing file or block device, instead of a temporary file. With a --write-ratio above 0 its
    /// content is overwritten, which requires --overwrite.
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Allow the content of --file to be lost.
    #[arg(long, requires = "file")]
    pub overwrite: bool,
    /// Directory of the temporary file.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp", conflicts_with = "file")]
    pub dir: PathBuf,
    /// How much of the file to use, from its beginning.
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    pub span: Bytes,
    /// The options that all of these benches share.
    #[command(flatten)]
    pub common: Common,
}

/// Run the server of these benches until it is terminated.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy bench serve --listen 192.0.2.7:7007 --size 5K --threads 4
  netpolicy attach $(pidof netpolicy) --delivery suspend20
                                          from outside, as any other server
  netpolicy bench serve --listen 192.0.2.7:7100 --token /root/bench.token
                                          for benches with --server 192.0.2.7:7100")]
pub struct Serve {
    /// The address to listen on.
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "stdio")]
    pub listen: Option<SocketAddr>,
    /// Act as the server machine of benches with --server HOST:PORT, for clients that have the token in this
    /// file.
    #[arg(long, value_name = "FILE", requires = "listen", conflicts_with_all = ["threads", "cpus", "size", "udp", "storage", "writable", "in_a_row", "wait_at_most", "service_time"])]
    pub token: Option<PathBuf>,
    /// Act as the server machine of a bench with --server ssh:HOST, which sends its requests to standard
    /// input.
    #[arg(long, exclusive = true)]
    pub stdio: bool,
    /// Treat standard input as a connection that this command has accepted.
    #[arg(long, hide = true, requires = "token")]
    pub accepted: bool,
    /// Threads, each with a separate epoll.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: u32,
    /// The CPUs that the server may run on [default: all].
    #[arg(long, value_name = "CPUS")]
    pub cpus: Option<CpuSet>,
    /// Size of requests and answers [default: 1; with --udp 64].
    #[arg(long, value_name = "SIZE[/SIZE]", conflicts_with = "storage")]
    pub size: Option<Sizes>,
    /// Answer UDP datagrams; connections to the same port are closed.
    #[arg(long, conflicts_with = "storage")]
    pub udp: bool,
    /// Serve this file or block device instead.
    #[arg(long, value_name = "PATH")]
    pub storage: Option<PathBuf>,
    /// Allow clients to write to the file or block device of --storage.
    #[arg(long, requires = "storage")]
    pub writable: bool,
    /// How many consecutive connections to assign to a thread before the next thread gets one.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub in_a_row: u32,
    /// Maximum sleep of one epoll_wait, such as 1ms; with 0s it never sleeps [default: until an event
    /// arrives].
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub wait_at_most: Option<Nanoseconds>,
    /// CPU time that the server spends on each request, without sleeping.
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "0s", conflicts_with = "storage")]
    pub service_time: Nanoseconds,
}

/// The options that all benches with our own server share.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// All configurations of this bench.
    #[arg(long, conflicts_with = "mode")]
    pub matrix: bool,
    /// Measure these configurations.
    #[arg(
        long,
        value_name = "MODE,...",
        value_delimiter = ',',
        help = format!(
            "These configurations: {}; softirq, which sets nothing; threaded+pinned, threaded@CPU; with +fifo, their threads have the class fifo:50",
            in_help(|_| true)
        ),
    )]
    pub mode: Vec<Configuration>,
    /// Run server and client on this host, over loopback, instead of in a lab.
    #[arg(long, group = "own_client")]
    pub loopback: bool,
    /// The options for two machines.
    #[command(flatten)]
    pub machines: TwoMachines,
    /// Apply the configuration to the client, too, as in neper: to its threads and, with --server, to its
    /// device. Otherwise its threads sleep.
    #[arg(long, requires = "own_client", conflicts_with = "spin")]
    pub both_sides: bool,
    /// Let each client thread use only one server thread; otherwise it uses all of them.
    #[arg(long)]
    pub partners: bool,
    /// Connections of all client threads together. With several numbers, each is measured in turn.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub flows: Vec<u32>,
    /// Loads: requests per second, such as 50K; a share of the maximum under the first configuration, such as
    /// 40%; or max (closed loop).
    #[arg(long, value_name = "LOAD,...", value_delimiter = ',')]
    pub rate: Vec<Load>,
    /// How often to run each configuration at each load.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub repeats: u32,
    /// How long to measure in each run.
    #[arg(long, value_name = "SPAN", default_value = "2s", value_parser = span)]
    pub seconds: Nanoseconds,
    /// How long to warm up before measuring in each run.
    #[arg(long, value_name = "SPAN", default_value = "200ms", value_parser = span)]
    pub warmup: Nanoseconds,
    /// Client threads, never more than connections [default: one per client CPU].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    /// Server threads [default: one per server CPU].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub server_threads: Option<u32>,
    /// Queues of the lab's network devices [default: one per server thread].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with_all = ["loopback", "server"])]
    pub queues: Option<u32>,
    /// Distribution of the times between requests: fixed, exponential, fb_ia.
    #[arg(long, value_name = "NAME", default_value = "exponential")]
    pub arrivals: Arrivals,
    /// Seed of all random choices: arrivals, offsets, the order of runs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Client threads poll instead of sleeping until the next due time.
    #[arg(long)]
    pub spin: bool,
    /// The server's CPUs [default: the upper half].
    #[arg(long, value_name = "CPUS")]
    pub server_cpus: Option<CpuSet>,
    /// The client's CPUs [default: the lower half].
    #[arg(long, value_name = "CPUS")]
    pub client_cpus: Option<CpuSet>,
    /// The CPUs to which threaded+pinned pins the NAPIs' kernel threads, in turn [default: the server's].
    #[arg(long, value_name = "CPUS")]
    pub kthread_cpus: Option<CpuSet>,
    /// Threads that compute during a run.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=256))]
    pub background: u32,
    /// CPU usage of each of these threads, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub background_duty: u32,
    /// The CPUs on which these threads may run [default: the server's].
    #[arg(long, value_name = "CPUS")]
    pub background_cpus: Option<CpuSet>,
    /// Do not count which context delivers the packets.
    #[arg(long)]
    pub uncounted: bool,
    /// Required ratios between configurations, as in kernel/one-thread.gates; a missed one makes the exit code 1.
    #[arg(long, value_name = "FILE")]
    pub gates: Option<PathBuf>,
    /// Write a report to this file: a self-contained HTML page.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write the evidence of every run to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Common {
    /// Returns the pace of a run, with `threads` client threads unless the operator chose a number, but never
    /// more threads than connections.
    fn pace(&self, threads: u32, flows: u32, depth: u32) -> Pace {
        Pace {
            threads: self.threads.unwrap_or(threads).min(flows.max(1)),
            flows,
            depth,
            arrivals: self.arrivals,
            warmup: self.warmup,
            window: self.seconds,
            drain: Nanoseconds::from_millis(1_000),
            seed: self.seed,
            waiting: if self.spin { Waiting::Spin } else { Waiting::Sleep },
        }
    }

    /// Returns the numbers of connections to measure.
    fn flows_or(&self, default: u32) -> Vec<u32> {
        if self.flows.is_empty() { vec![default] } else { self.flows.clone() }
    }
}

/// One experiment of a bench.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case {
    /// The name that distinguishes the experiment from the others of the bench.
    pub(crate) name: String,
    /// The workload of the experiment's runs.
    pub(crate) workload: Workload,
}

/// A bench with netpolicy's own server: the configurations to compare, and the workloads.
pub(crate) trait Compares {
    /// The title of the bench's report.
    const TITLE: &'static str;
    /// The option that sets the length of the bench's requests, blocks or operations.
    const SIZE: &'static str = "--size";
    /// Returns the loads to use if the operator gives none.
    const LOADS: &'static [Load];
    /// Returns the options that all benches share.
    fn common(&self) -> &Common;
    /// Creates one experiment for each size and number of flows, with `threads` client threads on a machine
    /// with `cpus` CPUs.
    fn cases(&self, threads: u32, cpus: u32) -> Vec<Case>;

    /// Returns the configurations of the bench's `--matrix`.
    fn matrix(&self) -> Vec<Configuration> {
        Configuration::RR_MATRIX.iter().filter_map(|name| name.parse().ok()).collect()
    }

    /// Returns the configurations, in display order. All others are compared with the first.
    fn configurations(&self) -> Vec<Configuration> {
        let common = self.common();
        match (common.matrix, common.mode.is_empty()) {
            (true, _) => self.matrix(),
            (false, true) => vec![Configuration::Softirq],
            (false, false) => common.mode.clone(),
        }
    }

    /// Returns the loads, in display order.
    fn loads(&self) -> Vec<Load> {
        let rate = &self.common().rate;
        if rate.is_empty() { Self::LOADS.to_vec() } else { rate.clone() }
    }
}

/// Creates one experiment for each size and number of connections.
fn exchanges(
    workload: fn(ExchangeWorkload) -> Workload,
    sizes: &[Sizes],
    common: &Common,
    threads: u32,
    flows: u32,
) -> Vec<Case> {
    let flows = common.flows_or(flows);
    let case = |size: &Sizes, flows: u32| Case {
        name: format!("{size}, {flows} flows"),
        workload: workload(ExchangeWorkload {
            pace: common.pace(threads, flows, 1),
            request_bytes: size.request,
            answer_bytes: size.answer,
        }),
    };
    sizes.iter().flat_map(|size| flows.iter().map(move |&flows| case(size, flows))).collect()
}

/// Creates one experiment for each number of connections: blocks in one direction, each with a confirmation.
fn streams(
    workload: fn(ExchangeWorkload) -> Workload,
    (block, confirmation): (Bytes, u32),
    depth: u32,
    from_server: bool,
    common: &Common,
    threads: u32,
) -> Vec<Case> {
    let bytes = u32::try_from(block.0).unwrap_or(u32::MAX);
    let (request_bytes, answer_bytes, from) =
        if from_server { (confirmation, bytes, "server") } else { (bytes, confirmation, "client") };
    let case = |flows| Case {
        name: format!("blocks of {block} from the {from}, {depth} under way, {flows} flows"),
        workload: workload(ExchangeWorkload {
            pace: common.pace(threads, flows, depth),
            request_bytes,
            answer_bytes,
        }),
    };
    common.flows_or(4).into_iter().map(case).collect()
}

impl Compares for TcpRr {
    const TITLE: &'static str = "tcp-rr under delivery modes";
    const LOADS: &'static [Load] = &[Load::Share(40), Load::MAX];

    fn common(&self) -> &Common {
        &self.common
    }

    fn cases(&self, threads: u32, _cpus: u32) -> Vec<Case> {
        exchanges(Workload::TcpRr, &self.size, &self.common, threads, 16)
    }
}

impl Compares for UdpRr {
    const TITLE: &'static str = "udp-rr under delivery modes";
    const LOADS: &'static [Load] = &[Load::Share(40), Load::MAX];

    fn common(&self) -> &Common {
        &self.common
    }

    fn cases(&self, threads: u32, _cpus: u32) -> Vec<Case> {
        exchanges(Workload::UdpRr, &self.size, &self.common, threads, 16)
    }
}

impl Compares for UdpStream {
    const TITLE: &'static str = "udp-stream under delivery modes";
    const SIZE: &'static str = "--block";
    const LOADS: &'static [Load] = &[Load::MAX];

    fn common(&self) -> &Common {
        &self.common
    }

    fn cases(&self, threads: u32, _cpus: u32) -> Vec<Case> {
        let sizes = (self.block, ExchangeWorkload::DATAGRAM_BYTES_MIN);
        streams(Workload::UdpStream, sizes, self.depth, self.from_server, &self.common, threads)
    }
}

impl Compares for Threaded {
    const TITLE: &'static str = "softirq and threaded NAPI";
    const LOADS: &'static [Load] = &[Load::Share(50), Load::MAX];

    fn common(&self) -> &Common {
        &self.common
    }

    fn matrix(&self) -> Vec<Configuration> {
        Configuration::THREADED_MATRIX.to_vec()
    }

    fn cases(&self, threads: u32, cpus: u32) -> Vec<Case> {
        // The cover letter of threaded NAPI uses 1000 flows on 56 hyper-threads. Scale that number to the
        // CPUs of this machine.
        let flows = (cpus * 1000).div_ceil(56).max(threads);
        let mut cases = exchanges(Workload::TcpRr, &self.size, &self.common, threads, flows);
        if self.has_storage() {
            cases.extend(operations(
                &LETTERS_OPS,
                &self.common,
                threads,
                STORAGE_WRITES,
                Self::STORAGE_BYTES,
            ));
        }
        cases
    }
}

impl Compares for TcpStream {
    const TITLE: &'static str = "tcp-stream under delivery modes";
    const SIZE: &'static str = "--block";
    const LOADS: &'static [Load] = &[Load::MAX];

    fn common(&self) -> &Common {
        &self.common
    }

    fn cases(&self, threads: u32, _cpus: u32) -> Vec<Case> {
        streams(Workload::TcpStream, (self.block, 1), self.depth, self.from_server, &self.common, threads)
    }
}

impl Compares for Storage {
    const TITLE: &'static str = "remote storage under delivery modes";
    const SIZE: &'static str = "--op";
    const LOADS: &'static [Load] = &[Load::Share(30)];

    fn common(&self) -> &Common {
        &self.common
    }

    fn matrix(&self) -> Vec<Configuration> {
        Configuration::THREADED_MATRIX.to_vec()
    }

    fn cases(&self, threads: u32, _cpus: u32) -> Vec<Case> {
        operations(&self.op, &self.common, threads, self.write_ratio, self.span.0)
    }
}
