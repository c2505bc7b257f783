//! Runs the benchmarks that produce the figures of the README and the docs. Each figure comes from one of
//! them.

use crate::demo;
use crate::release::contents;
use crate::shell::{self, Result};

/// A benchmark: its name, its package, cargo's name for it, and the question that it answers. `commit` is an
/// example.
type Benchmark = (&'static str, &'static str, &'static str, &'static str);

const BENCHMARKS: &[Benchmark] = &[
    ("paths", "netpolicy", "paths", "how long show takes; what applying a device policy costs"),
    (
        "commit",
        "netpolicy-apply",
        "commit_cost",
        "the cost of a transaction with its journal, without the kernel",
    ),
    ("plan", "netpolicy-plan", "large_host", "planning for 1024 queues, 256 CPUs and 500 services"),
    ("node", "netpolicy-plan", "node", "planning for a node with 1000 pods, 64 queues, a bond and a VLAN"),
    ("follow", "netpolicy-linux", "follow_reaction", "how soon a new epoll is noticed, by each method"),
    ("daemon", "netpolicy", "daemon", "how soon the daemon has a policy in force, and its cost"),
    (
        "judged",
        "netpolicy",
        "judged",
        "the cost of comparing and guarding, and whether all changes are undone; takes half an hour",
    ),
    ("counting", "netpolicy-linux", "delivery_cost", "the cost per event of counting polls"),
    (
        "client",
        "netpolicy-load",
        "client",
        "the load generator and other clients, on one core, with one server",
    ),
];

/// Runs the named benchmarks, or all benchmarks if none is named.
pub(crate) fn run(wanted: &[String]) -> Result {
    if let Some(unknown) = wanted.iter().find(|name| BENCHMARKS.iter().all(|b| b.0 != name.as_str())) {
        let names: Vec<_> =
            BENCHMARKS.iter().map(|(name, .., answers)| format!("  {name:10} {answers}")).collect();
        return Err(format!("no benchmark `{unknown}`; there are\n{}", names.join("\n")));
    }
    if !shell::is_root() {
        return Err("the benchmarks create network namespaces: run them as root".to_owned());
    }
    // If much other work runs on the machine, print how much, because it makes figures unreliable.
    demo::other_work().into_iter().for_each(|words| println!("{words}"));
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    if BENCHMARKS.iter().any(|(name, package, ..)| *package == "netpolicy" && is_wanted(name)) {
        // Build netpolicy, too: benchmarks run the one in the same build directory.
        contents::build_programs(&["--profile", "bench"])?;
    }
    for (name, package, target, answers) in BENCHMARKS.iter().filter(|(name, ..)| is_wanted(name)) {
        println!("\n{name}: {answers}");
        let mut cargo = shell::cargo();
        match *name {
            "commit" => cargo
                .args(["run", "--quiet", "--release", "--package", package, "--example", target])
                .args(["--", "target/bench", "64"]),
            _ => cargo.args(["bench", "--quiet", "--package", package, "--bench", target]),
        };
        shell::run(&mut cargo)?;
    }
    Ok(())
}
