//! Measures what an open window of `watch` costs a saturated redis-server that `redis-benchmark` loads in a
//! lab: the run time of each program per request, and the rate with and without a window, by redis's own
//! count of commands. Stretches with and without a window alternate in pairs, in alternating order. The
//! programs also run for the client's sockets, which are on the same machine: a client on another host pays
//! nothing. `cargo bench -p netpolicy-linux --bench live_weight [-- PAIRS]`, as root.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

mod shift;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bpf::live::{LiveMeter, LiveTarget};
use bpf::{RunTime, Statistics};
use libtest_mimic::Failed;
use linux::lab::{Lab, LabOptions, SERVER_ADDRESS};

const PORT: u16 = 6379;
/// The length of a stretch: as long as a window of `watch`.
const STRETCH: Duration = Duration::from_millis(100);
/// The number of pairs of stretches.
const PAIRS: usize = 100;

fn main() -> Result<(), Failed> {
    let pairs = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(PAIRS);
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let mut server = Command::new("redis-server");
    server.args(["--port", &PORT.to_string(), "--bind", &SERVER_ADDRESS.to_string()]);
    server.args(["--protected-mode", "no", "--save", "", "--appendonly", "no"]);
    let _server = lab.start_program(server, PORT)?;
    let kernel = rustix::system::uname();
    println!("Linux {}, {pairs} pairs of {STRETCH:?}", kernel.release().to_string_lossy());
    for pipeline in ["1", "16"] {
        let _client = Client::start(&lab, pipeline)?;
        std::thread::sleep(Duration::from_millis(200));
        println!("\nredis-benchmark -t set -c 8 -P {pipeline}");
        let mut redis = Redis::connect(&lab)?;
        let mut meter = LiveMeter::load(&LiveTarget::of(lab.server().id(), vec![PORT]))?;
        run_times(&mut meter, &mut redis)?;
        rates(&mut meter, &mut redis, pairs)?;
    }
    Ok(())
}

/// A `redis-benchmark` that runs until it is dropped.
struct Client(Child);

impl Client {
    fn start(lab: &Lab, pipeline: &str) -> Result<Self, Failed> {
        let mut client = Command::new("redis-benchmark");
        client.args(["-h", &SERVER_ADDRESS.to_string(), "-p", &PORT.to_string(), "-t", "set", "-c", "8"]);
        client.args(["-P", pipeline, "-n", "2000000000", "-q"]);
        client.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(lab.client().run(|| client.spawn())??))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

/// A connection that queries redis's count of processed commands.
struct Redis(BufReader<TcpStream>);

impl Redis {
    fn connect(lab: &Lab) -> Result<Self, Failed> {
        let stream = lab.client().run(|| TcpStream::connect((SERVER_ADDRESS, PORT)))??;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    fn commands(&mut self) -> Result<(u64, Instant), Failed> {
        self.0.get_mut().write_all(b"*2\r\n$4\r\nINFO\r\n$5\r\nstats\r\n")?;
        let mut length = String::new();
        self.0.read_line(&mut length)?;
        let length: usize = length.trim().trim_start_matches('$').parse()?;
        let mut answer = vec![0; length + 2];
        self.0.read_exact(&mut answer)?;
        let at = Instant::now();
        let answer = String::from_utf8(answer)?;
        let line = answer.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        Ok((line.ok_or("redis does not count commands")?.parse()?, at))
    }

    /// Returns the rate in commands per second over one stretch.
    fn rate(&mut self) -> Result<f64, Failed> {
        let (before, begun) = self.commands()?;
        std::thread::sleep(STRETCH);
        let (after, ended) = self.commands()?;
        Ok(per(after - before, ended - begun) * 1e9)
    }
}

/// Each program's run time per request.
fn run_times(meter: &mut LiveMeter, redis: &mut Redis) -> Result<(), Failed> {
    let _statistics = Statistics::enable()?;
    meter.begin()?;
    let before = meter.run_times()?;
    let (asked, _) = redis.commands()?;
    std::thread::sleep(10 * STRETCH);
    let (answered, _) = redis.commands()?;
    let after = meter.run_times()?;
    let window = meter.end()?;
    let requests = answered - asked;
    let mut together = 0.0;
    for (before, after) in before.iter().zip(after) {
        let RunTime { program, runs, time, .. } = after;
        let (runs, time) = (runs - before.runs, Duration::from_nanos(time.0 - before.time.0));
        together += 1.0 / per(requests, time);
        if runs > 0 {
            println!(
                "  {program:14} {:>5.2} runs per request, {:>4.0} ns each",
                1.0 / per(requests, Duration::from_nanos(runs)),
                1.0 / per(runs, time)
            );
        }
    }
    println!(
        "  together {together:.0} ns per request, of {requests}; the window counted {}",
        window.counts.requests
    );
    Ok(())
}

/// Rates in pairs of stretches, one of which has a window open.
fn rates(meter: &mut LiveMeter, redis: &mut Redis, pairs: usize) -> Result<(), Failed> {
    let (mut losses, mut plain_rates, mut watched_rates) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        let mut rates = [0.0; 2];
        for watched in [pair % 2 == 0, pair % 2 != 0] {
            if watched {
                meter.begin()?;
            }
            std::thread::sleep(Duration::from_nanos(LiveMeter::GUARD.0));
            rates[usize::from(watched)] = redis.rate()?;
            if watched {
                meter.end()?;
                // Detaching programs delays requests; keep the delayed ones out of the next stretch.
                std::thread::sleep(Duration::from_nanos(LiveMeter::GUARD.0));
            }
        }
        losses.push(100.0 * (1.0 - rates[1] / rates[0]));
        plain_rates.push(rates[0]);
        watched_rates.push(rates[1]);
    }
    let (low, estimate, high) = shift::shift_with_interval(&losses);
    let [plain, watched] = [plain_rates, watched_rates].map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!(
        "  {plain:.0} requests/s without a window, {watched:.0} with one: {estimate:.2} % lost, 95 % interval {low:.2} % to {high:.2} %"
    );
    Ok(())
}

/// Converts a count in a span to a count per nanosecond.
#[expect(clippy::cast_precision_loss, reason = "counts and spans of a few seconds, below 2^53")]
fn per(number: u64, span: Duration) -> f64 {
    number as f64 / span.as_nanos() as f64
}
