//! Tests laws of every run: random scenarios under the checkers, identical results from the same seed,
//! Little's law.

use model::{DeliveryMode, OfferedLoad};
use proptest::prelude::*;
use sim::checker::Checker;
use sim::outcome::Length;
use sim::{Outcome, Scenario, run, run_watched};

const LENGTH: Length = Length { warmup: 5_000_000, window: 20_000_000 };

fn checked(scenario: &Scenario, seed: u64) -> Outcome {
    let (outcome, checker) = run_watched(scenario, seed, LENGTH, Checker::new()).expect("can be");
    if let Err(wrong) = checker.verdict(LENGTH.warmup + LENGTH.window) {
        panic!("{wrong}\nseed {seed}\n{scenario:#?}");
    }
    outcome
}

fn of(keys: &[(&str, &str)]) -> Scenario {
    let mut scenario = Scenario::default();
    for (key, value) in keys {
        scenario.set(key, value).expect(key);
    }
    scenario
}

#[test]
fn the_documents_modes_obey_every_law_at_every_load() {
    for mode in DeliveryMode::DOCUMENT {
        for load in ["200K", "1000K", "max"] {
            let scenario = of(&[("delivery.mode", &mode.to_string()), ("clients.load", load)]);
            checked(&scenario, 1);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let scenario = of(&[("delivery.mode", "suspend20"), ("clients.load", "600K")]);
    let once = run(&scenario, 7, LENGTH).expect("can be");
    assert_eq!(once, run(&scenario, 7, LENGTH).expect("can be"));
    assert_ne!(once, run(&scenario, 8, LENGTH).expect("can be"));
}

#[test]
fn watching_a_simulation_changes_nothing() {
    let scenario = of(&[("delivery.mode", "napibusy"), ("clients.load", "400K")]);
    let (watched, _) = run_watched(&scenario, 3, LENGTH, Checker::new()).expect("can be");
    assert_eq!(watched, run(&scenario, 3, LENGTH).expect("can be"));
}

#[test]
fn a_closed_loop_obeys_littles_law() {
    let length = Length { warmup: 50_000_000, window: 200_000_000 };
    for (mode, from_due) in
        [("interrupt", "false"), ("defer50", "true"), ("fullbusy", "false"), ("suspend20", "true")]
    {
        let keys = [("delivery.mode", mode), ("clients.load", "max"), ("clients.from-due", from_due)];
        let scenario = of(&keys);
        let outcome = run(&scenario, 1, length).expect("can be");
        // The client takes half a microsecond from an answer to the next request.
        let under_way = outcome.throughput() * (outcome.latency.mean() + 500.0) / 1e9;
        let connections = f64::from(scenario.clients.connections);
        assert!((under_way / connections - 1.0).abs() < 0.02, "{mode}: {under_way} of {connections}");
    }
}

/// Creates a scenario with five threads at each end, like neper's `tcp_rr`.
fn request_response(keys: &[(&str, &str)]) -> Scenario {
    let mut all = vec![
        ("application.threads", "5"),
        ("hardware.cpus", "16"),
        ("hardware.adaptive", "false"),
        ("clients.load", "max"),
        ("clients.acks", "false"),
        ("costs.client-slow-base", "0"),
        ("costs.client-slow-load", "0"),
        ("layout.by-napi", "false"),
        ("layout.thread-cpus", "0-15"),
    ];
    all.extend_from_slice(keys);
    of(&all)
}

#[test]
fn a_closed_loop_through_the_clients_own_host_obeys_littles_law() {
    let length = Length { warmup: 50_000_000, window: 200_000_000 };
    for (threads, connections) in [("1", "40"), ("5", "40"), ("40", "1000")] {
        let keys = [
            ("clients.threads", threads),
            ("clients.connections", connections),
            ("costs.client-request", "3"),
        ];
        let scenario = request_response(&keys);
        let outcome = run(&scenario, 1, length).expect("can be");
        let under_way = outcome.throughput() * outcome.latency.mean() / 1e9;
        let connections = f64::from(scenario.clients.connections);
        assert!((under_way / connections - 1.0).abs() < 0.02, "{threads}: {under_way} of {connections}");
    }
}

#[test]
fn response_times_grow_with_the_flows_of_a_clients_thread_even_if_the_server_has_time() {
    let length = Length { warmup: 50_000_000, window: 100_000_000 };
    let at = |connections: &str, threads: &str| {
        let keys = [
            ("clients.threads", threads),
            ("clients.connections", connections),
            ("costs.client-request", "20"),
        ];
        run(&request_response(&keys), 1, length).expect("can be")
    };
    let alone = at("5", "5");
    let (queued, apart) = (at("60", "5"), at("60", "60"));
    // A thread serves twelve flows and takes 20 us per request, so it answers at most 50 thousand per second.
    let most = 5.0 * 1e6 / 20.0;
    assert!(queued.throughput() < most && queued.throughput() > 0.9 * most, "{}", queued.throughput());
    assert!(queued.latency.mean() > 2.5 * alone.latency.mean());
    assert!(apart.latency.mean() < 2.0 * alone.latency.mean());
}

#[test]
fn clients_that_wait_in_a_loop_answer_sooner_than_those_that_sleep() {
    let length = Length { warmup: 50_000_000, window: 100_000_000 };
    let mean = |waits: &str| {
        let keys = [("clients.threads", "5"), ("clients.connections", "15"), ("application.waits", waits)];
        run(&request_response(&keys), 1, length).expect("can be").latency.mean()
    };
    let (sleep, event, user) = (mean("sleep"), mean("event-spin:1000"), mean("user-spin"));
    assert!(event < user && user < sleep, "{event} {user} {sleep}");
}

#[test]
fn flows_that_a_hash_gives_to_threads_load_them_unevenly() {
    let length = Length { warmup: 50_000_000, window: 100_000_000 };
    let spread = |even: &str| {
        // Threads and CPUs of queues are separate, so threads are the limit and none waits for softirqs.
        let keys = [
            ("clients.connections", "100"),
            ("layout.even-threads", even),
            ("layout.thread-cpus", "8-15"),
            ("costs.request", "10"),
        ];
        let latency = run(&request_response(&keys), 1, length).expect("can be").latency;
        latency.per_mille(900) - latency.per_mille(100)
    };
    assert!(spread("false") * 10 > 13 * spread("true"), "{} and {}", spread("false"), spread("true"));
}

#[test]
fn cold_connections_cost_a_paced_load_more_than_a_closed_loop() {
    let length = Length { warmup: 100_000_000, window: 200_000_000 };
    let at = |load: &str, cold: &str| {
        let keys = [("delivery.mode", "defer20"), ("clients.load", load), ("costs.packet-cold", cold)];
        run(&of(&keys), 1, length).expect("can be")
    };
    // A paced connection is used again after all others of its thread; a closed-loop connection is used again
    // right after its answer.
    let dearer = |load: &str| {
        let per_request = |o: &Outcome| o.busy() * 8e6 / o.throughput();
        per_request(&at(load, "1")) - per_request(&at(load, "0"))
    };
    let (paced, closed) = (dearer("400K"), dearer("max"));
    assert!((0.5..1.1).contains(&paced) && closed < 0.2, "{paced:.2} us and {closed:.2} us");
}

#[test]
fn at_the_knee_threads_flee_the_caches_of_their_queues_and_at_low_load_they_stay() {
    const SEEDS: u32 = 4;
    let length = Length { warmup: 300_000_000, window: 150_000_000 };
    let at = |load: &str, moves: &str, seed| {
        let keys = [
            ("delivery.mode", "defer20"),
            ("clients.load", load),
            ("costs.packet-cold", "0.5"),
            ("costs.remote-llc", "4"),
            ("costs.group-moves", moves),
        ];
        run(&of(&keys), seed, length).expect("can be")
    };
    let (stay, back) = (at("200K", "0", 1), at("200K", "300", 1));
    assert!(back.migrations > stay.migrations, "threads are moved away, and wake-ups bring them back");
    assert!((back.busy() / stay.busy() - 1.0).abs() < 0.08, "{} and {}", back.busy(), stay.busy());
    // At 800K, response times differ tenfold between seeds, whether threads migrate or not.
    let busy = |moves: &str| {
        (1..=SEEDS).map(|seed| at("800K", moves, seed.into()).busy()).sum::<f64>() / f64::from(SEEDS)
    };
    let (stay, flee) = (busy("0"), busy("300"));
    assert!(flee > stay + 0.05, "{flee} and {stay}");
}

#[test]
fn short_tasks_of_the_kernel_keep_threads_moving() {
    let length = Length { warmup: 50_000_000, window: 200_000_000 };
    let moves = |tasks: &str| {
        let keys = [("delivery.mode", "defer20"), ("clients.load", "400K"), ("costs.housekeeping", tasks)];
        run(&of(&keys), 1, length).expect("can be").migrations
    };
    assert!(moves("0") < 10 && moves("50") > 50, "{} and {}", moves("0"), moves("50"));
}

#[test]
fn a_busy_poll_that_lets_others_run_goes_on() {
    let length = Length { warmup: 50_000_000, window: 200_000_000 };
    let sleeps = |tasks: &str| {
        let keys = [
            ("delivery.mode", "napibusy"),
            ("clients.load", "600K"),
            ("costs.housekeeping", tasks),
            ("costs.slice", "100"),
        ];
        run(&of(&keys), 1, length).expect("can be").epoll_sleeps
    };
    let (alone, disturbed) = (sleeps("0"), sleeps("500"));
    assert!(disturbed < alone + 200, "of the 800 times at which other tasks ran: {alone} and {disturbed}");
}

#[test]
fn a_client_that_may_be_late_again_has_a_longer_tail() {
    let p99 = |again: &str| {
        let keys =
            [("delivery.mode", "fullbusy"), ("clients.load", "800K"), ("costs.client-slow-again", again)];
        let length = Length { warmup: 100_000_000, window: 100_000_000 };
        run(&of(&keys), 1, length).expect("can be").latency.per_mille(990)
    };
    // One in six answers is late, and so one in forty is late twice, which is more than the percentile
    // excludes.
    assert!(p99("1") > p99("0") + 30_000, "{} and {}", p99("1"), p99("0"));
}

#[test]
fn a_full_ring_drops_packets_and_every_drop_is_counted() {
    let scenario = of(&[
        ("hardware.ring", "16"),
        ("clients.load", "max"),
        ("delivery.mode", "defer200"),
        ("clients.connections", "2000"),
    ]);
    checked(&scenario, 1);
    let outcome = run(&scenario, 1, Length { warmup: 0, window: 300_000_000 }).expect("can be");
    assert!(outcome.dropped > 0 && outcome.retransmitted > 0 && outcome.retransmitted <= outcome.dropped);
}

#[test]
fn an_overloaded_server_is_distinguished_from_one_that_keeps_up() {
    let length = Length { warmup: 50_000_000, window: 200_000_000 };
    let at = |load: &str| {
        run(&of(&[("clients.load", load), ("delivery.mode", "defer20")]), 1, length).expect("can be")
    };
    assert!(!at("600K").falls_behind());
    assert!(at("1500K").falls_behind() && at("1500K").backlog_growth() > 100_000.0);
}

#[test]
fn impossible_machines_are_refused_with_the_reason() {
    for (keys, words) in [
        (vec![("layout.pinned", "true"), ("application.threads", "9")], "9 threads cannot have a CPU each"),
        (vec![("layout.irq-cpus", "8")], "there is no CPU 8"),
        (vec![("application.threads", "4")], "4 threads cannot take 8 queues"),
        (vec![("hardware.cpus", "9"), ("hardware.smt", "true")], "cannot form pairs of hyper-threads"),
    ] {
        let refused = run(&of(&keys), 1, LENGTH).expect_err(words);
        assert!(refused.to_string().contains(words), "{refused}");
    }
}

#[test]
fn idle_polls_of_a_deferred_queue_end_with_the_interrupt_armed() {
    // With one request per hundred milliseconds, there are a hundred empty timer polls before the interrupt
    // is armed again.
    let scenario = of(&[("clients.connections", "1"), ("clients.load", "10"), ("delivery.mode", "defer20")]);
    let length = Length { warmup: 0, window: 2_000_000_000 };
    let outcome = run(&scenario, 1, length).expect("can be");
    assert!(outcome.irqs >= outcome.answered, "{} irqs, {} answers", outcome.irqs, outcome.answered);
    assert!(
        outcome.timers <= 102 * (outcome.irqs + 8),
        "{} timers for {} irqs",
        outcome.timers,
        outcome.irqs
    );
}

fn any_scenario() -> impl Strategy<Value = Scenario> {
    let hardware = (1_u32..=12, 1_u32..=6, any::<bool>(), 1_u32..=10, prop_oneof![Just(16_u32), Just(1024)]);
    let delivery = (0_usize..DeliveryMode::DOCUMENT.len(), 0_usize..4, any::<bool>());
    let work =
        (1_u32..=400, 0_u32..1_500_000, 1_u32..=12, any::<bool>(), any::<bool>(), any::<bool>(), 0_u32..3);
    let caches = prop_oneof![Just((0.0, 1.0)), Just((1000.0, 4.0))];
    let hosts = (prop_oneof![Just(0_u32), 1_u32..=20], 1_u32..=9, any::<bool>());
    (hardware, delivery, work, caches, hosts).prop_map(|(hardware, delivery, work, caches, hosts)| {
        let mut scenario = Scenario::default();
        (scenario.clients.threads, scenario.clients.queues, scenario.layout.even_threads) = hosts;
        scenario.costs.client_request = 2.0;
        if scenario.layout.even_threads {
            scenario.costs.thread_moves = 1000.0;
            scenario.costs.active_balance = 500.0;
            scenario.costs.workqueue_requeue = 0.5;
            scenario.application.request_bytes = 5000;
            scenario.hardware.frame_bytes = 1448;
        }
        (scenario.costs.group_moves, scenario.costs.remote_llc) = caches;
        let (cpus, llc, smt, queues, ring) = hardware;
        scenario.hardware.cpus = if smt { cpus * 2 } else { cpus };
        scenario.hardware.smt = smt;
        scenario.hardware.llc_cpus = llc;
        scenario.hardware.node_cpus = llc * 2;
        scenario.hardware.node_distance = 20;
        scenario.hardware.queues = queues;
        scenario.hardware.ring = ring;
        let (mode, processing, adaptive) = delivery;
        scenario.deliver(DeliveryMode::DOCUMENT[mode]);
        scenario.hardware.coalescing.adaptive = adaptive;
        let all: Vec<u32> = (0..scenario.hardware.cpus).collect();
        scenario.layout.irq_cpus.clone_from(&all);
        scenario.layout.thread_cpus = all;
        let (connections, load, threads, by_napi, closed, new_kernel, waits) = work;
        scenario.clients.connections = connections;
        scenario.clients.load =
            if closed { OfferedLoad::Max } else { OfferedLoad::PerSecond(f64::from(load + 100)) };
        scenario.layout.by_napi = by_napi;
        scenario.application.threads = if by_napi { queues } else { threads };
        if new_kernel {
            scenario.hardware.kernel = model::KernelVersion { major: 7, minor: 0, patch: 0 };
        }
        if !scenario.delivery.params.epoll.prefer_busy_poll {
            let processing = ["softirq", "kthread", "workqueue", "busy-kthread"][processing];
            scenario.set("delivery.processing", processing).expect("a word");
            let waits = ["sleep", "user-spin", "event-spin:50"][waits as usize];
            scenario.set("application.waits", waits).expect("a word");
        }
        scenario
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn random_scenarios_obey_every_law(scenario in any_scenario(), seed in any::<u64>()) {
        checked(&scenario, seed);
    }
}
