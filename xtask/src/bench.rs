//! The figures of README and docs, each by a benchmark that can be run alone.

use crate::shell::{self, Result};

/// A benchmark: its name, which question it answers, and what cargo is asked for.
struct Benchmark {
    name: &'static str,
    answers: &'static str,
    cargo: &'static [&'static str],
}

const BENCHMARKS: &[Benchmark] = &[
    Benchmark {
        name: "paths",
        answers: "how long show takes; what applying a device policy costs",
        cargo: &["bench", "--quiet", "--package", "netpolicy", "--bench", "paths"],
    },
    Benchmark {
        name: "commit",
        answers: "what a transaction costs, journal and all, apart from the kernel",
        cargo: &[
            "run",
            "--quiet",
            "--release",
            "--package",
            "netpolicy-apply",
            "--example",
            "commit_cost",
            "--",
            "target/bench",
            "64",
        ],
    },
    Benchmark {
        name: "plan",
        answers: "how long planning takes for 1024 queues, 256 CPUs and 500 services",
        cargo: &["bench", "--quiet", "--package", "netpolicy-plan", "--bench", "large_host"],
    },
    Benchmark {
        name: "node",
        answers: "how long planning takes for a node with 1000 pods, 64 queues, a bond and a VLAN",
        cargo: &["bench", "--quiet", "--package", "netpolicy-plan", "--bench", "node"],
    },
    Benchmark {
        name: "follow",
        answers: "how soon a new epoll is noticed, by each method that this kernel allows",
        cargo: &["bench", "--quiet", "--package", "netpolicy-linux", "--bench", "follow_reaction"],
    },
    Benchmark {
        name: "daemon",
        answers: "how soon the daemon has a policy in force, and what it costs when nothing happens and for others",
        cargo: &["bench", "--quiet", "--package", "netpolicy", "--bench", "daemon"],
    },
    Benchmark {
        name: "judged",
        answers: "what comparing and guarding settings costs, and whether the host is always as it was; half an hour",
        cargo: &["bench", "--quiet", "--package", "netpolicy", "--bench", "judged"],
    },
    Benchmark {
        name: "counting",
        answers: "what counting who polled costs for each event",
        cargo: &["bench", "--quiet", "--package", "netpolicy-linux", "--bench", "delivery_cost"],
    },
    Benchmark {
        name: "client",
        answers: "the load generator beside other clients, on the same core against the same server",
        cargo: &["bench", "--quiet", "--package", "netpolicy-load", "--bench", "client"],
    },
];

/// Runs the named benchmarks, or all.
pub(crate) fn run(wanted: &[String]) -> Result {
    if let Some(unknown) = wanted.iter().find(|name| BENCHMARKS.iter().all(|b| b.name != name.as_str())) {
        let names: Vec<_> = BENCHMARKS.iter().map(|b| format!("  {:10} {}", b.name, b.answers)).collect();
        return Err(format!("no benchmark `{unknown}`; there are\n{}", names.join("\n")));
    }
    if !shell::is_root() {
        return Err("the benchmarks make network namespaces: run them as root".to_owned());
    }
    say_how_quiet_the_machine_is();
    for benchmark in BENCHMARKS.iter().filter(|b| wanted.is_empty() || wanted.iter().any(|w| w == b.name)) {
        println!("\n{}: {}", benchmark.name, benchmark.answers);
        shell::run(shell::cargo().args(benchmark.cargo))?;
    }
    Ok(())
}

/// A figure from a busy machine is noise; its reader must know.
fn say_how_quiet_the_machine_is() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    println!("load average {} on {cpus} CPUs", load.split_whitespace().next().unwrap_or("unknown"));
}
