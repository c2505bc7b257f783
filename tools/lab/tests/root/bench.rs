//! `lab` and `bench` as users run them: their messages, and that they leave nothing behind, however they end.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use model::{OfferedLoad, Pid};
use rustix::process::{Signal, kill_process};
use serde::Deserialize;
use serde_json::Value;
use testkit::scratch::Scratch;
use testkit::{Need, repeated, test};

pub(crate) fn tests() -> Vec<Trial> {
    const LAB: &[Need] = &[Need::Root, Need::Memcached];
    const BENCH: &[Need] = &[Need::Root, Need::Memcached, Need::Suspension];
    const COUNTED: &[Need] = &[Need::Root, Need::Memcached, Need::Suspension, Need::Bpf];
    vec![
        test("lab/a_command_runs_on_the_client_and_its_exit_code_is_ours", LAB, command_on_client),
        test("lab/a_program_reads_where_its_hosts_are", LAB, for_programs),
        test("bench/over_loopback_anybody_may_measure", &[Need::Root], as_nobody),
        test("lab/what_it_starts_is_known_to_be_ours", LAB, marks_what_it_starts),
        test("lab/nothing_is_left_after_ctrl_c", LAB, || ended(Signal::INT, Some(0))),
        test("lab/nothing_is_left_after_kill_9_with_two_labs_side_by_side", LAB, killed_beside_another),
        test("bench/a_wait_of_300_us_reaches_the_kernel_as_300_us", &[Need::Root, Need::Strace], exact_wait),
        test("bench/the_instruments_are_checked_against_each_other", &[Need::Root, Need::Bpf], selfcheck),
        test(
            "bench/each_configuration_is_measured_and_engagement_stands_beside_it",
            COUNTED,
            repeated(measured),
        ),
        test("bench/every_configuration_of_the_document_runs_and_is_put_back", BENCH, whole_matrix),
        test("bench/an_interrupted_experiment_shows_what_it_has_and_leaves_nothing", BENCH, interrupted),
        test("bench/a_killed_experiment_is_resumed_with_the_runs_that_are_missing", BENCH, resumed),
        test("bench/runs_that_do_not_count_are_named_and_none_that_does_is_a_failure", BENCH, nothing_counts),
        test("bench/a_server_of_ones_own_is_measured_as_it_is", LAB, own_server),
        test("bench/a_file_that_cannot_be_written_is_named_before_the_first_run", LAB, unwritable),
    ]
}

fn netpolicy(words: &str) -> Command {
    let mut command = Command::new(testkit::programs::netpolicy());
    command.args(words.split(' ')).env(MARK, std::process::id().to_string()).stdin(Stdio::null());
    command
}

fn output(words: &str) -> Result<Output, Failed> {
    Ok(netpolicy(words).output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The environment variable that marks the processes started by these tests, and their descendants: another
/// program may create labs and namespaces at the same time. Its value is the test program's pid.
const MARK: &str = "NETPOLICY_TEST_OURS";

/// Returns the running processes that these tests started. Processes are enough to check, because an unnamed
/// namespace disappears with its last process.
fn ours() -> Result<BTreeSet<Pid>, Failed> {
    let mark = format!("{MARK}={}", std::process::id());
    let mut ours = BTreeSet::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes()) {
            ours.insert(Pid(pid));
        }
    }
    Ok(ours)
}

/// A running `netpolicy lab`, with the pids that it prints.
struct Running {
    child: Child,
    init: Pid,
    server: Pid,
}

impl Running {
    fn start() -> Result<Self, Failed> {
        let mut child = netpolicy("lab").stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let mut printed = String::new();
        for line in stdout.lines() {
            printed.push_str(&line?);
            printed.push('\n');
            if printed.contains("nsenter") {
                break;
            }
        }
        let after = |words: &str| {
            let rest = printed.split_once(words).map(|(_, rest)| rest)?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok().map(Pid)
        };
        let (init, server) = (after("--netns pid:"), after("attach "));
        let (Some(init), Some(server)) = (init, server) else {
            return Err(format!("it printed {printed:?}").into());
        };
        Ok(Self { child, init, server })
    }

    fn signal(&self, signal: Signal) -> Result<(), Failed> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        Ok(kill_process(pid.ok_or("no pid")?, signal)?)
    }

    /// Waits until the lab and everything that it created are gone; returns its exit code.
    fn gone(mut self) -> Result<Option<i32>, Failed> {
        let status = self.child.wait()?;
        let left = || [self.init, self.server].into_iter().filter(|pid| is_alive(*pid)).collect::<Vec<_>>();
        eventually("the processes no longer exist", || left().is_empty())?;
        Ok(status.code())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // The process may have exited already.
        let _ = self.child.wait();
    }
}

/// Whether the process exists and is not a zombie.
fn is_alive(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

fn eventually(what: &str, is_so: impl Fn() -> bool) -> Result<(), Failed> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(20) {
        if is_so() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(format!("{what}: not within 20 s").into())
}

/// Runs `body`, and checks that it leaves no process behind, and therefore no namespace.
fn leaves_nothing<T>(body: impl FnOnce() -> Result<T, Failed>) -> Result<T, Failed> {
    let before = ours()?;
    assert!(before.is_empty(), "left by the previous test: {before:?}");
    let value = body()?;
    eventually("the started processes no longer exist", || ours().is_ok_and(|left| left.is_empty()))?;
    Ok(value)
}

/// Checks that the mark finds the processes that a lab starts.
fn marks_what_it_starts() -> Result<(), Failed> {
    leaves_nothing(|| {
        let lab = Running::start()?;
        let ours = ours()?;
        assert!(ours.contains(&lab.init) && ours.contains(&lab.server), "{ours:?}");
        lab.signal(Signal::TERM)?;
        assert_eq!(lab.gone()?, Some(0));
        Ok(())
    })
}

fn command_on_client() -> Result<(), Failed> {
    leaves_nothing(|| {
        let mut command = netpolicy("lab --queues 2 --");
        let output = command.args(["sh", "-c", "cat /proc/net/dev; exit 7"]).output()?;
        assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("veth-client"), "{}", text(&output.stdout));
        Ok(())
    })
}

fn for_programs() -> Result<(), Failed> {
    leaves_nothing(|| {
        let mut child =
            netpolicy("-o json lab --queues 2").stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut printed = serde_json::Deserializer::from_reader(child.stdout.take().ok_or("no output")?);
        let printed = Value::deserialize(&mut printed)?;
        assert_eq!((&printed["schema"], &printed["kind"]), (&"netpolicy/v1".into(), &"lab".into()));
        let (server, client) = (&printed["data"]["server"], &printed["data"]["client"]);
        assert!(server["netns"].as_str().is_some_and(|netns| netns.starts_with("pid:")), "{server}");
        assert_eq!(server["device"], "veth-server");
        let netns = client["netns"].as_str().ok_or("no client")?;
        let seen =
            Command::new("nsenter").arg(format!("--net={netns}")).args(["ip", "-br", "link"]).output()?;
        assert!(text(&seen.stdout).contains("veth-client"), "{}", text(&seen.stderr));
        let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
        kill_process(pid.ok_or("no pid")?, Signal::INT)?;
        assert_eq!(child.wait()?.code(), Some(0));
        Ok(())
    })
}

/// Runs a bench over loopback as an ordinary user: only the user's own processes are involved, so root is not
/// needed.
fn as_nobody() -> Result<(), Failed> {
    const NOBODY: u32 = 65_534;
    leaves_nothing(|| {
        // Copy the programs to a directory where the user `nobody` may execute them.
        let scratch = Scratch::new("as-nobody")?;
        let copy = testkit::programs::copy_all(scratch.directory())?;
        let mut command = Command::new(&copy);
        let words = "-o json bench tcp-rr --loopback --mode base,userbusy --rate max --seconds 200ms --warmup 50ms --repeats 1";
        command.args(words.split(' ')).env(MARK, std::process::id().to_string()).current_dir("/");
        let output = command.uid(NOBODY).gid(NOBODY).stdin(Stdio::null()).output()?;
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let printed: Value = serde_json::from_slice(&output.stdout)?;
        assert!(printed.to_string().contains("userbusy"), "{printed}");
        Ok(())
    })
}

/// The benches' server waits with the same system call as the load generator.
fn exact_wait() -> Result<(), Failed> {
    let mut command = Command::new("timeout");
    command.args(["2", "strace", "-f", "-e", "trace=epoll_wait,epoll_pwait,epoll_pwait2"]);
    command.arg(testkit::programs::netpolicy());
    let words = "bench serve --listen 127.0.0.1:0 --wait-at-most 300us";
    let output = command.args(words.split(' ')).stdin(Stdio::null()).output()?;
    let traced = text(&output.stderr);
    assert!(traced.contains("tv_nsec=300000}"), "{traced}");
    assert!(!traced.contains("epoll_pwait(") && !traced.contains("epoll_wait("), "{traced}");
    Ok(())
}

/// Checks which clients are compared and how many comparisons are made, but not whether the measurements
/// agree, because the machine may be busy.
fn selfcheck() -> Result<(), Failed> {
    let scratch = Scratch::new("selfcheck")?;
    for installed in [true, false] {
        let output = leaves_nothing(|| {
            let mut command = netpolicy("-o json bench selfcheck --short");
            if !installed {
                command.env("PATH", scratch.path("no-programs"));
            }
            Ok(command.output()?)
        })?;
        let said = text(&output.stderr);
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 1 | 3 | 6)), "{code:?}: {said}");
        let document: Value =
            serde_json::from_slice(&output.stdout).map_err(|error| format!("{error}: {said}"))?;
        assert_eq!(document["kind"], "bench-selfcheck");
        let data = &document["data"];
        let rows = data["clients"].as_array().ok_or("no clients")?;
        let names: Vec<&str> = rows.iter().filter_map(|row| row["client"].as_str()).collect();
        let not_made = data["not_made"].as_array().ok_or("no list")?;
        if installed {
            assert_eq!(names, ["generator, spinning", "generator, asleep", "independent"], "{data}");
        } else {
            assert_eq!(names, ["generator, spinning", "generator, asleep"], "{data}");
            assert_eq!(not_made.len(), 3, "{not_made:?}");
            assert!(code != Some(0) && code != Some(3), "{code:?}: {said}");
        }
        for row in rows {
            let number = |key: &str| row[key].as_f64().ok_or_else(|| format!("{key}: {row}"));
            let first = |key: &str| row[key][0].as_f64().ok_or_else(|| format!("{key}: {row}"));
            assert!(number("rate")? > 0.0 && first("late_us")? >= 0.0, "{row}");
            // The server works for 5 us per request. A response time counted from when the request was due is
            // never shorter than one counted from when it was sent.
            assert!(
                first("from_send_us")? >= 5.0 && first("from_due_us")? >= first("from_send_us")?,
                "{row}"
            );
            assert!(first("server_us").is_ok() || row["server_us"][1].as_f64().is_some(), "{row}");
        }
        let comparisons = data["comparisons"].as_array().ok_or("no comparisons")?;
        if data["disturbed"] == true {
            assert!(comparisons.iter().all(|one| one["verdict"] != "holds"), "{comparisons:?}");
        }
        let of = |figure: &str| comparisons.iter().filter(|one| one["figure"] == figure).count();
        assert_eq!(of("p50 from send"), names.len(), "each client against the wire");
        assert_eq!(of("server CPU per answer (run time)"), usize::from(installed));
    }
    Ok(())
}

fn ended(signal: Signal, code: Option<i32>) -> Result<(), Failed> {
    leaves_nothing(|| {
        let lab = Running::start()?;
        lab.signal(signal)?;
        assert_eq!(lab.gone()?, code);
        Ok(())
    })
}

fn killed_beside_another() -> Result<(), Failed> {
    leaves_nothing(|| {
        let (one, other) = (Running::start()?, Running::start()?);
        one.signal(Signal::KILL)?;
        assert_eq!(one.gone()?, None);
        assert!(is_alive(other.init) && is_alive(other.server), "the other lab stays");
        other.signal(Signal::TERM)?;
        assert_eq!(other.gone()?, Some(0));
        Ok(())
    })
}

/// The evidence that `-o json` prints.
fn evidence(output: &Output) -> Result<Vec<model::Evidence>, Failed> {
    let document: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!((&document["schema"], &document["kind"]), (&"netpolicy/v1".into(), &"bench".into()));
    Ok(serde_json::from_value(document["data"]["evidence"].clone())?)
}

fn measured() -> Result<(), Failed> {
    let output = leaves_nothing(|| {
        output(
            "-o json bench memcached --mode base,suspend200 --max --seconds 1 --warmup 100ms --repeats 3 --depth 16",
        )
    })?;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let runs = evidence(&output)?;
    assert_eq!(runs.len(), 6);
    let shares = |label| {
        let labelled = runs.iter().filter(move |run| run.label == label);
        labelled.map(|run| run.delivered.as_ref().and_then(model::Delivered::application_share))
    };
    // On a busy machine, a sample may be taken while the server is not running, and then has no share.
    let base: Vec<_> = shares("base").flatten().collect();
    assert!(
        !base.is_empty() && base.iter().all(|share| *share == 0.0),
        "no application polls without the setting: {base:?}"
    );
    assert!(
        shares("suspend200").any(|share| share > Some(0.8)),
        "{:?}",
        shares("suspend200").collect::<Vec<_>>()
    );
    // At depth 16, one poll serves many requests. On a busy machine, a sample may have almost no requests or
    // interrupts.
    let interrupts: Vec<_> = runs.iter().map(|run| (&run.label, run.interrupts_per_request)).collect();
    let of_base = |(label, count): &(&String, Option<f64>)| {
        *label == "base" && *count > Some(0.0) && *count <= Some(2.0)
    };
    assert!(interrupts.iter().any(of_base), "only interrupts deliver packets: {interrupts:?}");
    for run in &runs {
        assert_eq!((run.load, &run.void), (OfferedLoad::Max, &None));
        let (cpu, counters) = (run.cpu.ok_or("no CPU use")?, run.counters.as_ref().ok_or("no counters")?);
        assert!(cpu.busy() > 0.0 && counters.softirqs["NET_RX"] > 0.0, "{cpu:?} {counters:?}");
        assert!(counters.napi_polls.is_some() && counters.busy_poll_rx_packets.is_some(), "{counters:?}");
        assert!(run.interrupts_per_request.is_some_and(|count| count >= 0.0), "none were counted");
        assert!(run.cycles_per_request.is_none_or(|cycles| cycles > 0.0), "an absent value is not zero");
    }
    Ok(())
}

fn whole_matrix() -> Result<(), Failed> {
    let scratch = Scratch::new("matrix")?;
    let (json, html) = (scratch.path("evidence.json"), scratch.path("report.html"));
    let output = leaves_nothing(|| {
        let mut command =
            netpolicy("bench memcached --matrix --rate max --seconds 200ms --warmup 50ms --repeats 1 --json");
        Ok(command.arg(&json).arg("--report").arg(&html).output()?)
    })?;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(&html)?;
    let results: Value = serde_json::from_str(&std::fs::read_to_string(&json)?)?;
    let table = text(&output.stdout);
    let configurations = model::DeliveryMode::DOCUMENT.map(|mode| mode.to_string());
    for label in configurations.iter().map(|label| if label == "interrupt" { "base" } else { label }) {
        let ran =
            results["evidence"].as_array().is_some_and(|runs| runs.iter().any(|run| run["label"] == label));
        assert!(ran && table.lines().any(|line| line == label) && page.contains(label), "{label}\n{table}");
    }
    Ok(())
}

fn interrupted() -> Result<(), Failed> {
    leaves_nothing(|| {
        let words = "bench memcached --mode base,suspend20 --max --seconds 300ms --warmup 50ms --repeats 500";
        let mut child = netpolicy(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stderr.take().ok_or("no standard error")?).lines();
        lines.next().ok_or("it says nothing")??; // The first run has begun.
        std::thread::sleep(Duration::from_millis(1_500));
        let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
        kill_process(pid.ok_or("no pid")?, Signal::INT)?;
        let asked = Instant::now();
        let output = child.wait_with_output()?;
        let said: Vec<String> = lines.collect::<Result<_, _>>()?;
        assert_eq!(output.status.code(), Some(130), "{said:?}");
        assert!(asked.elapsed() < Duration::from_secs(15), "it ends soon: {:?}", asked.elapsed());
        assert!(said.iter().any(|line| line.contains("of 1000 runs were made")), "{said:?}");
        assert!(text(&output.stdout).starts_with("base\n"), "{}", text(&output.stdout));
        Ok(())
    })
}

/// With a timer of a second, no request arrives within a window of a tenth of a second.
fn resumed() -> Result<(), Failed> {
    const RUNS: usize = 2 * 2 * 4;
    let scratch = Scratch::new("resumed")?;
    let (json, log) = (scratch.path("evidence.json"), scratch.path("evidence.json.runs"));
    let bench = |repeats: &str| {
        let words = "bench memcached --mode base,suspend20 --rate 5%,max --seconds 200ms --warmup 50ms --sleep --repeats";
        let mut command = netpolicy(words);
        command.arg(repeats).arg("--json").arg(&json);
        command
    };
    let made = || std::fs::read_to_string(&log).unwrap_or_default().lines().count().saturating_sub(1);
    leaves_nothing(|| {
        let mut child = bench("4").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        eventually("the bench has made some runs", || made() >= 3)?;
        child.kill()?;
        child.wait()?;
        Ok(())
    })?;
    // The kill may have truncated the last line of the log: append such a line.
    let mut written = std::fs::OpenOptions::new().append(true).open(&log)?;
    written.write_all(b"{\"schema\":\"netpolicy/v1\",\"la")?;
    let void_before = std::fs::read_to_string(&log)?.matches("\"void\":\"").count();
    let forgotten = bench("4").output()?;
    assert_eq!(forgotten.status.code(), Some(2), "{}", text(&forgotten.stderr));
    assert!(text(&forgotten.stderr).contains("add --resume"), "{}", text(&forgotten.stderr));
    let other = bench("5").arg("--resume").output()?;
    assert_eq!(other.status.code(), Some(2), "{}", text(&other.stderr));
    assert!(text(&other.stderr).contains("differ in --repeats or --seed"), "{}", text(&other.stderr));
    let runs_in = |path: &Path| -> Result<Vec<Value>, Failed> {
        let results: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        Ok(results["evidence"].as_array().cloned().unwrap_or_default())
    };
    let resumed = bench("4").arg("--resume").output()?;
    assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed.stderr));
    let runs = runs_in(&json)?;
    assert_eq!((runs.len(), log.exists()), (RUNS + void_before, false), "void runs are repeated");
    let cells = |counting: bool| {
        let runs = runs.iter().filter(|run| !counting || run["void"].is_null());
        let names = runs.map(|run| format!("{} {} {}", run["label"], run["load"], run["workload"]));
        names.collect::<BTreeSet<String>>().len()
    };
    assert_eq!(cells(false), RUNS);
    assert!(text(&resumed.stdout).contains("Loads are shares of "), "{}", text(&resumed.stdout));
    // Resuming a complete experiment repeats only its void runs.
    let again = bench("4").arg("--resume").output()?;
    let expected = runs.len() + RUNS - cells(true);
    assert_eq!((again.status.code(), runs_in(&json)?.len()), (Some(0), expected), "{}", text(&again.stderr));
    Ok(())
}

fn nothing_counts() -> Result<(), Failed> {
    let output = leaves_nothing(|| {
        output(
            "bench memcached --mode defer1000000 --rate 1K --keys 32 --short --seconds 100ms --warmup 10ms --repeats 1",
        )
    })?;
    let (table, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{table}{said}");
    assert!(table.contains("1 of 1 runs void"), "{table}");
    assert!(table.contains("void: defer1000000 at 1K: the server answered none of "), "{table}");
    assert!(said.contains("No run counts."), "{said}");
    Ok(())
}

fn own_server() -> Result<(), Failed> {
    leaves_nothing(|| {
        let mut command = netpolicy("lab --");
        command.arg(testkit::programs::netpolicy());
        let words =
            "-o json bench memcached --address 192.0.2.1:11211 --rate 2K --seconds 300ms --repeats 1 --sleep";
        let output = command.args(words.split(' ')).output()?;
        let runs = evidence(&output)?;
        assert_eq!((runs.len(), runs[0].label.as_str()), (1, "as it is"));
        assert!(runs[0].requests.answered > 0 && runs[0].cpu.is_none() && runs[0].delivered.is_none());
        Ok(())
    })
}

fn unwritable() -> Result<(), Failed> {
    let output = output("bench memcached --matrix --short --report /nowhere/report.html")?;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nowhere/report.html"), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty());
    Ok(())
}
