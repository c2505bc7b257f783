//! Measures what counting deliveries costs: the time of a poll with and without the counter, the run time of
//! each program, and the throughput of a server with and without them, interleaved.
//!
//! The throughput includes the whole cost, but is the noisiest of these figures: both ends are on this
//! machine, so the client's polls are counted and add to the cost, too. Stretches with and without the
//! counter form pairs, in alternating order; no pair is discarded. The interval is Wilcoxon's, around the
//! median of the means of all pairs of values (Hodges and Lehmann): a stretch that a neighbour disturbed
//! moves it little, and it needs fewer pairs than the sign test.
//!
//! The throughput lost to the sampler is printed twice: over its own periods, of which a minute has thirty
//! pairs, and over single samples that follow each other closely, each including starting and stopping the
//! counter, scaled to one sample per period.
//!
//! The programs' own run time, which the kernel counts, bounds the cost without that noise. It is printed as
//! a share of a CPU while the programs count all the time, and multiplied by the share of time in which the
//! sampler counts.
//!
//! `cargo bench -p netpolicy-linux --bench delivery_cost [-- ROUNDS] [poll] [preload] [interrupt]
//! [suspend200] [always] [sampled] [samples]`, as root. The names select parts; without names, all parts run.
#![expect(clippy::print_stdout, reason = "a benchmark prints its measurements")]

mod shift;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bpf::delivery::{DeliveryCounter, DeliverySampler, between};
use bpf::{RunTime, Statistics};
use libtest_mimic::Failed;
use linux::process::preload::{self, EpollCounts, Library};
use testkit::asked_server::AskedServer;
use testkit::scratch::Scratch;

/// The length of a stretch, which is one measurement: long compared with the scheduler's time slices, short
/// compared with drifts of the machine.
const STRETCH: Duration = Duration::from_millis(200);
/// The length of a stretch while the counter samples, which is one of its periods.
const SAMPLED_STRETCH: Duration = Duration::from_secs(1);
/// How long the counter has been counting, or paused, before a stretch begins.
const SETTLE: Duration = Duration::from_millis(20);
/// The parts that can be selected by name, apart from the ways of counting.
const KINDS: &[&str] = &["poll", "preload", "interrupt", "suspend200"];
/// The ways of counting deliveries.
const WAYS: &[&str] = &["always", "sampled", "samples"];
/// The number of single samples per pair of stretches.
const SAMPLES_A_ROUND: usize = 8;
/// The number of pairs of stretches.
const ROUNDS: usize = 100;

fn main() -> Result<(), Failed> {
    let rounds = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(ROUNDS);
    let named: Vec<String> = std::env::args().skip(1).collect();
    // A part is selected by its name, or if no part of its kind is named.
    let wanted = |part: &str, kind: &[&str]| {
        named.iter().any(|name| name == part) || !named.iter().any(|name| kind.contains(&name.as_str()))
    };
    let kernel = rustix::system::uname();
    println!("Linux {}, {rounds} rounds of {STRETCH:?}", kernel.release().to_string_lossy());
    if wanted("poll", KINDS) {
        poll()?;
    }
    if wanted("preload", KINDS) {
        preloaded(rounds)?;
    }
    for (mode, suspends) in [("interrupt", false), ("suspend200", true)] {
        if !wanted(mode, KINDS) {
            continue;
        }
        let server = AskedServer::start()?;
        if suspends {
            server.suspend()?;
        }
        println!("\n{mode}");
        let all_the_time = run_times(&server)?;
        if wanted("always", WAYS) {
            let mut counter = DeliveryCounter::load()?;
            throughput("counting all the time", &server, rounds, STRETCH, |counts| {
                turn(&mut counter, counts)
            })?;
        }
        if wanted("sampled", WAYS) {
            sampled(&server, rounds, all_the_time)?;
        }
        if wanted("samples", WAYS) {
            samples(&server, SAMPLES_A_ROUND * rounds)?;
        }
    }
    Ok(())
}

/// Measures the cost of sampling with the periods of `doctor` and `bench`; `all_the_time` is the programs'
/// share of a CPU when they count without a pause.
fn sampled(server: &AskedServer, rounds: usize, all_the_time: f64) -> Result<(), Failed> {
    let mut sampler = DeliverySampler::load()?;
    let (mut counted, mut begun, mut sampling) = (0, Instant::now(), Duration::ZERO);
    throughput("sampling, as doctor and bench do", server, rounds, SAMPLED_STRETCH, |samples| {
        if samples {
            sampler.begin();
            begun = Instant::now();
        } else {
            counted += sampler.end()?.interval.0;
            sampling += begun.elapsed();
        }
        Ok(())
    })?;
    let duty = per(counted, u64::try_from(sampling.as_nanos())?);
    println!(
        "  it counted during {:.1} % of the time, so the programs took {:.3} % of a CPU",
        100.0 * duty,
        100.0 * duty * all_the_time
    );
    Ok(())
}

/// Measures what counting the events of each `epoll_wait` costs a server: of two servers, only one has the
/// library that counts, and the same client sends requests to the two servers in turn. Every few rounds both
/// are restarted, so that the result does not depend on one particular process.
fn preloaded(rounds: usize) -> Result<(), Failed> {
    /// The number of rounds with the same two servers.
    const ROUNDS_OF_SERVERS: usize = 10;
    let scratch = Scratch::new("delivery-cost")?;
    let library = preload::install(Library::Count, scratch.directory())?;
    let mut costs = Vec::new();
    let mut found = None;
    while costs.len() < rounds {
        let counts = EpollCounts::new()?;
        let servers = [AskedServer::start()?, AskedServer::start_with(&counts.environment(&library, None))?];
        let before = counts.read()?;
        for round in 0..ROUNDS_OF_SERVERS {
            let mut rates = [0.0; 2];
            for which in [round % 2, (round + 1) % 2] {
                let begun = Instant::now();
                let answered = servers[which].ask(STRETCH)?;
                rates[which] = per(answered, u64::try_from(begun.elapsed().as_nanos())?);
            }
            costs.push(100.0 * (1.0 - rates[1] / rates[0]));
        }
        found = counts.read()?.batch_since(&before);
    }
    let found = found.ok_or("memcached was not counted")?;
    println!("\nepoll_wait, {:.1} events each", found.avg);
    print_loss("counting events by a preloaded library", &costs);
    Ok(())
}

/// Measures the cost of one sample, from the start of counting to its end, compared with an equally long time
/// without counting. The sampler is idle for the rest of a period, so this is its whole cost, and samples
/// close together give a more precise result in a minute than the sampler's own periods in an hour.
fn samples(server: &AskedServer, pairs: usize) -> Result<(), Failed> {
    /// The length of a sample and the period of the sampler.
    const COUNTED: Duration = Duration::from_millis(50);
    const PERIOD: Duration = Duration::from_secs(1);
    let (answered, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut counter = DeliveryCounter::load()?;
    counter.pause();
    let mut stretch = |counts: bool| -> Result<(u64, Duration), Failed> {
        std::thread::sleep(SETTLE);
        let (begun, before) = (Instant::now(), answered.load(Ordering::Relaxed));
        if counts {
            counter.resume()?;
        }
        std::thread::sleep(COUNTED);
        if counts {
            counter.pause();
        }
        Ok((answered.load(Ordering::Relaxed) - before, begun.elapsed()))
    };
    let mut all_pairs = || {
        let mut costs = Vec::new();
        for pair in 0..pairs {
            let mut found = [(0, Duration::ZERO); 2];
            for counts in [pair % 2 == 0, pair % 2 != 0] {
                found[usize::from(counts)] = stretch(counts)?;
            }
            let [plain, counted] =
                found.map(|(answers, span)| per(answers, u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)));
            let share = found[1].1.as_secs_f64() / PERIOD.as_secs_f64();
            costs.push(100.0 * share * (1.0 - counted / plain));
        }
        Ok::<_, Failed>(costs)
    };
    let costs = std::thread::scope(|scope| {
        let asking = scope.spawn(|| server.ask_while(|| !done.load(Ordering::Relaxed), &answered));
        let costs = all_pairs();
        done.store(true, Ordering::Relaxed);
        asking.join().map_err(|_| "the client panicked")??;
        costs
    })?;
    print_loss("one sample per second, including starting and stopping the counter", &costs);
    Ok(())
}

/// Measures how much longer a poll takes: a datagram over loopback causes one poll of the backlog. Unlike the
/// kernel's own statistics, the result includes the cost of the tracepoint.
fn poll() -> Result<(), Failed> {
    const DATAGRAMS: u32 = 5000;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(socket.local_addr()?)?;
    let mut byte = [0];
    let mut batch = || -> Result<f64, Failed> {
        let mut begun = Instant::now();
        for datagram in 0..2 * DATAGRAMS {
            if datagram == DATAGRAMS {
                begun = Instant::now(); // Start only now that the caches are warm.
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
    println!("pausing or resuming takes {:.1} ms", median_with_interval(turns).1);
    Ok(())
}

/// Starts or stops the counter.
fn turn(counter: &mut DeliveryCounter, counts: bool) -> Result<(), Failed> {
    if counts {
        counter.resume()?;
    } else {
        counter.pause();
    }
    Ok(())
}

/// Prints each program's time per event, and returns their total time as a share of one CPU.
fn run_times(server: &AskedServer) -> Result<f64, Failed> {
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
    Ok(together)
}

/// Measures the throughput of one server under one load, with the counter and without, in pairs. The counter
/// is turned on and off alternately, so each change is within one pair, and the order within a pair
/// alternates.
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
    print_loss(what, &costs);
    Ok(())
}

/// Prints the throughput lost, from pairs of stretches with and without the counter.
fn print_loss(what: &str, costs: &[f64]) {
    let pairs = costs.len();
    let (low, estimate, high) = shift::shift_with_interval(costs);
    let median = median_with_interval(costs.to_vec()).1;
    println!(
        "  {what}: throughput lost: {estimate:.2} %, 95 % interval {low:.2} % to {high:.2} %, median {median:.2} %, \
         over {pairs} pairs"
    );
}

/// Returns the median, and the values at ranks n/2 ± 0.98·√n, which enclose the true median in 95 of 100
/// cases.
fn median_with_interval(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    let reach = (values.len() * 9604).isqrt() / 100;
    let last = values.len() - 1;
    (values[half.saturating_sub(reach)], values[half], values[(half + reach).min(last)])
}

/// Divides two counts far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds of a few seconds, below 2^53")]
fn per(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
