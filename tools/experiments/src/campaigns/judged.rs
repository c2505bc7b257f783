//! `bench judge`: compares the verdicts of `compare` with the truth on the wire, for the same pairs.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use latency::judge::{
    Candidate, Comparison, ComparisonOptions, ComparisonProgress, JudgeBenchReport, JudgedScenario,
    PairRecord, RecordedComparison, Replayed, Round,
};
use latency::live::ServiceSelection;
use latency::measure::live::agreement::percentiles_of;
use latency::measure::switchback::{Figures, Metric, Switchback};
use linux::bpf::wire::{WireCounts, WireMeter};
use linux::lab::{Lab, LabOptions, Memcached, MemcachedOptions, SERVER_ADDRESS};
use linux::{Netns, Signals};
use session::{Exit, Fault, Session, Silent};

use crate::Context;
use crate::bench::judge_args::{Judge, Scenario};

/// memcached's own port.
const PORT: u16 = 11_211;

/// Number of client connections.
const CONNECTIONS: u32 = 16;

/// How long a client waits for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Regressions that are added to replayed pairs.
const REGRESSIONS: [f64; 4] = [0.0, 0.3, 0.5, 1.0];

/// Performs every comparison, and reports whether it agrees with the wire.
pub(super) fn run(arguments: &Judge, context: &Context<'_>) -> Result<Exit, Fault> {
    if let Some(path) = &arguments.json {
        super::running::writable(path)?;
    }
    if let Some(path) = &arguments.replay {
        return replay(path, arguments, context);
    }
    let all = match arguments.scenario.as_slice() {
        [] => Scenario::value_variants(),
        some => some,
    };
    let mut signals = Signals::catch()?;
    let (mut scenarios, mut unchanged) = (Vec::new(), Vec::new());
    for (at, &scenario) in all.iter().enumerate() {
        let name = scenario.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned());
        context.console.progress(&format!("{} of {}: {name}", at + 1, all.len()));
        let (ours, truth, ended, took) = compared(scenario, arguments, &mut signals, context)?;
        if scenario == Scenario::SameShort {
            unchanged.push((ours.clone(), took));
        }
        scenarios.push(JudgedScenario::of(name, &ours, &truth, ended.words()));
        if ended == latency::judge::Ended::Interrupted {
            break;
        }
    }
    context.console.progress("");
    let replayed = unchanged.iter().flat_map(|(ours, took)| replays(ours, *took, arguments)).collect();
    finish(&JudgeBenchReport::of(scenarios, replayed), arguments, context)
}

/// Replays guards on the pairs of a record.
fn replay(path: &Path, arguments: &Judge, context: &Context<'_>) -> Result<Exit, Fault> {
    let text = std::fs::read_to_string(path).map_err(|error| Fault::file(path, error))?;
    let wrong = |why: String| Fault::new(Exit::Usage, format!("{}: {why}", path.display()));
    let record = RecordedComparison::parse(&text).map_err(wrong)?;
    let took = Duration::from_secs_f64(record.rounds.last().map_or(0.0, |round| round.at.max(0.0)));
    let replayed: Vec<Replayed> = replays(&record.switchback(), took, arguments).collect();
    if replayed.is_empty() {
        return Err(wrong("no pair in it counts".to_owned()));
    }
    finish(&JudgeBenchReport::of(Vec::new(), replayed), arguments, context)
}

/// Replays guards on these pairs, which took this long, with each regression.
fn replays(pairs: &Switchback, took: Duration, arguments: &Judge) -> impl Iterator<Item = Replayed> {
    let pair_seconds =
        took.as_secs_f64() / f64::from(u32::try_from(pairs.rounds().max(1)).unwrap_or(u32::MAX));
    let trials = (arguments.trials, arguments.seed);
    REGRESSIONS.map(|added| Replayed::of(pairs, pair_seconds, added, trials)).into_iter().flatten()
}

/// Prints and writes the report.
fn finish(report: &JudgeBenchReport, arguments: &Judge, context: &Context<'_>) -> Result<Exit, Fault> {
    context.console.report(report)?;
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string(&session::page::to_json(report)).map_err(Fault::failed)?;
        std::fs::write(path, text).map_err(|error| Fault::file(path, error))?;
    }
    Ok(if report.agrees() { Exit::Done } else { Exit::Failed })
}

type Compared = (Switchback, Switchback, latency::judge::Ended, Duration);

/// Runs a comparison in its own lab, with the measurements on the wire for its pairs.
fn compared(
    scenario: Scenario,
    arguments: &Judge,
    signals: &mut Signals,
    context: &Context<'_>,
) -> Result<Compared, Fault> {
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let start = || lab.start_memcached(&MemcachedOptions::default()).map_err(crate::bench::server_fault);
    let mut server = Some(start()?);
    let session = Session {
        netns: Some(format!("pid:{}", lab.server_pid())),
        state_dir: lab.scratch().join("judge"),
        ..context.session.clone()
    };
    let candidate = |text: &str| text.parse::<Candidate>().map_err(|why| Fault::new(Exit::Usage, why));
    let (window, guard) = match scenario {
        // For this scenario, the windows are as long as a guard's.
        Scenario::SameShort => Replayed::windows(rate(arguments)),
        _ => (Duration::from_secs(1), Duration::from_millis(100)),
    };
    let options = ComparisonOptions {
        candidates: vec![Candidate::current(), candidate(scenario.candidate())?],
        deciding: vec![Metric::P50, Metric::P90],
        limits: Vec::new(),
        // With a margin of 0, no interval lies within the margin, so pairs to replay are measured until the
        // time is over.
        margin: if scenario == Scenario::SameShort { 0.0 } else { 0.05 },
        window,
        guard,
        most: Duration::from_secs(arguments.seconds),
        seed: arguments.seed,
        disruptive: false,
    };
    let truth = Switchback::new(vec!["current".to_owned(), "other".to_owned()], options.rule());
    let record = arguments.record.as_deref().filter(|_| scenario == Scenario::SameShort);
    // Recorded pairs follow each other as quickly as those of a guard, which does not wait for a second meter to
    // be attached.
    let wire = match record {
        Some(_) => None,
        None => Some(WireMeter::load(PORT, lab.server().id(), lab.client().id())?),
    };
    let (stop, hog, began) = (AtomicBool::new(false), AtomicBool::new(false), Instant::now());
    let share = || began.elapsed().as_secs_f64() / options.most.as_secs_f64();
    let every =
        || Duration::from_secs_f64(f64::from(CONNECTIONS) / (rate(arguments) * scenario.load(share())));
    std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| ask(lab.client(), &stop, &every));
        }
        if scenario == Scenario::Hog {
            let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            for _ in 0..cpus {
                scope.spawn(|| use_up(&stop, &hog));
            }
        }
        let restart_at = (scenario == Scenario::Restart).then(|| began + options.most / 2);
        let prepared =
            Comparison::prepare(options.clone(), None, &ServiceSelection::Port(PORT), &session, &Silent);
        let begun = prepared.and_then(|comparison| {
            let target = comparison.target();
            let record =
                record.map(|path| PairRecord::create(path, target, &options, comparison.by())).transpose()?;
            Ok((comparison, record))
        });
        let (mut comparison, record) = match begun {
            Ok(begun) => begun,
            Err(fault) => {
                stop.store(true, Ordering::Relaxed);
                return Err(fault);
            }
        };
        let mut witness = Witness {
            record,
            wire,
            truth,
            seen: Vec::new(),
            hog: &hog,
            restart_at,
            server: &mut server,
            start: &start,
        };
        let judged = comparison.run(signals, &mut witness);
        stop.store(true, Ordering::Relaxed);
        let shown = judged?;
        Ok((shown.switchback, witness.truth, shown.ended, shown.took))
    })
}

#[expect(clippy::cast_precision_loss, reason = "at most 20 000")]
const fn rate(arguments: &Judge) -> f64 {
    arguments.rate as f64
}

/// Sends requests at fixed times, even if the last answer was late.
fn ask(client: &Netns, stop: &AtomicBool, every: &(dyn Fn() -> Duration + Sync)) {
    let address = SocketAddr::new(SERVER_ADDRESS.into(), PORT);
    let connect = || -> Option<BufReader<TcpStream>> {
        let stream = client.run(|| TcpStream::connect(address)).ok()?.ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(ANSWER_MAX)).ok()?;
        Some(BufReader::new(stream))
    };
    let (mut due, mut connection, mut answer) = (Instant::now(), None, String::new());
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due = (due + every()).max(Instant::now());
        let Some(open) = connection.as_mut() else {
            connection = connect();
            if connection.is_none() {
                std::thread::sleep(AGAIN_AFTER);
            }
            continue;
        };
        answer.clear();
        let asked = open.get_mut().write_all(b"get nothing\r\n").is_ok();
        if !asked || open.read_line(&mut answer).unwrap_or(0) == 0 {
            connection = None;
        }
    }
}

/// Busy-loops on a CPU while `hog` is set.
fn use_up(stop: &AtomicBool, hog: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match hog.load(Ordering::Relaxed) {
            true => std::hint::spin_loop(),
            false => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Measures the wire in each window, and triggers the events of the scenario.
struct Witness<'a> {
    record: Option<PairRecord>,
    /// `None` while pairs are recorded.
    wire: Option<WireMeter>,
    truth: Switchback,
    seen: Vec<(usize, WireCounts, f64)>,
    hog: &'a AtomicBool,
    restart_at: Option<Instant>,
    server: &'a mut Option<Memcached>,
    start: &'a dyn Fn() -> Result<Memcached, Fault>,
}

impl ComparisonProgress for Witness<'_> {
    fn window_begins(&mut self, candidate: usize) -> Result<(), Fault> {
        self.hog.store(candidate == 1, Ordering::Relaxed);
        if self.restart_at.is_some_and(|at| Instant::now() >= at) {
            self.restart_at = None;
            drop(self.server.take());
            *self.server = Some((self.start)()?);
        }
        Ok(self.wire.as_mut().map_or(Ok(()), WireMeter::begin)?)
    }

    fn window_ended(&mut self, candidate: usize, seconds: f64) -> Result<(), Fault> {
        self.hog.store(false, Ordering::Relaxed);
        if let Some(wire) = &mut self.wire {
            self.seen.push((candidate, wire.end()?, seconds));
        }
        Ok(())
    }

    fn round(&mut self, round: &Round, _: &Switchback, elapsed: Duration) -> Result<(), Fault> {
        if let Some(record) = &mut self.record {
            record.add(round, elapsed.as_secs_f64())?;
        }
        let mut seen = std::mem::take(&mut self.seen);
        seen.sort_by_key(|(candidate, ..)| *candidate);
        let figures: Vec<Figures> = seen.iter().map(|(_, seen, seconds)| on_wire(seen, *seconds)).collect();
        match round.void {
            Some(why) => self.truth.void(why),
            None if figures.len() == self.truth.names().len() => drop(self.truth.add(&figures, None)),
            None => {}
        }
        Ok(())
    }
}

/// Returns the figures of a window on the wire.
fn on_wire(seen: &WireCounts, seconds: f64) -> Figures {
    let [p50, p90, p99] = percentiles_of(&seen.spans);
    Figures { p50, p90, p99, ..Figures::of_requests(seconds, seen.answered) }
}
