//! Measures the cost of comparing and guarding settings on a live memcached, and checks that the host is
//! always restored. `cargo bench -p netpolicy --bench judged`, as root; `-- PART` runs one part: `switch`,
//! `killed`, `stalled`, `harmless`, `slow`. A number after PART is the number of repetitions. `slow` runs
//! guards with one slow-sending client, then two, and so on; a second number is the number of clients to
//! start with. Everything happens in separate labs.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use apply::AtExit;
use latency::judge::{Alternation, Candidate};
use latency::live::{MeasuredService, ServiceSelection};
use linux::lab::{Lab, LabOptions, Memcached, MemcachedOptions, SERVER_ADDRESS, SERVER_DEVICE};
use linux::{Processes, observe};
use model::Chance;
use model::host::Device;
use rustix::process::{Pid, Signal, kill_process};
use session::{Session, Silent};
use tempfile::TempDir;

type Done<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PROGRAM: &str = env!("CARGO_BIN_EXE_netpolicy");
const PORT: u16 = 11_211;

/// The number of queues that the device has in the timed switches.
const QUEUES: u32 = 64;

/// The default number of repetitions of each part.
const SWITCHBACKS: usize = 1_000;
const KILLS: usize = 200;
const STALLS: usize = 20;
const GUARDS: usize = 50;
const SLOW: usize = 20;

/// The number of guards that run at the same time, each in a separate lab.
const AT_ONCE: usize = 2;

/// The number of connections, and the interval between the requests of each connection.
const CONNECTIONS: usize = 8;
const EVERY: Duration = Duration::from_millis(4);

/// The number of normal connections alongside slow-sending ones, and the pause of a slow sender before each
/// byte.
const WORKING: usize = 20;
const BETWEEN_BYTES: Duration = Duration::from_millis(500);

/// The maximum time to wait for an expected event.
const PATIENCE: Duration = Duration::from_secs(30);

/// The maximum time after its first switch at which a comparison is killed.
const KILLED_WITHIN: Duration = Duration::from_millis(2_500);

/// A deferral that is too short to affect the service.
const SLIGHT: &str = "[device.veth-server]\ndelivery = \"defer50\"\ngro_flush_timeout = \"10us\"\n";

/// A setting that affects no packet of these clients.
const HARMLESS: &str =
    "[device.veth-server]\npolicy = \"none\"\nsettings = { rx-udp-gro-forwarding = true }\n";

fn main() -> Done<()> {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    println!("Linux {release}, load average {}", load.split(' ').take(3).collect::<Vec<_>>().join(" "));
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let part = words.next();
    let times: Option<usize> = words.next().map(|number| number.parse()).transpose()?;
    let wanted = |name: &str| part.as_deref().is_none_or(|part| part == name);
    if wanted("switch") {
        switch(times.unwrap_or(SWITCHBACKS))?;
    }
    if wanted("killed") {
        killed(times.unwrap_or(KILLS))?;
    }
    if wanted("stalled") {
        stalled(times.unwrap_or(STALLS))?;
    }
    if wanted("harmless") {
        harmless(times.unwrap_or(GUARDS))?;
    }
    if wanted("slow") {
        let first = words.next().map(|number| number.parse()).transpose()?.unwrap_or(1);
        slow(times.unwrap_or(SLOW), first)?;
    }
    Ok(())
}

/// A memcached in a lab, with a journal and policy files.
struct Stage {
    lab: Lab,
    server: Memcached,
    scratch: TempDir,
}

impl Stage {
    fn new(name: &str, queues: u32) -> Done<Self> {
        let scratch = TempDir::with_prefix(format!("netpolicy-bench-{name}-"))?;
        std::fs::create_dir(scratch.path().join("policy.d"))?;
        let lab = Lab::new(&LabOptions::with_queues(queues))?;
        let server = lab.start_memcached(&MemcachedOptions::default())?;
        Ok(Self { lab, server, scratch })
    }

    fn asks(&self, text: &str) -> Done<PathBuf> {
        let path = self.scratch.path().join("policy.d/10-bench.toml");
        std::fs::write(&path, text)?;
        Ok(path)
    }

    fn netns(&self) -> String {
        format!("pid:{}", self.lab.server_pid())
    }

    fn netpolicy(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .arg(format!("--netns={}", self.netns()))
            .arg("--state-dir")
            .arg(self.scratch.path().join("state"));
        command.arg("--policy-dir").arg(self.scratch.path().join("policy.d")).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    /// Observes the devices, with all their settings.
    fn devices(&self) -> Done<Vec<Device>> {
        Ok(observe(self.lab.server(), &Processes::None)?.devices)
    }

    /// Runs a closure while memcached receives requests, and returns its result.
    fn while_asked<T>(&self, body: impl FnOnce() -> Done<T>) -> Done<T> {
        self.while_asked_by(CONNECTIONS, 0, body)
    }

    /// Runs a closure with this many normal and slow-sending connections, and returns its result.
    fn while_asked_by<T>(&self, working: usize, slow: usize, body: impl FnOnce() -> Done<T>) -> Done<T> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..working {
                scope.spawn(|| ask(&self.lab, &stop));
            }
            for _ in 0..slow {
                scope.spawn(|| ask_slowly(&self.lab, &stop));
            }
            let done = body();
            stop.store(true, Ordering::Relaxed);
            done
        })
    }
}

fn connect(lab: &Lab) -> Option<BufReader<TcpStream>> {
    let address = SocketAddr::new(SERVER_ADDRESS.into(), PORT);
    let stream = lab.client().run(|| TcpStream::connect(address)).ok()?.ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    Some(BufReader::new(stream))
}

/// Sends requests at fixed times, even if the last answer was late.
fn ask(lab: &Lab, stop: &AtomicBool) {
    let (mut due, mut connection, mut answer) = (Instant::now(), connect(lab), String::new());
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due = (due + EVERY).max(Instant::now());
        answer.clear();
        let asked = connection.as_mut().is_some_and(|open| {
            open.get_mut().write_all(b"get nothing\r\n").is_ok()
                && open.read_line(&mut answer).unwrap_or(0) > 0
        });
        if !asked {
            connection = connect(lab);
        }
    }
}

/// Sends a request byte by byte, waits for its answer, and repeats.
fn ask_slowly(lab: &Lab, stop: &AtomicBool) {
    let (mut connection, mut answer) = (connect(lab), String::new());
    for byte in b"get nothing\r\n".iter().cycle() {
        std::thread::sleep(BETWEEN_BYTES);
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let sent = connection.as_mut().is_some_and(|open| {
            open.get_mut().write_all(&[*byte]).is_ok()
                && (*byte != b'\n' || open.read_line(&mut answer).unwrap_or(0) > 0)
        });
        assert!(sent, "memcached answers slow clients, too");
    }
}

/// Polls a condition until it holds, and returns how long that took.
fn until(what: &str, mut is_so: impl FnMut() -> Done<bool>) -> Done<Duration> {
    let began = Instant::now();
    while !is_so()? {
        if began.elapsed() > PATIENCE {
            return Err(format!("waited {PATIENCE:?} for {what}, in vain").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(began.elapsed())
}

/// Returns the smallest duration that at least this percentage of the durations does not exceed.
fn quantile(sorted: &[f64], percent: usize) -> f64 {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// Alternates between the unchanged host and a delivery mode for all queues, and measures the switches.
fn switch(switchbacks: usize) -> Done<()> {
    let stage = Stage::new("switch", QUEUES)?;
    let file = stage.asks("[device.veth-server]\ndelivery = \"defer50\"\n")?;
    let session = Session {
        netns: Some(stage.netns()),
        state_dir: stage.scratch.path().join("state"),
        policy_dirs: vec![stage.scratch.path().join("policy.d")],
        ..Session::default()
    };
    let failed = |fault: session::Fault| fault.cause.to_string();
    let target = MeasuredService::of(&ServiceSelection::Port(PORT), &session, &Silent).map_err(failed)?;
    let candidates = vec![Candidate::current(), file.display().to_string().parse()?];
    let journal = session.journal().map_err(failed)?.owned_by_session(AtExit::RollBack)?;
    let turn = Duration::from_secs(60);
    let mut alternation =
        Alternation::plan(&candidates, &target, &session, &Silent, &journal, turn).map_err(failed)?;
    let before = stage.devices()?;
    let (mut there, mut back, mut written) = (Vec::new(), Vec::new(), 0);
    for _ in 0..switchbacks {
        let switched = alternation.switch_to(1).map_err(failed)?;
        written = switched.written;
        there.push(switched.took.as_secs_f64() * 1e3);
        back.push(alternation.switch_to(0).map_err(failed)?.took.as_secs_f64() * 1e3);
    }
    drop(alternation);
    let after = stage.devices()?;
    let differences = before.iter().zip(&after).filter(|(before, after)| before != after).count()
        + before.len().abs_diff(after.len());
    for (name, mut millis) in [("there", there), ("back", back)] {
        millis.sort_by(f64::total_cmp);
        println!(
            "a switch of {QUEUES} queues {name}, {written} settings: median {:.1} ms, p99 {:.1} ms",
            quantile(&millis, 50),
            quantile(&millis, 99)
        );
    }
    println!("after {switchbacks} switchbacks, {differences} of {} devices differ from before", before.len());
    Ok(())
}

/// Kills comparisons at random moments, and checks that the host is restored.
fn killed(kills: usize) -> Done<()> {
    let stage = Stage::new("killed", 2)?;
    stage.asks("")?;
    let mut chance = Chance::new(1);
    let (mut left, mut longest) = (0, Duration::ZERO);
    stage.while_asked(|| {
        let before = stage.devices()?;
        for _ in 0..kills {
            let compare = ["compare", "memcached", "--a", "defer50,gro_flush_timeout=80us", "--b", "defer20"];
            let mut compare = stage.netpolicy(&compare).stdout(Stdio::null()).spawn()?;
            until("a candidate in force", || Ok(stage.devices()? != before))?;
            std::thread::sleep(KILLED_WITHIN.mul_f64(chance.unit()));
            compare.kill()?; // SIGKILL
            compare.wait()?;
            match until("the host as it was", || Ok(stage.devices()? == before)) {
                Ok(took) => longest = longest.max(took),
                Err(_) => left += 1,
            }
        }
        Ok(())
    })?;
    println!(
        "after kill -9 at {kills} random moments of a comparison, {left} hosts differ from before; restored within {} ms at most",
        longest.as_millis()
    );
    Ok(())
}

/// Stops the server during guarded trials, and measures how long the settings take to be restored.
fn stalled(trials: usize) -> Done<()> {
    let stage = Stage::new("stalled", 1)?;
    stage.asks(SLIGHT)?;
    let pid = i32::try_from(stage.server.process().pid.0).ok().and_then(Pid::from_raw).ok_or("the server")?;
    let mut seconds = Vec::new();
    stage.while_asked(|| {
        let before = stage.devices()?;
        for _ in 0..trials {
            let guard = ["-o", "json", "try", "--guard", "p50=+1000%", "--seconds", "120", "--on", "11211"];
            let trial = stage.netpolicy(&guard).spawn()?;
            until("the change in force", || Ok(stage.devices()? != before))?;
            kill_process(pid, Signal::STOP)?;
            let began = Instant::now();
            let output = trial.wait_with_output();
            let took = began.elapsed();
            kill_process(pid, Signal::CONT)?;
            let said: serde_json::Value = serde_json::from_slice(&output?.stdout)?;
            if said["data"]["ruling"] != "stalled" || stage.devices()? != before {
                println!("not reverted as stalled: {}", said["data"]["ruling"]);
                continue;
            }
            seconds.push(took.as_secs_f64());
            std::thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    })?;
    seconds.sort_by(f64::total_cmp);
    println!(
        "a stopped server: {} of {trials} trials reverted, and the command ended, after {:.1} s (median), {:.1} s (the longest)",
        seconds.len(),
        quantile(&seconds, 50),
        quantile(&seconds, 100)
    );
    Ok(())
}

/// Guards a change that has no effect, on live traffic.
fn harmless(guards: usize) -> Done<()> {
    let each = guards.div_ceil(AT_ONCE);
    let rulings: Vec<Vec<String>> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..AT_ONCE)
            .map(|lane| scope.spawn(move || lane_of_guards(lane, CONNECTIONS, vec![0; each])))
            .collect();
        lanes.into_iter().map(|lane| lane.join().map_err(|_| "a lane panicked")?).collect::<Done<_>>()
    })?;
    let mut counted = std::collections::BTreeMap::<String, usize>::new();
    for ruling in rulings.into_iter().flatten() {
        *counted.entry(ruling).or_default() += 1;
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!(
        "{} guards of a change without effect, {SERVER_DEVICE}, limits of 15 %: {counted:?}; load average then {}",
        each * AT_ONCE,
        load.trim()
    );
    Ok(())
}

/// Guards a change that has no effect while slow-sending clients are active; each guard has one more such
/// client than the previous guard.
fn slow(guards: usize, first: usize) -> Done<()> {
    let beside: Vec<usize> = (first..first + guards).collect();
    let rulings = lane_of_guards(0, WORKING, beside.clone())?;
    let kept = rulings.iter().filter(|ruling| *ruling == "kept").count();
    println!("{kept} of {guards} guards kept their change despite slow-sending clients, {WORKING} working:");
    for (slow, ruling) in beside.iter().zip(rulings) {
        println!("  {slow:>2} slow: {ruling}");
    }
    Ok(())
}

/// Runs one guard for each number of slow-sending clients; returns the verdicts.
fn lane_of_guards(lane: usize, working: usize, slow: Vec<usize>) -> Done<Vec<String>> {
    let stage = Stage::new(&format!("harmless-{lane}"), 1)?;
    stage.asks(HARMLESS)?;
    let guard =
        ["-o", "json", "try", "--guard", "p50=+15%,p90=+15%,cpu=+15%", "--seconds", "20", "--on", "11211"];
    let mut rulings = Vec::new();
    for slow in slow {
        rulings.push(stage.while_asked_by(working, slow, || {
            let output = stage.netpolicy(&guard).output()?;
            let said: serde_json::Value = serde_json::from_slice(&output.stdout)?;
            let undone = stage.netpolicy(&["rollback"]).status()?;
            if said["data"]["kept"] == true && !undone.success() {
                return Err("a kept change was not rolled back".into());
            }
            Ok(said["data"]["ruling"].as_str().unwrap_or("none").to_owned())
        })?);
    }
    Ok(rulings)
}
