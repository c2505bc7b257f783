//! What it costs to count deliveries: the time of a poll with and without the counter, the run time of each program,
//! and the throughput of a server with and without them, interleaved.
//!
//! Throughput is the sum of it all and the noisiest: both ends are on this machine, so the client's polls are
//! counted, and paid for, too.
//!
//! `cargo bench -p netpolicy-linux --bench delivery_cost [-- ROUNDS]`, as root.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

#[expect(dead_code, reason = "shared with the root tests, which use all of it")]
#[path = "../tests/root/asked_server.rs"]
mod asked_server;
#[expect(dead_code, reason = "shared with the root tests, which use all of it")]
#[path = "../tests/root/subject.rs"]
mod subject;
#[expect(dead_code, reason = "shared with the root tests, which use all of it")]
#[path = "../tests/root/wire.rs"]
mod wire;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use asked_server::AskedServer;
use libtest_mimic::Failed;
use linux::bpf::delivery::{DeliveryCounter, Sampler, between};
use linux::bpf::{RunTime, Statistics};

/// How long requests are counted at a stretch: long against the scheduler's turns, short against the machine's moods.
const STRETCH: Duration = Duration::from_millis(200);
/// The same where the counter samples: several of its turns.
const SAMPLED_STRETCH: Duration = Duration::from_secs(2);
/// How long the counter counts, or pauses, before requests are counted.
const SETTLE: Duration = Duration::from_millis(20);
/// How many pairs of stretches.
const ROUNDS: usize = 100;

fn main() -> Result<(), Failed> {
    let rounds = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(ROUNDS);
    let kernel = rustix::system::uname();
    println!("Linux {}, {rounds} rounds of {STRETCH:?}", kernel.release().to_string_lossy());
    poll()?;
    for (mode, suspends) in [("interrupt", false), ("suspend200", true)] {
        let server = AskedServer::start()?;
        if suspends {
            server.suspend()?;
        }
        println!("\n{mode}");
        run_times(&server)?;
        let mut counter = DeliveryCounter::load()?;
        throughput("counting all the time", &server, rounds, STRETCH, |counts| turn(&mut counter, counts))?;
        drop(counter);
        let mut sampler = Sampler::load()?;
        throughput(
            "sampling, as doctor and bench do",
            &server,
            rounds.div_ceil(3),
            SAMPLED_STRETCH,
            |samples| {
                if samples {
                    sampler.begin();
                    Ok(())
                } else {
                    sampler.end().map(|_| ()).map_err(Failed::from)
                }
            },
        )?;
    }
    Ok(())
}

/// How much longer a poll takes: a datagram to oneself is one poll of the backlog. The tracepoint is in it, which
/// the kernel's own statistics leave out.
fn poll() -> Result<(), Failed> {
    const DATAGRAMS: u32 = 5000;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(socket.local_addr()?)?;
    let mut byte = [0];
    let mut batch = || -> Result<f64, Failed> {
        let mut begun = Instant::now();
        for datagram in 0..2 * DATAGRAMS {
            if datagram == DATAGRAMS {
                begun = Instant::now(); // warm by now
            }
            socket.send(&byte)?;
            socket.recv(&mut byte)?;
        }
        Ok(per(u64::try_from(begun.elapsed().as_nanos())?, DATAGRAMS.into()))
    };
    let begun = Instant::now();
    let mut counter = DeliveryCounter::load()?;
    println!("loading takes {:.0} ms", begun.elapsed().as_secs_f64() * 1e3);
    let mut costs = Vec::new();
    let mut turns = Vec::new();
    for round in 0..ROUNDS {
        let mut times = [0.0; 2];
        for counts in [round % 2 == 0, round % 2 != 0] {
            let begun = Instant::now();
            turn(&mut counter, counts)?;
            turns.push(begun.elapsed().as_secs_f64() * 1e3);
            times[usize::from(counts)] = batch()?;
        }
        costs.push(times[1] - times[0]);
    }
    let (low, median, high) = median_with_interval(costs);
    println!("a poll takes {median:.0} ns longer, 95 % interval {low:.0} to {high:.0} ns");
    println!("to pause or to resume takes {:.1} ms", median_with_interval(turns).1);
    Ok(())
}

/// Makes the counter count, or not.
fn turn(counter: &mut DeliveryCounter, counts: bool) -> Result<(), Failed> {
    if counts {
        counter.resume()?;
    } else {
        counter.pause();
    }
    Ok(())
}

/// Each program's time per event, and all their time as a share of one CPU.
fn run_times(server: &AskedServer) -> Result<(), Failed> {
    let mut counter = DeliveryCounter::load()?;
    let _statistics = Statistics::enable()?;
    let before = counter.run_times()?;
    let earlier = counter.snapshot()?;
    let span = 10 * STRETCH;
    let asked = server.ask(span)?;
    let delivered = between(&earlier, &counter.snapshot()?);
    let mut together = 0.0;
    for (before, after) in before.iter().zip(counter.run_times()?) {
        let RunTime { program, runs, time, .. } = after;
        let (runs, time) = (runs - before.runs, time.0 - before.time.0);
        let share = per(time, delivered.interval.0);
        together += share;
        println!(
            "  {program:18} {runs:>8} runs, {:>4.0} ns each, {:.3} % of a CPU",
            per(time, runs.max(1)),
            100.0 * share
        );
    }
    println!("  together {:.3} % of a CPU while {asked} requests were answered", 100.0 * together);
    Ok(())
}

/// The rates of one server under one load, with the counter and without, in pairs. The counter is turned on and off
/// by turns, so each change of it is within one pair, and a pair's order alternates.
fn throughput(
    what: &str,
    server: &AskedServer,
    rounds: usize,
    stretch: Duration,
    mut turn: impl FnMut(bool) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let (answered, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let rate = || {
        std::thread::sleep(SETTLE);
        let (begun, before) = (Instant::now(), answered.load(Ordering::Relaxed));
        std::thread::sleep(stretch);
        let after = answered.load(Ordering::Relaxed);
        per(after - before, u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    };
    let mut counting = true;
    turn(counting)?;
    let mut rounds_of_pairs = || {
        let mut costs = Vec::new();
        for round in 0..rounds {
            let mut rates = [0.0; 2];
            for counts in [round % 2 == 0, round % 2 != 0] {
                if counts != counting {
                    turn(counts)?;
                    counting = counts;
                }
                rates[usize::from(counts)] = rate();
            }
            costs.push(100.0 * (1.0 - rates[1] / rates[0]));
        }
        Ok::<_, Failed>(costs)
    };
    let costs = std::thread::scope(|scope| {
        let asking = scope.spawn(|| server.ask_while(|| !done.load(Ordering::Relaxed), &answered));
        let costs = rounds_of_pairs();
        done.store(true, Ordering::Relaxed);
        asking.join().map_err(|_| "the client panicked")??;
        costs
    })?;
    if counting {
        turn(false)?;
    }
    let (low, median, high) = median_with_interval(costs);
    println!("  {what}: throughput lost: median {median:.2} %, 95 % interval {low:.2} % to {high:.2} %");
    Ok(())
}

/// The median, and the values at ranks n/2 ± 0.98·√n, between which the true median is 95 times of 100.
fn median_with_interval(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    let reach = (values.len() * 9604).isqrt() / 100;
    let last = values.len() - 1;
    (values[half.saturating_sub(reach)], values[half], values[(half + reach).min(last)])
}

/// A ratio of counts far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds of seconds")]
fn per(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
