//! Represents a simulated run as evidence, in the same form as a measured one.

use std::collections::BTreeMap;

use load::record::Recorder;
use model::{
    CounterRates, CpuUse, EpollBatch, Evidence, KeySize, MemcachedWorkload, Nanoseconds, OfferedLoad, Origin,
    Pace, Requests, SimulatedFrom, ValueSize, Waiting, Workload,
};
use sim::watch::Class;
use sim::{Costs, Outcome, Scenario};

/// Returns the evidence of one run.
#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
pub(crate) fn evidence(label: &str, scenario: &Scenario, seed: u64, outcome: &Outcome) -> Evidence {
    let mut latency = Recorder::new();
    for (span, count) in outcome.latency.buckets() {
        for _ in 0..count {
            latency.record(Nanoseconds(span));
        }
    }
    let none = Recorder::new().distribution();
    let seconds = Nanoseconds(outcome.window).as_secs_f64();
    let rate = |count: u64| count as f64 / seconds;
    let share = |class: Class| outcome.shares[class as usize];
    let grown = outcome.backlog[1].saturating_sub(outcome.backlog[0]);
    let parameters = Costs::PARAMETERS
        .iter()
        .filter_map(|p| scenario.costs.get(p.name).map(|v| (p.name.to_owned(), format!("{v} {}", p.unit))));
    let origin = SimulatedFrom { scenario: scenario.hash(), seed, parameters: parameters.collect() };
    let workload = Workload::Memcached(workload(scenario, seed, outcome.window));
    Evidence {
        requests: Requests {
            due: outcome.sent + grown,
            sent: outcome.sent,
            answered: outcome.answered,
            hits: outcome.answered,
            unsent: grown,
            unanswered: outcome.sent.saturating_sub(outcome.answered),
            ..Requests::default()
        },
        throughput: outcome.throughput(),
        latency: latency.distribution(),
        lateness: none.clone(),
        generator_lateness: none,
        cpu: Some(CpuUse {
            cpus: outcome.cpus,
            user: share(Class::User),
            system: share(Class::System),
            softirq: share(Class::Softirq),
            irq: share(Class::Irq),
            idle: share(Class::Idle),
            steal: 0.0,
        }),
        counters: Some(CounterRates {
            irqs: rate(outcome.irqs),
            context_switches: rate(outcome.switches),
            softirqs: BTreeMap::from([("NET_RX".to_owned(), rate(outcome.irqs + outcome.timers))]),
            busy_poll_rx_packets: None,
            napi_polls: Some(rate(outcome.polls)),
        }),
        interrupts_per_request: (outcome.answered > 0).then(|| outcome.irqs as f64 / outcome.answered as f64),
        epoll_batch: Some(EpollBatch {
            waits: outcome.epoll_waits,
            empty: 0,
            avg: outcome.epoll_events as f64 / outcome.epoll_waits.max(1) as f64,
            max: outcome.epoll_batch_max,
            sizes: None,
        }),
        ..Evidence::new(label, Origin::Simulated(origin), workload, scenario.clients.load)
    }
}

/// Returns the options of a measured run that would offer the same load.
fn workload(scenario: &Scenario, seed: u64, window: u64) -> MemcachedWorkload {
    let connections = scenario.clients.connections;
    let threads = connections.div_ceil(Pace::CONNECTIONS_MAX).max(1);
    let arrivals = match scenario.clients.load {
        OfferedLoad::Max => model::Arrivals::Fixed,
        OfferedLoad::PerSecond(_) => scenario.clients.arrivals,
    };
    MemcachedWorkload {
        threads,
        connections_per_thread: connections.div_ceil(threads),
        depth: 1,
        arrivals,
        set_share: 0.0,
        keys: 1,
        key_size: KeySize::Fixed(scenario.application.request_bytes.min(MemcachedWorkload::KEY_BYTES_MAX)),
        value_size: ValueSize::Fixed(
            scenario.application.response_bytes.min(MemcachedWorkload::VALUE_BYTES_MAX),
        ),
        preload: false,
        warmup: Nanoseconds::ZERO,
        window: Nanoseconds(window),
        drain: Nanoseconds::ZERO,
        seed,
        waiting: Waiting::Sleep,
    }
}
