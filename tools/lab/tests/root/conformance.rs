//! Compares the model's sequence of events with the kernel's, for one queue, one connection and requests at
//! fixed times. Between two returns of `epoll_wait`, it compares who polls how much, when the timer expires,
//! and when IRQs are suspended. Interrupts, which a veth does not have, and the arbitrary choice between two
//! CPUs are not compared. The kernel's events were recorded on a quiet machine, in `recorded/`; `RECORD=1` in
//! the environment records them again. On the current machine, which may be busy, only the characteristic
//! events of a mode are checked.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use linux::lab::{Memcached, MemcachedOptions};
use rustix::process::setpriority_process;
use sim::outcome::Length;
use sim::trace::Trace;
use sim::watch::{Fact, Poller};
use sim::{Scenario, run_watched};
use testkit::operator::Operator;
use testkit::{Need, test};

use crate::recorder::{Line, Recorder, Seen, ours};

/// The interval between requests: ten times the deferral.
const GAP: Duration = Duration::from_millis(2);
/// The number of compared requests, and the number of requests before them, during which TCP acknowledges
/// immediately.
const REQUESTS: usize = 200;
const WARM_UP: usize = 60;
/// A timer with a span longer than this, in nanoseconds, suspends IRQs: deferral is 200 µs, suspension 20 ms.
const SUSPENSION_MIN: u64 = 5_000_000;
/// The niceness of both ends, so that the comparison does not depend on other load on this machine.
const FIRST: i32 = -19;
/// Maximum number of attempts to record events at a quiet moment.
const ATTEMPTS: usize = 8;

struct Mode {
    name: &'static str,
    /// The maximum number of insertions, deletions and changes that turn the kernel's events into the
    /// model's, as a share of the kernel's events.
    bound: f64,
    /// The recorded events of a kernel, one cycle per line.
    recorded: &'static str,
    /// The kinds of events that every kernel shows in this mode.
    made_of: &'static [Kind],
}

const MODES: [Mode; 3] = [
    Mode {
        name: "interrupt",
        bound: 0.03,
        recorded: include_str!("recorded/cycles-interrupt.txt"),
        made_of: &[Kind::Softirq],
    },
    Mode {
        name: "defer200",
        bound: 0.20,
        recorded: include_str!("recorded/cycles-defer200.txt"),
        made_of: &[Kind::Softirq, Kind::Timer],
    },
    Mode {
        name: "suspend200",
        bound: 0.20,
        recorded: include_str!("recorded/cycles-suspend200.txt"),
        made_of: &[Kind::Softirq, Kind::Timer, Kind::Application, Kind::Suspend],
    },
];

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Memcached, Need::Suspension, Need::Tracefs];
    let mut tests = Vec::new();
    for mode in &MODES {
        let name = mode.name;
        tests.push(test(format!("conformance/the_model_goes_as_a_kernel_went_in_{name}"), &[], || {
            compare(mode)
        }));
        tests.push(test(
            format!("conformance/this_kernel_does_what_the_model_knows_in_{name}"),
            NEEDS,
            || live(mode),
        ));
    }
    tests
}

/// An event of the model or the kernel, without its location and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Timer,
    Poll(Poll, u32),
    Suspend,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Poll {
    Softirq,
    Kthread,
    Application,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Timer,
    Suspend,
    Softirq,
    Application,
}

impl Event {
    fn is(self, kind: Kind) -> bool {
        matches!(
            (self, kind),
            (Self::Timer, Kind::Timer)
                | (Self::Suspend, Kind::Suspend)
                | (Self::Poll(Poll::Softirq, _), Kind::Softirq)
                | (Self::Poll(Poll::Application, _), Kind::Application)
        )
    }

    fn read(word: &str) -> Option<Self> {
        let (by, packets) = match word.split_once(':') {
            None if word == "timer" => return Some(Self::Timer),
            None if word == "suspend" => return Some(Self::Suspend),
            None => return None,
            Some((by, packets)) => (by, packets.parse().ok()?),
        };
        let by = match by {
            "softirq" => Poll::Softirq,
            "kthread" => Poll::Kthread,
            "application" => Poll::Application,
            _ => return None,
        };
        Some(Self::Poll(by, packets))
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Timer => f.write_str("timer"),
            Self::Suspend => f.write_str("suspend"),
            Self::Poll(Poll::Softirq, packets) => write!(f, "softirq:{packets}"),
            Self::Poll(Poll::Kthread, packets) => write!(f, "kthread:{packets}"),
            Self::Poll(Poll::Application, packets) => write!(f, "application:{packets}"),
        }
    }
}

/// The events between two returns of `epoll_wait`.
type Cycle = Vec<Event>;

/// Compares the model with a recorded kernel.
fn compare(mode: &Mode) -> Result<(), Failed> {
    let lines = mode.recorded.lines().filter(|line| !line.starts_with('#'));
    let kernel: Option<Vec<Cycle>> =
        lines.map(|line| line.split_whitespace().map(Event::read).collect()).collect();
    let kernel = kernel.ok_or("the recorded cycles have an unknown word")?;
    let model = modelled(mode.name)?;
    assert_eq!(kernel.len(), model.len());
    let (share, said) = differ(&kernel, &model);
    if share <= mode.bound { Ok(()) } else { Err(said.into()) }
}

/// Checks that the running kernel shows the characteristic events of a mode.
fn live(mode: &Mode) -> Result<(), Failed> {
    if std::env::var_os("RECORD").is_some() {
        return record(mode);
    }
    // On a busy machine, the timer may always expire before the application polls: try several times.
    let mut said = String::new();
    for _ in 0..ATTEMPTS {
        let kernel = recorded(mode.name)?;
        let is_there = |kind: &Kind| kernel.iter().flatten().any(|event| event.is(*kind));
        match mode.made_of.iter().find(|kind| !is_there(kind)) {
            None => return Ok(()),
            Some(kind) => {
                let _ = writeln!(
                    said,
                    "{kind:?} is missing in {}, most often {}",
                    mode.name,
                    most_often(&kernel)
                );
            }
        }
    }
    Err(said.into())
}

/// Records the running kernel's events if they match the model, which they may not on a busy machine.
fn record(mode: &Mode) -> Result<(), Failed> {
    let model = modelled(mode.name)?;
    let mut said = String::new();
    for _ in 0..ATTEMPTS {
        let kernel = recorded(mode.name)?;
        let (share, words) = differ(&kernel, &model);
        if share > mode.bound {
            said.push_str(&words);
            continue;
        }
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let mut text = format!(
            "# A veth pair, one connection, a request every {GAP:?}; Linux {release}",
            release = release.trim()
        );
        for cycle in &kernel {
            let words: Vec<String> = cycle.iter().map(Event::to_string).collect();
            let _ = write!(text, "\n{}", words.join(" "));
        }
        text.push('\n');
        let file = format!("tests/root/recorded/cycles-{}.txt", mode.name);
        return Ok(std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(file), text)?);
    }
    Err(format!("at most {:.0} % may differ:\n{said}", 100.0 * mode.bound).into())
}

/// Returns the share of the kernel's events in which the model differs, and a description of the differences.
fn differ(kernel: &[Cycle], model: &[Cycle]) -> (f64, String) {
    let events: usize = kernel.iter().map(Vec::len).sum();
    let differ: usize = kernel.iter().zip(model).map(|(kernel, model)| distance(kernel, model)).sum();
    let same = kernel.iter().zip(model).filter(|(kernel, model)| kernel == model).count();
    let share = count(differ) / count(events.max(1));
    let said = format!(
        "of the kernel's {events} events for {} requests {differ} differ from the model's ({:.1} %); {same} requests go as the \
         model says\n  kernel, most often: {}\n  model, most often:  {}\n",
        kernel.len(),
        100.0 * share,
        most_often(kernel),
        most_often(model),
    );
    (share, said)
}

fn modelled(mode: &str) -> Result<Vec<Cycle>, Failed> {
    let gap = u64::try_from(GAP.as_nanos())?;
    let load = (1_000_000_000 / gap).to_string();
    let file = experiments::scenario_file::shipped("lab").ok_or("the test has no lab")?;
    let mut scenario: Scenario = experiments::scenario_file::parse(file.name, file.scenario)?.scenario;
    let keys = [
        ("clients.connections", "1"),
        ("clients.arrivals", "fixed"),
        ("clients.load", load.as_str()),
        // The lab's client answers immediately, so that the ACK travels with the next request.
        ("clients.acks", "false"),
        ("delivery.mode", mode),
    ];
    for (key, value) in keys {
        scenario.set(key, value).map_err(|refused| refused.to_string())?;
    }
    let length = Length { warmup: 0, window: gap * (REQUESTS + WARM_UP + 2) as u64 };
    let (_, trace) = run_watched(&scenario, 1, length, Trace::new(usize::MAX))?;
    let mut cycles = Cycles::default();
    for line in trace.lines() {
        match line.fact {
            Fact::Timer { .. } => cycles.add(Event::Timer),
            Fact::Suspended { .. } => cycles.add(Event::Suspend),
            Fact::EpollReturned { .. } => cycles.next(),
            Fact::Polled { work, by, .. } => {
                let by = match by {
                    Poller::Softirq => Poll::Softirq,
                    Poller::Kthread => Poll::Kthread,
                    Poller::Application => Poll::Application,
                };
                cycles.add(Event::Poll(by, work));
            }
            _ => {}
        }
    }
    cycles.last(REQUESTS)
}

/// Runs the load on the running kernel, and returns the recorded cycles.
fn recorded(mode: &str) -> Result<Vec<Cycle>, Failed> {
    let operator = Operator::new("conformance", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let pid = server.process().pid.to_string();
    operator.runs(&["set", "device", "veth-server", mode], 0)?;
    operator.runs(&["set", "task", &pid, mode], 0)?;
    let tasks: Vec<u32> = std::fs::read_dir(format!("/proc/{pid}/task"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for task in &tasks {
        let task = rustix::process::Pid::from_raw(i32::try_from(*task)?);
        setpriority_process(task, FIRST)?;
    }
    let lines = std::thread::scope(|scope| {
        let ask = || ask(&operator, &server);
        scope.spawn(ask).join().map_err(|_| "the client panicked")?
    })?;
    let (napi, timer) = ours(&lines, u32::try_from(REQUESTS + WARM_UP)?).ok_or("nothing was polled")?;
    let mut cycles = Cycles::default();
    for Line { task, seen, .. } in &lines {
        match seen {
            Seen::Expired { timer: expired } if timer.as_ref() == Some(expired) => cycles.add(Event::Timer),
            Seen::Armed { timer: armed, span } if timer.as_ref() == Some(armed) && *span > SUSPENSION_MIN => {
                cycles.add(Event::Suspend);
            }
            Seen::Polled { napi: polled, work, by_task } if *polled == napi => {
                let by = if *by_task { Poll::Application } else { Poll::Softirq };
                cycles.add(Event::Poll(by, *work));
            }
            Seen::EpollReturned { events: 1.. } if tasks.contains(task) => cycles.next(),
            Seen::Armed { .. } | Seen::Expired { .. } | Seen::Polled { .. } | Seen::EpollReturned { .. } => {}
        }
    }
    cycles.last(REQUESTS)
}

/// Sends the requests one at a time, each when it is due.
fn ask(operator: &Operator, server: &Memcached) -> Result<Vec<Line>, Failed> {
    setpriority_process(Some(rustix::thread::gettid()), FIRST)?; // of this thread only
    let address = server.address();
    let mut stream = operator.lab.client().run(|| TcpStream::connect(address))??;
    stream.set_nodelay(true)?;
    let recorder = Recorder::start("conformance")?;
    let begin = Instant::now();
    let mut due = Duration::ZERO;
    for _ in 0..REQUESTS + WARM_UP {
        due += GAP;
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
        stream.write_all(b"get nothing\r\n")?;
        stream.read_exact(&mut [0; b"END\r\n".len()])?;
    }
    recorder.end("veth-server")
}

#[derive(Default)]
struct Cycles(Vec<Cycle>);

impl Cycles {
    /// Starts a new cycle. The kernel reports the suspension of IRQs before the system call returns, the
    /// model reports it afterwards, so this function moves it to the new cycle.
    fn next(&mut self) {
        let suspended = self.0.last_mut().and_then(|cycle| cycle.pop_if(|event| *event == Event::Suspend));
        self.0.push(suspended.into_iter().collect());
    }

    /// Adds an event to the current cycle. Events before the first return of `epoll_wait` belong to no cycle.
    fn add(&mut self, event: Event) {
        if let Some(cycle) = self.0.last_mut() {
            cycle.push(event);
        }
    }

    /// Returns the last `wanted` complete cycles.
    fn last(mut self, wanted: usize) -> Result<Vec<Cycle>, Failed> {
        self.0.pop();
        let enough = self.0.len().checked_sub(wanted - 1);
        let first = enough.ok_or_else(|| format!("epoll_wait returned {} times only", self.0.len()))?;
        Ok(self.0.split_off(first))
    }
}

/// Returns the minimum number of insertions, deletions and changes that turn one sequence into the other
/// (Levenshtein distance).
fn distance(one: &[Event], other: &[Event]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

fn count(n: usize) -> f64 {
    u32::try_from(n).map_or(f64::MAX, f64::from)
}

fn most_often(cycles: &[Cycle]) -> String {
    let mut times: BTreeMap<&Cycle, usize> = BTreeMap::new();
    for cycle in cycles {
        *times.entry(cycle).or_default() += 1;
    }
    let Some((cycle, times)) = times.into_iter().max_by_key(|(_, times)| *times) else {
        return String::new();
    };
    let words: Vec<String> = cycle
        .chunk_by(|a, b| a == b || *a == Event::Timer && matches!(b, Event::Poll(Poll::Softirq, 0)))
        .map(|run| format!("{}{run:?}", run.len()))
        .collect();
    format!("{times} times {}", words.join(" "))
}
