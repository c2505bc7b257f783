//! Runs the load generator once against a memcached server and prints its evidence as JSON.
//!
//! ```text
//! cargo run --release -p netpolicy-load --example load -- --server 127.0.0.1:11211 --load 50K --seconds 5
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example prints to its user")]

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use load::Environment;
use model::{
    Arrivals, KeySize, MeasuredOn, MemcachedWorkload, Nanoseconds, OfferedLoad, Origin, ValueSize, Waiting,
};

/// Offers a load to a memcached server.
#[derive(Parser)]
struct Options {
    /// The server's address.
    #[arg(long, default_value = "127.0.0.1:11211")]
    server: SocketAddr,
    /// Requests per second, such as 50K, or max.
    #[arg(long, default_value = "max")]
    load: OfferedLoad,
    /// Client threads.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Connections per thread.
    #[arg(long, default_value_t = 16)]
    connections: u32,
    /// Outstanding requests per connection.
    #[arg(long, default_value_t = 1)]
    depth: u32,
    /// Gaps between requests: fixed, exponential or fb_ia.
    #[arg(long, default_value = "exponential")]
    arrivals: Arrivals,
    /// Share of requests that set a key.
    #[arg(long, default_value_t = 0.1)]
    set_share: f64,
    /// Number of keys.
    #[arg(long, default_value_t = 10_000)]
    keys: u32,
    /// Bytes per key, or `fb_key`: the distribution of key sizes in Facebook's ETC workload.
    #[arg(long, default_value = "30")]
    key_size: KeySize,
    /// Bytes per value, or `fb_value`: the distribution of value sizes in Facebook's ETC workload.
    #[arg(long, default_value = "200")]
    value_size: ValueSize,
    /// Do not set the keys before the run.
    #[arg(long)]
    no_preload: bool,
    /// Warm-up, in seconds.
    #[arg(long, default_value_t = 0.5)]
    warmup: f64,
    /// Measured window, in seconds.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Sleep instead of spinning.
    #[arg(long)]
    sleep: bool,
    /// CPU of the client threads.
    #[arg(long)]
    cpu: Option<usize>,
    /// Print the evidence as JSON, histograms included.
    #[arg(long)]
    json: bool,
}

struct Pinned(Option<usize>);

impl Environment for Pinned {
    fn on_thread_start(&self, _thread: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if let Some(cpu) = self.0 {
            let mut set = rustix::thread::CpuSet::new();
            set.set(cpu);
            rustix::thread::sched_setaffinity(None, &set)?;
        }
        Ok(())
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "seconds from the command line; the workload checks the range"
)]
fn span(seconds: f64) -> Nanoseconds {
    Nanoseconds((seconds * 1e9) as u64)
}

fn main() -> ExitCode {
    let options = Options::parse();
    let workload = MemcachedWorkload {
        threads: options.threads,
        connections_per_thread: options.connections,
        depth: options.depth,
        arrivals: options.arrivals,
        set_share: options.set_share,
        keys: options.keys,
        key_size: options.key_size,
        value_size: options.value_size,
        preload: !options.no_preload,
        warmup: span(options.warmup),
        window: span(options.seconds),
        drain: span(1.0),
        seed: options.seed,
        waiting: if options.sleep { Waiting::Sleep } else { Waiting::Spin },
    };
    let run = match load::memcached(options.server, &workload, options.load, &Pinned(options.cpu)) {
        Ok(run) => run,
        Err(error) => {
            eprintln!("load: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(words) = run.refusal() {
        eprintln!("load: the server refused a key: {words}");
    }
    let origin = Origin::Measured(MeasuredOn {
        host: String::new(),
        kernel: String::new(),
        machine: String::new(),
        server: options.server.to_string(),
        started: 0,
    });
    let evidence = run.into_evidence("load", origin);
    if options.json {
        match serde_json::to_string(&evidence) {
            Ok(text) => println!("{text}"),
            Err(error) => {
                eprintln!("load: {error}");
                return ExitCode::FAILURE;
            }
        }
        return ExitCode::SUCCESS;
    }
    println!(
        "offered {}  answered {:.0}/s  generator busy {:.0} %",
        evidence.load,
        evidence.throughput,
        evidence.generator_busy * 100.0
    );
    println!("{:?}", evidence.requests);
    for (name, spans) in [
        ("latency", &evidence.latency),
        ("lateness", &evidence.lateness),
        ("of the generator", &evidence.generator_lateness),
    ] {
        println!(
            "{name:>16}  avg {:.1}us  p50 {}  p90 {}  p99 {}  p99.9 {}  max {}",
            spans.avg / 1e3,
            spans.p50,
            spans.p90,
            spans.p99,
            spans.p999,
            spans.max
        );
    }
    if evidence.saturated() {
        println!("saturated: the server did not keep up");
    }
    if evidence.limited_by_generator() {
        println!("the generator may have been the limit");
    }
    if let Some(reason) = &evidence.void {
        println!("void: {reason}");
    }
    ExitCode::SUCCESS
}
