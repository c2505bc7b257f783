//! `bench policies` as users run it: every policy is applied to the device and the servers, both kinds of
//! workload are measured concurrently, and everything is restored. The tests check counts, not times.

use std::process::{Command, Output, Stdio};

use libtest_mimic::{Failed, Trial};
use model::{Evidence, Workload};
use runs::{Grid, Variant};
use serde_json::Value;
use testkit::scratch::Scratch;
use testkit::{Need, repeated, test};

pub(crate) fn tests() -> Vec<Trial> {
    const LAB: &[Need] = &[Need::Root];
    const FOREIGN: &[Need] =
        &[Need::Root, Need::Suspension, Need::Bpf, Need::Memcached, Need::Program("redis-server")];
    const PER_NAPI: &[Need] = &[Need::Root, Need::Suspension, Need::Bpf];
    vec![
        test("policies/every_policy_is_measured_for_both_kinds_of_workload_and_put_back", LAB, matrix),
        test("policies/what_a_policy_sets_shows_in_who_polls", PER_NAPI, repeated(delivered)),
        test(
            "policies/a_server_of_the_operators_choice_is_asked_in_its_protocol_and_what_an_answer_costs_is_counted",
            FOREIGN,
            repeated(foreign),
        ),
        test(
            "policies/a_server_that_speaks_another_protocol_is_an_error_with_its_words",
            FOREIGN,
            another_protocol,
        ),
        test("policies/a_mix_of_nothing_is_the_operators_mistake", LAB, nothing),
        test("policies/the_model_computes_the_same_tables_at_the_documents_scale", LAB, simulated),
    ]
}

fn bench(words: &str) -> Result<Output, Failed> {
    let mut command = Command::new(testkit::programs::netpolicy());
    command.args(["-o", "json", "bench", "policies"]).args(words.split(' ')).stdin(Stdio::null());
    Ok(command.output()?)
}

fn grid(words: &str) -> Result<Grid, Failed> {
    let output = bench(words)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() != Some(0) {
        return Err(format!("{words}: {:?}; it said: {said}", output.status).into());
    }
    let document: Value = serde_json::from_slice(&output.stdout)?;
    Ok(serde_json::from_value(document["data"].clone()).map_err(|error| format!("{words}: {error}"))?)
}

fn names(grid: &Grid) -> Vec<&str> {
    grid.variants.iter().map(|variant| variant.name.as_str()).collect()
}

fn runs<'a>(variant: &'a Variant, label: &str) -> Vec<&'a Evidence> {
    variant.results.evidence.iter().filter(|run| run.label == label).collect()
}

/// Does not check that the host was restored: a run that fails to restore it ends the bench with another exit
/// code.
fn matrix() -> Result<(), Failed> {
    let grid =
        grid("--meant-for 8192 --at-once 1 --mix 1:0 --repeats 1 --seconds 60ms --warmup 20ms --queues 2")?;
    let labels = ["none", "manual", "latency", "bulk", "cpu", "mix", "power"];
    assert_eq!(grid.variants[0].results.experiment.labels, labels, "skipped: {:?}", grid.skipped);
    for label in labels {
        assert!(
            grid.notes.iter().any(|note| note.starts_with(&format!("{label}: sets "))),
            "{:?}",
            grid.notes
        );
    }
    let set = |label: &str| grid.notes.iter().find(|note| note.starts_with(&format!("{label}: sets ")));
    assert_eq!(set("none").map(String::as_str), Some("none: sets nothing"));
    assert!(set("manual").is_some_and(|note| note.contains("rps_cpus")), "{:?}", set("manual"));
    let overall: Vec<&str> = grid.overall.iter().map(|overall| overall.name.as_str()).collect();
    assert_eq!(overall, ["Throughput-first workloads only"]);
    Ok(())
}

fn delivered() -> Result<(), Failed> {
    let grid = grid(
        "--meant-for 2 --at-once 2 --mix 1:1 --policy none --delivery suspend20 --repeats 2 --seconds 1s --warmup 50ms",
    )?;
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if cpus == 2 {
        assert_eq!(
            names(&grid),
            [
                "2 at once: 1 throughput-first (alongside 1 latency-first)",
                "2 at once: 1 latency-first (alongside 1 throughput-first)",
            ]
        );
    }
    assert!(matches!(grid.variants[0].results.evidence[0].workload, Workload::TcpStream(_)));
    assert!(matches!(grid.variants[1].results.evidence[0].workload, Workload::TcpRr(_)));
    for variant in &grid.variants {
        for label in ["none", "delivery suspend20"] {
            let runs = runs(variant, label);
            assert_eq!(runs.len(), 2, "{}", variant.name);
            assert!(runs.iter().all(|run| run.requests.answered > 0), "{}: {label}", variant.name);
            let polled_by_itself: u64 = runs
                .iter()
                .filter_map(|run| run.delivered.as_ref())
                .flat_map(|delivered| &delivered.napis)
                .map(|napi| napi.application.polls)
                .sum();
            assert_eq!(
                polled_by_itself > 0,
                label == "delivery suspend20",
                "{}: {label}: {polled_by_itself}",
                variant.name
            );
        }
    }
    // Both variants have the same rounds, so that their runs can be paired.
    let seeds = |variant: &Variant| -> Vec<u64> {
        variant.results.evidence.iter().map(|run| run.workload.seed()).collect()
    };
    assert_eq!(seeds(&grid.variants[0]), seeds(&grid.variants[1]));
    Ok(())
}

/// A minimal HTTP server with persistent connections.
const HTTP_SERVER: &str = "
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        found = self.path == '/there'
        self.send_response(200 if found else 404)
        self.send_header('Content-Length', '2')
        self.end_headers()
        self.wfile.write(b'ok')
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(('0.0.0.0', 8080), Handler).serve_forever()
";

fn of_server(server: &str, port: &str, protocol: &str, more: &[&str]) -> Result<Output, Failed> {
    let mut command = Command::new(testkit::programs::netpolicy());
    command.args([
        "-o",
        "json",
        "bench",
        "policies",
        "--start",
        server,
        "--port",
        port,
        "--protocol",
        protocol,
    ]);
    command.args([
        "--rate",
        "2K",
        "--connections",
        "8",
        "--repeats",
        "1",
        "--seconds",
        "300ms",
        "--warmup",
        "50ms",
    ]);
    Ok(command.args(more).stdin(Stdio::null()).output()?)
}

fn foreign() -> Result<(), Failed> {
    let scratch = Scratch::new("http")?;
    let program = scratch.path("server.py");
    std::fs::write(&program, HTTP_SERVER)?;
    let http = format!("python3 {}", program.display());
    let echo =
        format!("{} bench serve --listen {{address}}:{{port}} --size 1/1", testkit::programs::netpolicy());
    let servers: [(&str, &str, &str, &[&str]); 4] = [
        (
            "redis-server --bind {address} --port {port} --protected-mode no --save '' --appendonly no",
            "6379",
            "redis",
            &[],
        ),
        ("memcached -u nobody -l {address} -p {port} -t 2", "11211", "memcached", &[]),
        (&http, "8080", "http", &["--path", "/there"]),
        (&echo, "7009", "echo", &[]),
    ];
    const SAMPLED_MIN: u64 = 20;
    let mut sampled = 0;
    for (server, port, protocol, more) in servers {
        let output = of_server(
            server,
            port,
            protocol,
            &[&["--policy", "none", "--delivery", "defer200"], more].concat(),
        )?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // On a busy machine a run may be void, which changes the exit code, but its counts are still
        // reported.
        let document: Value =
            serde_json::from_slice(&output.stdout).map_err(|error| format!("{protocol}: {error}: {said}"))?;
        let grid: Grid = serde_json::from_value(document["data"].clone())?;
        assert_eq!(names(&grid), [format!("{protocol}, 8 connection(s)")]);
        for label in ["none", "delivery defer200"] {
            let runs = runs(&grid.variants[0], label);
            let run = runs.first().ok_or_else(|| format!("{protocol}: {label}: no run: {said}"))?;
            assert!(run.requests.answered > 100 && run.requests.errors == 0, "{label}: {:?}", run.requests);
            if matches!(protocol, "redis" | "memcached") {
                assert!(run.requests.hits > 0, "{protocol}: {:?}", run.requests);
            }
            let cost = run.cpu_per_answer.ok_or_else(|| format!("{protocol}: {label}: {said}"))?;
            let (machine, tasks) = (cost.machine_us.ok_or("no ticks")?, cost.tasks_us.ok_or("no tasks")?);
            // An answer takes a few system calls on each side. The kernel accounts the machine's CPU time at
            // ticks, which may miss all the work of such a short run, so the bound is wide.
            assert!(tasks > 3.0 && tasks < 3.0 * machine + 100.0, "{protocol}: {label}: {cost:?}");
            let polls = |of: fn(&model::NapiDelivered) -> u64| -> u64 {
                run.delivered.iter().flat_map(|delivered| &delivered.napis).map(of).sum()
            };
            // A timer armed by the previous run may cause the last poll by timer.
            let (by_timer, all) = (polls(|napi| napi.timer.polls), polls(|napi| napi.total().polls));
            // On a busy machine, the samples of a short run may miss most packets.
            if all >= SAMPLED_MIN {
                sampled += 1;
                let deferred = by_timer > all / 2;
                assert_eq!(
                    deferred,
                    label == "delivery defer200",
                    "{protocol}: {label}: {by_timer} of {all}"
                );
            }
        }
    }
    assert!(sampled > 0, "no run of four servers was sampled");
    Ok(())
}

fn another_protocol() -> Result<(), Failed> {
    let redis = "redis-server --bind {address} --port {port} --protected-mode no --save '' --appendonly no";
    let output = of_server(redis, "6379", "http", &["--policy", "none"])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_ne!(output.status.code(), Some(0), "{said}");
    // On a busy machine, the load generator may be too late for the run to count.
    let words = ["is not a valid answer here", "lost", "No run counts"];
    assert!(words.iter().any(|words| said.contains(words)), "{said}");
    let output = of_server("no-such-server-anywhere", "6379", "redis", &["--policy", "none"])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no-such-server-anywhere"), "{said}");
    Ok(())
}

fn nothing() -> Result<(), Failed> {
    let output = bench("--meant-for 1024 --at-once 1 --mix 1:1")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("a single workload cannot be mixed"), "{said}");
    Ok(())
}

fn simulated() -> Result<(), Failed> {
    let words = "--simulated --at-once 1,24 --policy none,manual,bulk --repeats 2 --seconds 20ms";
    let (once, again) = (grid(words)?, grid(words)?);
    assert_eq!(once, again, "the same seed computes the same");
    assert_eq!(
        names(&once),
        [
            "1 at once: 1 throughput-first",
            "24 at once: 24 throughput-first",
            "1 at once: 1 latency-first",
            "24 at once: 24 latency-first"
        ]
    );
    assert!(once.notes.iter().any(|note| note.starts_with("Mixes are not modelled")));
    assert!(once.variants.iter().all(|variant| variant.results.evidence.len() == 6));
    Ok(())
}
