//! Compares the request counts and response times of `watch` with the figures of independent clients, over
//! all requests of each client in a lab. `cargo bench -p netpolicy --bench clients [-- PART…]`, as root.
//! Parts: `bodies` (wrk, curl), `pipelined` (redis-benchmark, wrk), `long` (wrk), `http2` (h2load), `forking`
//! (pgbench), `dns` (dnsperf, and tcpdump at both ends of the wire).
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use latency::live::Sampler;
use latency::measure::live::series::Stretch;
use latency::measure::live::{Series, Summary};
use libtest_mimic::Failed;
use linux::bpf::live::{LiveMeter, LiveTarget};
use linux::bpf::{RunTime, Statistics};
use linux::lab::{CLIENT_DEVICE, Lab, LabOptions, SERVER_ADDRESS, ServerProgram};
use linux::usage::Usage;
use model::live::{LiveWindow, ServicePorts};
use model::{EmptyPolls, Nanoseconds, NapiId, Pid, ProcessId};
use netlink::netdev::{NapiChange, Netdev};
use tempfile::TempDir;

type Done<T> = Result<T, Box<dyn Error + Send + Sync>>;

type Part = fn() -> Done<()>;

const PORT: u16 = 8_100;

/// The directory of PostgreSQL's programs, which its packages do not put in `PATH`.
const POSTGRESQL: &str = "/usr/lib/postgresql";

/// The uid under which PostgreSQL runs, because it refuses to run as root.
const NOBODY: &str = "65534";

fn main() -> Done<()> {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let parts: [(&str, Part); 6] = [
        ("bodies", bodies),
        ("pipelined", pipelined),
        ("long", long),
        ("http2", http2),
        ("forking", forking),
        ("dns", dns),
    ];
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("Linux {release}, load average {}", load.split(' ').take(3).collect::<Vec<_>>().join(" "));
    for (name, part) in parts {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            println!("{name}");
            part()?;
        }
    }
    Ok(())
}

/// The figures that a client reports.
#[derive(Debug, Default)]
struct ClientReport {
    requests: u64,
    /// The number of requests that were outstanding when the client ended. The client's count and netpolicy's
    /// may differ by this number.
    in_flight: u64,
    /// The percentiles: the share of requests, and their response time.
    percentiles: Vec<(f64, Duration)>,
}

/// Measures everything that `client` sends to the port, in one window.
fn measured(
    lab: &Lab,
    port: u16,
    processes: Vec<ProcessId>,
    client: impl FnOnce() -> Done<ClientReport>,
) -> Done<(ClientReport, Series, Option<Usage>)> {
    let ports = LiveTarget::of(lab.server().id(), vec![port]);
    let mut sampler = Sampler::of_ports(&ports, processes, Duration::ZERO).map_err(|fault| fault.cause)?;
    sampler.begin().map_err(|fault| fault.cause)?;
    std::thread::sleep(Duration::from_nanos(LiveMeter::GUARD.0));
    let said = client()?;
    // Wait until the server has answered the last requests.
    std::thread::sleep(Duration::from_millis(20));
    let sample = sampler.end().map_err(|fault| fault.cause)?;
    let mut series = Series::new();
    series.add(&sample.window);
    Ok((said, series, sample.usage))
}

/// Prints the client's and netpolicy's counts and percentiles on one line.
fn compare(what: &str, said: &ClientReport, series: &Series) {
    let summary = Summary::of(series, Vec::new());
    let off = 100.0 * (float(summary.requests) / float(said.requests) - 1.0);
    let mut line = format!(
        "  {what}: client {}, watch {} {} ({off:+.2} %)",
        said.requests, summary.requests, summary.unit
    );
    if said.in_flight > 0 && off != 0.0 {
        line += &format!(", up to {} in flight at the end", said.in_flight);
    }
    for (share, by_client) in &said.percentiles {
        let stretch = Stretch::Response(summary.estimator);
        let Some(found) = series.percentile(stretch, *share) else { continue };
        let (ours, theirs) = (found.interval.estimate, by_client.as_secs_f64() * 1e9);
        let bound = if found.at_least { ">" } else { "" };
        line += &format!(
            "; p{:.0} {:.3} ms, {bound}{:.3} ms ({:+.1} %)",
            share * 100.0,
            theirs / 1e6,
            ours / 1e6,
            100.0 * (ours / theirs - 1.0)
        );
    }
    println!("{line}");
}

/// Runs a program on the lab's client host, and returns its output.
fn run(lab: &Lab, program: &str, arguments: &[&str]) -> Done<String> {
    let output = lab.client().run(|| Command::new(program).args(arguments).output())??;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        return Err(format!("{program}: {said}{}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(said)
}

/// Runs an HTTP server that reads the whole request, sleeps for the number of milliseconds in its path, and
/// answers.
fn serve(lab: &Lab) -> Done<()> {
    let listener = lab.server().run(|| TcpListener::bind((SERVER_ADDRESS, PORT)))??;
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let _ = connection.set_nodelay(true);
            std::thread::spawn(move || http(connection));
        }
    });
    Ok(())
}

fn http(connection: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection);
    let mut line = String::new();
    loop {
        let (mut sleep, mut length, mut waits) = (0, 0, false);
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let words = line.trim_end().to_ascii_lowercase();
            if words.is_empty() {
                break;
            }
            if let Some(path) = words.split_once(" /sleep/").map(|(_, rest)| rest) {
                sleep = path.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
            } else if let Some(value) = words.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            waits |= words.starts_with("expect:");
        }
        if waits {
            reader.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
        std::thread::sleep(Duration::from_millis(sleep));
        reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
    }
}

/// Runs wrk with a script, and returns its figures; `in_flight` requests may be outstanding at its end.
fn wrk(
    lab: &Lab,
    files: &Path,
    script: &str,
    arguments: &[&str],
    path: &str,
    in_flight: u64,
) -> Done<ClientReport> {
    let file = files.join("script.lua");
    std::fs::write(&file, script)?;
    let (file, url) = (file.display().to_string(), format!("http://{SERVER_ADDRESS}:{PORT}{path}"));
    let arguments = [&["-t1", "--latency", "--timeout", "60s", "-s", &file], arguments, &[&url]].concat();
    let said = run(lab, "wrk", &arguments)?;
    let requests = said.lines().find_map(|line| line.trim().split_once(" requests in")).map(|(n, _)| n);
    let percentiles = [50, 90, 99].into_iter().filter_map(|percent| {
        let of = format!("{percent}%");
        let line = said.lines().map(str::trim).find(|line| line.starts_with(&of))?;
        Some((f64::from(percent) / 100.0, span(line.strip_prefix(&of)?.trim())?))
    });
    Ok(ClientReport {
        requests: requests.ok_or("wrk says how many")?.parse()?,
        in_flight,
        percentiles: percentiles.collect(),
    })
}

/// Parses a time span in wrk's format, such as `12.30ms`.
fn span(text: &str) -> Option<Duration> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(at);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    Some(Duration::from_secs_f64(number.parse::<f64>().ok()? * seconds))
}

/// Compares requests with bodies, in any segmentation, with packets delivered immediately and deferred.
fn bodies() -> Done<()> {
    const CONNECTIONS: u64 = 4;
    let files = TempDir::with_prefix("netpolicy-bench-clients-")?;
    for (offloads, defers) in [(true, false), (false, false), (true, true)] {
        let options =
            LabOptions { client_tso: offloads, server_gro: offloads || defers, ..LabOptions::with_queues(1) };
        let lab = Lab::new(&options)?;
        if defers {
            defer(&lab)?;
        }
        serve(&lab)?;
        let how = match (offloads, defers) {
            (true, false) => "GRO and TSO on",
            (false, _) => "GRO and TSO off",
            (true, true) => "GRO and TSO on, deferred by 200 us",
        };
        for size in [0, 100, 1_000, 10_000, 100_000, 1_000_000] {
            let script = format!("wrk.method = \"POST\"\nwrk.body = string.rep(\"x\", {size})\n");
            let (said, series, _) = measured(&lab, PORT, Vec::new(), || {
                wrk(&lab, files.path(), &script, &["-c4", "-d1s"], "/upload", CONNECTIONS)
            })?;
            compare(&format!("wrk -c4, {size} bytes, {how}"), &said, &series);
        }
        for size in [1_000_usize, 100_000, 1_000_000] {
            const UPLOADS: u64 = 40;
            let body = files.path().join("body");
            std::fs::write(&body, vec![b'x'; size])?;
            let (data, url) =
                (format!("@{}", body.display()), format!("http://{SERVER_ADDRESS}:{PORT}/[1-{UPLOADS}]"));
            let (said, series, _) = measured(&lab, PORT, Vec::new(), || {
                run(&lab, "curl", &["-sS", "-H", "Expect: 100-continue", "--data-binary", &data, &url])?;
                Ok(ClientReport { requests: UPLOADS, ..ClientReport::default() })
            })?;
            compare(&format!("curl, {size} bytes, head and body sent separately, {how}"), &said, &series);
        }
    }
    Ok(())
}

/// Makes the lab defer interrupts: they stay masked after each batch, and a timer polls.
fn defer(lab: &Lab) -> Done<()> {
    let change = NapiChange {
        defer_hard_irqs: Some(EmptyPolls(100)),
        gro_flush_timeout: Some(Nanoseconds::from_micros(200)),
        irq_suspend_timeout: None,
        threaded: None,
    };
    lab.server().run(|| -> Done<()> {
        let mut netdev = Netdev::open_here()?;
        for napi in netdev.napis(None)? {
            netdev.set_napi(NapiId(napi.id), &change).map_err(|refused| format!("napi-set: {refused:?}"))?;
        }
        Ok(())
    })?
}

fn redis(lab: &Lab) -> Done<ServerProgram> {
    let mut command = Command::new("redis-server");
    command.args(["--port", "6379", "--bind", &SERVER_ADDRESS.to_string(), "--protected-mode", "no"]);
    command.args(["--save", "", "--appendonly", "no"]);
    Ok(lab.start_program(command, 6_379)?)
}

fn pipelined() -> Done<()> {
    let files = TempDir::with_prefix("netpolicy-bench-clients-")?;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let _redis = redis(&lab)?;
    let address = SERVER_ADDRESS.to_string();
    for (pipeline, requests) in [("1", 60_000), ("4", 200_000), ("16", 400_000), ("64", 400_000)] {
        let number = requests.to_string();
        let arguments = ["-h", &address, "-t", "set", "-c", "8", "-P", pipeline, "-n", &number, "--csv"];
        let (said, series, _) = measured(&lab, 6_379, Vec::new(), || {
            let said = run(&lab, "redis-benchmark", &arguments)?;
            // The columns of the output: test, rps, avg_latency_ms, min_latency_ms, p50_latency_ms,
            // p95_latency_ms, p99_latency_ms, max_latency_ms
            let last = said.lines().last().unwrap_or_default();
            let fields: Vec<f64> =
                last.split(',').filter_map(|field| field.trim_matches('"').parse().ok()).collect();
            let [_, _, _, p50, p95, p99, _] = fields[..] else {
                return Err(format!("redis-benchmark says {last}").into());
            };
            let shares =
                if pipeline == "1" { vec![(0.5, p50), (0.95, p95), (0.99, p99)] } else { Vec::new() };
            let percentiles =
                shares.into_iter().map(|(share, ms)| (share, Duration::from_secs_f64(ms / 1e3)));
            // The outstanding requests include redis-benchmark's query for the server's configuration.
            Ok(ClientReport { requests, in_flight: 4, percentiles: percentiles.collect() })
        })?;
        compare(&format!("redis-benchmark -t set -c8 -P {pipeline}"), &said, &series);
    }
    serve(&lab)?;
    for depth in [4, 16] {
        let script = format!(
            "init = function(args)\n  local all = {{}}\n  for i = 1, {depth} do all[i] = wrk.format() end\n  \
             pipeline = table.concat(all)\nend\nrequest = function() return pipeline end\n"
        );
        let (said, series, _) = measured(&lab, PORT, Vec::new(), || {
            wrk(&lab, files.path(), &script, &["-c4", "-d1s"], "/", 4 * depth)
        })?;
        let said = ClientReport { percentiles: Vec::new(), ..said };
        compare(&format!("wrk -c4, {depth} deep"), &said, &series);
    }
    Ok(())
}

/// Slow requests.
fn long() -> Done<()> {
    let files = TempDir::with_prefix("netpolicy-bench-clients-")?;
    for (millis, connections, seconds) in
        [(1, 20, 2), (10, 20, 2), (100, 100, 2), (1_500, 100, 3), (10_000, 100, 11)]
    {
        // A client may leave requests unanswered. A new lab for each client keeps such requests out of the
        // next client's counts.
        let lab = Lab::new(&LabOptions::with_queues(1))?;
        serve(&lab)?;
        let (c, d) = (format!("-c{connections}"), format!("-d{seconds}s"));
        let (said, series, _) = measured(&lab, PORT, Vec::new(), || {
            wrk(&lab, files.path(), "", &[&c, &d], &format!("/sleep/{millis}"), connections)
        })?;
        compare(&format!("wrk {c}, {millis} ms each"), &said, &series);
    }
    Ok(())
}

fn http2() -> Done<()> {
    const REQUESTS: u64 = 20_000;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let files = TempDir::with_prefix("netpolicy-bench-clients-")?;
    std::fs::write(files.path().join("file"), "answer\n")?;
    let mut command = Command::new("nghttpd");
    command.args(["--no-tls", "-d"]).arg(files.path());
    command.args(["-a", &SERVER_ADDRESS.to_string(), &PORT.to_string()]);
    let _server = lab.start_program(command, PORT)?;
    let url = format!("http://{SERVER_ADDRESS}:{PORT}/file");
    for streams in ["1", "2", "10", "20", "32"] {
        let (said, series, _) = measured(&lab, PORT, Vec::new(), || {
            run(&lab, "h2load", &["-n", &REQUESTS.to_string(), "-c", "4", "-m", streams, &url])?;
            Ok(ClientReport { requests: REQUESTS, ..ClientReport::default() })
        })?;
        compare(&format!("h2load -c 4 -m {streams}"), &said, &series);
    }
    Ok(())
}

/// Measures PostgreSQL, which forks for each connection. The CPU time of its cgroup is the reference.
fn forking() -> Done<()> {
    let Some(programs) = newest(Path::new(POSTGRESQL)) else {
        println!("  no PostgreSQL below {POSTGRESQL}: apt-get install postgresql");
        return Ok(());
    };
    let files = TempDir::with_prefix("netpolicy-bench-clients-")?;
    let data = files.path().join("data");
    let nobody = |program: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(program);
        command.current_dir(files.path());
        command
    };
    std::fs::create_dir(&data)?;
    std::os::unix::fs::chown(&data, Some(65_534), Some(65_534))?;
    let made = nobody(&programs.join("initdb"))
        .arg("-D")
        .arg(&data)
        .args(["-U", "bench", "-A", "trust"])
        .output()?;
    if !made.status.success() {
        return Err(format!("initdb: {}", String::from_utf8_lossy(&made.stderr)).into());
    }
    let hba = data.join("pg_hba.conf");
    std::fs::write(&hba, "host all all all trust\n")?;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let cgroup = Cgroup::new()?;
    let mut command = nobody(&programs.join("postgres"));
    command.arg("-D").arg(&data).args(["-c", "fsync=off", "-c", "unix_socket_directories="]);
    command.args(["-h", &SERVER_ADDRESS.to_string(), "-p", &PORT.to_string()]);
    let server = lab.start_program(command, PORT)?;
    cgroup.add(server.process().pid)?;
    let pgbench = programs.join("pgbench").display().to_string();
    let address = SERVER_ADDRESS.to_string();
    let port = PORT.to_string();
    let common = ["-h", &address, "-p", &port, "-U", "bench"];
    run(&lab, &pgbench, &[&common[..], &["-i", "-q", "postgres"]].concat())?;
    for (how, reloads) in [
        (&["-S", "-c", "4", "-T", "3"][..], false),
        (&["-S", "-M", "prepared", "-c", "4", "-T", "3"], false),
        (&["-S", "-C", "-c", "4", "-T", "3"], false),
        (&["-S", "-C", "-c", "4", "-T", "3"], true),
    ] {
        let log = files.path().join("log");
        let prefix = log.display().to_string();
        let arguments = [&common[..], how, &["-l", "--log-prefix", &prefix, "postgres"]].concat();
        let before = cgroup.used()?;
        let (said, series, usage) = measured(&lab, PORT, vec![server.process()], || {
            std::thread::scope(|scope| {
                if reloads {
                    scope.spawn(|| reload(server.process().pid));
                }
                run(&lab, &pgbench, &arguments)
            })?;
            transactions(files.path())
        })?;
        let used = cgroup.used()? - before;
        let reload = if reloads { ", with a reload and a backend that is terminated" } else { "" };
        compare(&format!("pgbench {}{reload}", how.join(" ")), &said, &series);
        let usage = usage.ok_or("PostgreSQL runs")?;
        println!(
            "    CPU {:.3} s according to its cgroup, {:.3} s according to watch ({:+.2} %)",
            used.as_secs_f64(),
            usage.service.as_secs_f64(),
            100.0 * (usage.service.as_secs_f64() / used.as_secs_f64() - 1.0)
        );
    }
    Ok(())
}

/// Compares unbound under dnsperf at fixed rates with captures at both ends of the wire. A capture delays the
/// packets that it copies after it has noted their time, and only the response times on the wire include that
/// delay; more captures of the same packets show how long it is. Then prints the run time of each program.
fn dns() -> Done<()> {
    const SECONDS: u64 = 4;
    const CAPTURES_MORE: usize = 3;
    let lab = Lab::new(&LabOptions::with_queues(1))?;
    let failed = |failed: Failed| failed.message().unwrap_or_default().to_owned();
    let _server = testkit::dns::unbound(&lab).map_err(failed)?;
    let ports = ServicePorts { tcp: vec![testkit::dns::PORT], udp: vec![testkit::dns::PORT] };
    let mut meter = LiveMeter::load(&LiveTarget::of(lab.server().id(), ports))?;
    let asks = |more: &[&str]| -> Done<()> {
        let command = testkit::dns::dnsperf(&lab, &SERVER_ADDRESS.to_string(), more);
        let output = lab.client().run(|| command.map_err(failed)?.output().map_err(|e| e.to_string()))??;
        if !String::from_utf8_lossy(&output.stdout).contains("Queries lost:         0") {
            return Err("dnsperf lost queries".into());
        }
        Ok(())
    };
    let window = |meter: &mut LiveMeter, more: &[&str]| -> Done<LiveWindow> {
        meter.begin()?;
        std::thread::sleep(Duration::from_nanos(LiveMeter::GUARD.0));
        asks(more)?;
        Ok(meter.end()?)
    };
    // The meter knows the server's address only after it has seen the first answer.
    window(&mut meter, &["-n", "1"])?;
    for rate in [2_000_u64, 10_000, 20_000] {
        // The file holds two queries, so half as many rounds are needed.
        let (rounds, at) = ((rate * SECONDS / 2).to_string(), rate.to_string());
        for more in [0, CAPTURES_MORE] {
            let captures = testkit::dns::Captures::start(&lab).map_err(failed)?;
            let others = (0..more).map(|nth| {
                let file = lab.scratch().join(format!("more-{nth}"));
                testkit::dns::tcpdump(lab.client(), CLIENT_DEVICE, &file)
            });
            let _others: Vec<_> = others.collect::<Result<_, _>>().map_err(failed)?;
            let mut series = Series::new();
            series.add(&window(&mut meter, &["-n", &rounds, "-Q", &at])?);
            // Accept a few missing packets, because tcpdump may lose some.
            let wire =
                captures.response_times(usize::try_from(rate * SECONDS / 1_000 * 999)?).map_err(failed)?;
            let by_wire = |share: f64| {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
                let nth = (float(wire.len() as u64) * share) as usize;
                Some((share, Duration::from_nanos(*wire.get(nth)?)))
            };
            let percentiles = [0.5, 0.9, 0.99].into_iter().filter_map(by_wire).collect();
            let said = ClientReport { requests: wire.len() as u64, in_flight: 0, percentiles };
            compare(&format!("dnsperf -Q {rate}, {} captures of the queries", 1 + more), &said, &series);
        }
    }
    let _statistics = Statistics::enable()?;
    meter.begin()?;
    let before = meter.run_times()?;
    asks(&["-n", "20000", "-Q", "10000"])?;
    let after = meter.run_times()?;
    let requests = float(meter.end()?.counts.requests);
    for (before, RunTime { program, runs, time, .. }) in before.iter().zip(after) {
        let (runs, time) = (float(runs - before.runs), float(time.0 - before.time.0));
        if runs > 0.0 {
            println!(
                "  {program:20} {:5.2} runs and {:4.0} ns for a query",
                runs / requests,
                time / requests
            );
        }
    }
    Ok(())
}

/// Finds the directory of the newest version's programs.
fn newest(below: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(below).ok()?.flatten();
    versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("postgres").exists()).max()
}

/// Makes PostgreSQL reload its configuration, and kills one of its workers.
fn reload(pid: Pid) {
    use rustix::process::{Signal, kill_process};
    let process = |pid: &str| pid.parse().ok().and_then(rustix::process::Pid::from_raw);
    std::thread::sleep(Duration::from_secs(1));
    let _reloads = process(&pid.to_string()).map(|pid| kill_process(pid, Signal::HUP));
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    // Killing the autovacuum launcher is harmless: PostgreSQL restarts it.
    for child in children.split(' ') {
        let name = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        if name.contains("launcher") {
            let _ends = process(child).map(|pid| kill_process(pid, Signal::TERM));
        }
    }
}

/// Reads and removes pgbench's log of transactions.
fn transactions(directory: &Path) -> Done<ClientReport> {
    let mut micros: Vec<u64> = Vec::new();
    for entry in std::fs::read_dir(directory)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("log") {
            let text = std::fs::read_to_string(entry.path())?;
            micros.extend(text.lines().filter_map(|line| line.split(' ').nth(2)?.parse::<u64>().ok()));
            std::fs::remove_file(entry.path())?;
        }
    }
    micros.sort_unstable();
    let at = |percent: usize| micros.get((micros.len() * percent).div_ceil(100).saturating_sub(1)).copied();
    let percentiles = [50, 90, 99].into_iter().filter_map(|percent| {
        #[expect(clippy::cast_precision_loss, reason = "a percentage")]
        Some((percent as f64 / 100.0, Duration::from_micros(at(percent)?)))
    });
    Ok(ClientReport { requests: micros.len() as u64, in_flight: 0, percentiles: percentiles.collect() })
}

/// A temporary cgroup (v2).
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Done<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts")?;
        let mount = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            (fields.get(2) == Some(&"cgroup2")).then(|| fields[1].to_owned())
        });
        let path = Path::new(&mount.ok_or("no cgroup2 is mounted")?)
            .join(format!("netpolicy-bench-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// Adds a process and its descendants.
    fn add(&self, pid: Pid) -> Done<()> {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string())?;
        for child in children.split_whitespace() {
            std::fs::write(self.0.join("cgroup.procs"), child)?;
        }
        Ok(())
    }

    /// Reads the CPU time of the cgroup. Kernel: 4.15, `kernel/cgroup/rstat.c`
    /// `cgroup_base_stat_cputime_show()`.
    fn used(&self) -> Done<Duration> {
        let text = std::fs::read_to_string(self.0.join("cpu.stat"))?;
        let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        Ok(Duration::from_micros(micros.ok_or("cpu.stat")?.trim().parse()?))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Try several times: the processes of the cgroup exit shortly after the server.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a bench, below 2^53")]
fn float(number: u64) -> f64 {
    number as f64
}
