//! Tests threads that softirqs keep from running, and NAPIs in threads.

use sim::outcome::Length;
use sim::{Outcome, Scenario, run};

const LENGTH: Length = Length { warmup: 50_000_000, window: 150_000_000 };

/// Simulates half of the machine in the document on threaded NAPI, with tcp_rr in a closed loop.
fn half(keys: &[(&str, &str)], seed: u64) -> Outcome {
    let mut scenario = Scenario::default();
    let machine = [
        ("hardware.cpus", "28"),
        ("hardware.llc-cpus", "28"),
        ("hardware.node-cpus", "28"),
        ("hardware.queues", "4"),
        ("hardware.adaptive", "false"),
        ("hardware.rx-cqe", "false"),
        ("hardware.tx-usecs", "50"),
        ("hardware.kernel", "5.10"),
        ("application.threads", "8"),
        ("clients.connections", "500"),
        ("clients.load", "max"),
        ("clients.acks", "false"),
        ("layout.irq-cpus", "0-3"),
        ("layout.thread-cpus", "0-27"),
        ("layout.by-napi", "false"),
        ("costs.client-slow-base", "0"),
        ("costs.client-slow-load", "0"),
        ("costs.client-rtt", "195"),
        ("costs.packet", "2"),
        ("costs.packet-in-thread", "1.3"),
        ("costs.request", "5.1"),
    ];
    for (key, value) in machine.iter().chain(keys) {
        scenario.set(key, value).expect(key);
    }
    run(&scenario, seed, LENGTH).expect("can be")
}

#[test]
fn a_thread_on_a_cpu_that_softirqs_take_is_stuck_until_the_balancer_takes_it() {
    // The initial placement of threads depends on the seed.
    let waits_long = |seed: &u64| {
        let latency = half(&[], *seed).latency;
        latency.per_mille(999) > 4 * latency.per_mille(500)
    };
    let seed = (1..=8).find(waits_long).expect("some seed puts a thread on the CPU of a queue");
    let stuck = half(&[], seed);
    assert_eq!(stuck.migrations, 0, "and the balancer does not move the thread");
    let taken = half(&[("costs.active-balance", "500")], seed);
    assert!(taken.latency.per_mille(999) < 2 * taken.latency.per_mille(500));
    assert!(taken.throughput() > 1.05 * stuck.throughput());
}

#[test]
fn threads_that_move_about_get_stuck_now_and_then_on_every_seed() {
    let moving = [("costs.thread-moves", "20"), ("costs.active-balance", "60")];
    for seed in 1..=3 {
        let latency = half(&moving, seed).latency;
        assert!(latency.per_mille(999) > 3 * latency.per_mille(500), "seed {seed}");
        assert!(latency.per_mille(900) * 10 < latency.per_mille(500) * 13, "seed {seed}");
    }
}

#[test]
fn moving_threads_find_no_cpu_to_get_stuck_on_where_napis_have_threads() {
    let moving =
        [("delivery.processing", "kthread"), ("costs.thread-moves", "20"), ("costs.active-balance", "60")];
    let latency = half(&moving, 1).latency;
    assert!(latency.per_mille(999) * 10 < latency.per_mille(500) * 15);
}

#[test]
fn work_that_is_queued_again_costs_throughput_that_a_kthread_keeps() {
    let of = |processing: &str, requeue: &str| {
        let keys = [
            ("delivery.processing", processing),
            ("costs.workqueue-requeue", requeue),
            ("costs.workqueue-wake", "5"),
        ];
        half(&keys, 1)
    };
    let (kthread, polls_on, requeues) = (of("kthread", "1"), of("workqueue", "0"), of("workqueue", "1"));
    let lost = |o: &Outcome| 1.0 - o.throughput() / kthread.throughput();
    assert!(
        lost(&polls_on).abs() < 0.005,
        "a worker whose polls use their budget continues polling like a kthread"
    );
    assert!((0.02..0.07).contains(&lost(&requeues)), "{}", lost(&requeues));
    assert!(requeues.switches > polls_on.switches + 1000, "another worker is switched in");
    assert!(requeues.latency.per_mille(500) > kthread.latency.per_mille(500));
}

#[test]
fn a_poll_takes_fewer_requests_if_each_is_several_frames() {
    let polls = |frame: &str| {
        let keys = [
            ("delivery.processing", "kthread"),
            ("application.request-bytes", "5120"),
            ("hardware.frame-bytes", frame),
        ];
        let outcome = half(&keys, 1);
        outcome.polls as f64 / outcome.packets as f64
    };
    let (whole, split) = (polls("16777216"), polls("1448"));
    assert!((3.8..4.2).contains(&(split / whole)), "{split} and {whole}");
}

#[test]
fn a_threads_price_for_a_packet_does_not_grow_with_its_bytes() {
    let per_packet = |bytes: &str, factor: &str| {
        let keys = [
            ("delivery.processing", "kthread"),
            ("application.request-bytes", bytes),
            ("costs.copy-in", "0.7"),
            ("costs.packet-in-thread", factor),
        ];
        // The four queues are the limit.
        4e6 / half(&keys, 1).throughput()
    };
    let more = |bytes: &str| per_packet(bytes, "1.6") - per_packet(bytes, "1.3");
    assert!((more("1") - more("5120")).abs() < 0.1, "{} and {}", more("1"), more("5120"));
}
