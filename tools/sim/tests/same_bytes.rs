//! Compares a digest of each of many runs: a change that is not meant to affect the model changes none of
//! them.

use std::fmt::Write;

use model::DeliveryMode;
use sim::outcome::Length;
use sim::trace::Trace;
use sim::{Outcome, Scenario, run_watched};

const LENGTH: Length = Length { warmup: 5_000_000, window: 20_000_000 };
const SEED: u64 = 11;

/// A name for a kind of machine or application, and its settings.
type Kind = (&'static str, &'static [(&'static str, &'static str)]);

const KINDS: [Kind; 14] = [
    ("hyper-threads", &[("hardware.smt", "true"), ("costs.smt-slowdown", "1.6"), ("clients.load", "max")]),
    (
        "two nodes, groups that threads leave",
        &[
            ("hardware.node-cpus", "4"),
            ("hardware.llc-cpus", "2"),
            ("costs.group-moves", "300"),
            ("costs.remote-llc", "4"),
            ("clients.load", "800K"),
        ],
    ),
    (
        "threads that move",
        &[
            ("costs.thread-moves", "1000"),
            ("costs.active-balance", "500"),
            ("costs.housekeeping", "500"),
            ("layout.by-napi", "false"),
            ("clients.load", "600K"),
        ],
    ),
    (
        "40 CPUs, 3 queues, 17 threads",
        &[
            ("hardware.cpus", "40"),
            ("hardware.llc-cpus", "10"),
            ("hardware.node-cpus", "20"),
            ("hardware.queues", "3"),
            ("application.threads", "17"),
            ("layout.thread-cpus", "0-39"),
            ("layout.by-napi", "false"),
            ("clients.load", "max"),
        ],
    ),
    ("kernel threads", &[("delivery.processing", "kthread"), ("clients.load", "max")]),
    (
        "workers of a workqueue",
        &[
            ("delivery.processing", "workqueue"),
            ("costs.workqueue-wake", "5"),
            ("costs.workqueue-requeue", "0.5"),
            ("clients.load", "max"),
        ],
    ),
    ("kernel threads that poll without end", &[("delivery.mode", "threaded-busy"), ("clients.load", "600K")]),
    (
        "a clients' host",
        &[
            ("clients.threads", "5"),
            ("clients.queues", "3"),
            ("clients.connections", "100"),
            ("costs.client-request", "3"),
            ("clients.load", "max"),
        ],
    ),
    ("a loop in user space", &[("application.waits", "user-spin"), ("clients.load", "400K")]),
    ("a loop for events", &[("application.waits", "event-spin:50"), ("clients.load", "400K")]),
    (
        "a ring that overflows",
        &[("hardware.ring", "16"), ("delivery.mode", "defer200"), ("clients.load", "max")],
    ),
    (
        "pinned threads",
        &[("layout.pinned", "true"), ("layout.even-queues", "true"), ("clients.load", "1000K")],
    ),
    ("a kernel before lists", &[("hardware.kernel", "5.3"), ("clients.load", "max")]),
    (
        "a kernel whose busy polling starts the timer",
        &[("hardware.kernel", "7.0"), ("delivery.mode", "napibusy"), ("clients.load", "400K")],
    ),
];

/// FNV-1a.
fn digest(text: &str) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    text.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

fn row(name: &str, scenario: &Scenario) -> String {
    let (outcome, trace): (Outcome, Trace) =
        run_watched(scenario, SEED, LENGTH, Trace::new(usize::MAX)).expect("can be");
    let mut stations = String::new();
    for line in trace.lines() {
        let _ = writeln!(stations, "{line}");
    }
    let (counts, stations) = (digest(&format!("{outcome:?}")), digest(&stations));
    format!("{name:45} {:7} packets, outcome {counts:016x}, trace {stations:016x}\n", outcome.packets)
}

#[test]
fn the_same_seed_gives_the_bytes_that_it_gave() {
    let mut rows = String::new();
    for mode in DeliveryMode::DOCUMENT {
        for load in ["400K", "max"] {
            let mut scenario = Scenario::default();
            scenario.deliver(mode);
            scenario.clients.load = load.parse().expect("a load");
            rows.push_str(&row(&format!("{mode} at {load}"), &scenario));
        }
    }
    for (name, keys) in KINDS {
        let mut scenario = Scenario::default();
        assert_eq!(scenario.set_all(keys.iter().copied()), Ok(()), "{name}");
        rows.push_str(&row(name, &scenario));
    }
    insta::assert_snapshot!(rows);
}
