//! Measures the simulator's speed: packets and events per second on one core, by scenario and by number of
//! connections.
//!
//! `cargo run --release -p netpolicy-sim --example speed [PART-OF-A-NAME]`
#![expect(clippy::print_stdout, reason = "its output is the measurement")]
#![expect(clippy::disallowed_methods, reason = "it measures how long a run takes")]

use std::time::Instant;

use sim::outcome::Length;
use sim::{Scenario, run};

/// Runs per point. The fastest run counts, because other work shares the machine.
const REPEATS: u64 = 3;
const LENGTH: Length = Length { warmup: 50_000_000, window: 450_000_000 };

fn of(keys: &[(&str, &str)]) -> Scenario {
    let mut scenario = Scenario::default();
    for (key, value) in keys {
        scenario.set(key, value).unwrap_or_else(|refused| panic!("{key}={value}: {refused}"));
    }
    scenario
}

fn measure(name: &str, scenario: &Scenario) {
    measure_over(name, scenario, LENGTH);
}

#[expect(clippy::cast_precision_loss, reason = "rates for people")]
fn measure_over(name: &str, scenario: &Scenario, length: Length) {
    if std::env::args().nth(1).is_some_and(|wanted| !name.contains(&wanted)) {
        return;
    }
    let mut fastest = f64::MAX;
    let mut counted = (0, 0);
    for seed in 0..REPEATS {
        let began = Instant::now();
        let outcome =
            run(scenario, seed + 1, length).unwrap_or_else(|impossible| panic!("{name}: {impossible}"));
        fastest = fastest.min(began.elapsed().as_secs_f64());
        counted = (outcome.packets, outcome.events);
    }
    // Include the warm-up, which is simulated at the same rate.
    let share = (length.warmup + length.window) as f64 / length.window as f64;
    let rate = |count: u64| count as f64 * share / fastest / 1e6;
    let (packets, events) = (rate(counted.0), rate(counted.1));
    println!("{name:46} {packets:6.2} M packets/s {events:6.2} M events/s {:5.0} ns/packet", 1e3 / packets);
}

fn main() {
    for mode in ["interrupt", "defer20", "fullbusy", "suspend20"] {
        for load in ["200K", "600K", "max"] {
            let scenario = of(&[("delivery.mode", mode), ("clients.load", load)]);
            measure(&format!("8 CPUs, {mode} at {load}"), &scenario);
        }
    }
    let wide = [
        ("hardware.cpus", "56"),
        ("hardware.llc-cpus", "56"),
        ("hardware.node-cpus", "56"),
        ("layout.thread-cpus", "0-55"),
        ("layout.by-napi", "false"),
        ("application.threads", "17"),
        ("clients.connections", "1000"),
        ("clients.load", "max"),
        ("costs.client-rtt", "175"),
    ];
    for processing in ["softirq", "kthread"] {
        let mut scenario = of(&wide);
        scenario.set("delivery.processing", processing).unwrap_or_else(|refused| panic!("{refused}"));
        measure(&format!("56 CPUs, {processing} at max"), &scenario);
    }
    // The scenario of bench/sim/single_queue_simpy.py, which uses SimPy.
    let single = of(&[
        ("hardware.cpus", "1"),
        ("hardware.llc-cpus", "1"),
        ("hardware.node-cpus", "1"),
        ("hardware.queues", "1"),
        ("hardware.adaptive", "false"),
        ("hardware.rx-usecs", "0"),
        ("hardware.rx-frames", "1"),
        ("hardware.tx-irq", "false"),
        ("application.threads", "1"),
        ("clients.connections", "64"),
        ("clients.arrivals", "exponential"),
        ("clients.load", "50K"),
        ("layout.irq-cpus", "0"),
        ("layout.thread-cpus", "0"),
    ]);
    measure("1 CPU, 1 queue, interrupt at 50K", &single);
    // Measure the cost by number of packets: the time per packet must not depend on it.
    for millis in [100, 300, 1000, 3000] {
        let length = Length { warmup: 50_000_000, window: millis * 1_000_000 };
        let scenario = of(&[("delivery.mode", "suspend20"), ("clients.load", "600K")]);
        measure_over(&format!("8 CPUs, suspend20 at 600K, {millis} ms"), &scenario, length);
    }
    // Measure the cost by number of connections. The run is long enough that the first requests of the
    // connections hardly matter.
    let length = Length { warmup: 50_000_000, window: 2_950_000_000 };
    for connections in ["1000", "10000", "100000", "1000000"] {
        let scenario = of(&[
            ("delivery.mode", "suspend20"),
            ("clients.load", "600K"),
            ("clients.connections", connections),
            ("hardware.ring", "65536"),
        ]);
        measure_over(&format!("8 CPUs, suspend20 at 600K, {connections} connections"), &scenario, length);
    }
}
