//! Tests measurements in a guest whose clock is stepped forwards and backwards.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use serde_json::Value;
use testkit::operator::{Operator, at_work, waited_for};
use testkit::scratch::Scratch;
use testkit::{Need, test};

use crate::requests::while_asked_in_turn;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached, Need::OwnMachine];
    vec![
        test("stepped/a_watch_measures_on_while_the_clock_is_set", NEEDS, watch),
        test("stepped/settings_are_compared_while_the_clock_is_set", NEEDS, compare),
        test("stepped/a_daemon_measures_on_and_tries_nothing_early_while_the_clock_is_set", NEEDS, daemon),
    ]
}

const DAY: i64 = 86_400;

/// The clock's offsets, in seconds.
const STEPS: [i64; 4] = [3 * DAY, -2 * DAY, 3_600, -1];

/// The machine's clock. Dropping this corrects it.
struct Clock {
    wall: SystemTime,
    began: Instant,
}

impl Clock {
    fn new() -> Self {
        Self { wall: SystemTime::now(), began: Instant::now() }
    }

    /// Sets the clock to the right time plus this offset in seconds.
    fn is_off_by(&self, seconds: i64) -> Result<(), Failed> {
        let right = (self.wall + self.began.elapsed()).duration_since(SystemTime::UNIX_EPOCH)?;
        let at = i64::try_from(right.as_secs())? + seconds;
        let set =
            Command::new("date").args(["-u", "-s", &format!("@{at}")]).stdout(Stdio::null()).status()?;
        if set.success() { Ok(()) } else { Err(format!("date: {set}").into()) }
    }

    /// Sets the clock repeatedly while `body` runs, and corrects it afterwards.
    fn is_set_during<T>(
        &self,
        every: Duration,
        body: impl FnOnce() -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        let (ended, ends) = std::sync::mpsc::channel::<()>();
        let (result, steps) = std::thread::scope(|scope| {
            let setting = scope.spawn(move || {
                let mut steps = 0_usize;
                while ends.recv_timeout(every) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    self.is_off_by(STEPS[steps % STEPS.len()]).map_err(|failed| format!("{failed:?}"))?;
                    steps += 1;
                }
                Ok::<_, String>(steps)
            });
            let result = body();
            drop(ended);
            Ok::<_, Failed>((result, setting.join().map_err(|_| "the clock's thread panicked")??))
        })?;
        self.is_off_by(0)?;
        assert!(steps >= STEPS.len(), "the clock was set only {steps} times");
        result
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        let _ = self.is_off_by(0);
    }
}

fn watch() -> Result<(), Failed> {
    const WINDOWS: usize = 12;
    let operator = Operator::new("stepped-watch", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let scratch = Scratch::new("stepped")?;
    let record = scratch.path("record.jsonl");
    let (name, seconds) = (record.display().to_string(), WINDOWS.to_string());
    let clock = Clock::new();
    let said = while_asked_in_turn(&operator, || {
        clock.is_set_during(Duration::from_secs(2), || {
            operator.runs(
                &[
                    "-o",
                    "jsonl",
                    "watch",
                    "--port",
                    "11211",
                    "--seconds",
                    &seconds,
                    "--sample",
                    "500ms",
                    "--record",
                    &name,
                ],
                0,
            )
        })
    })?;
    let documents: Vec<Value> = said.data.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let windows = documents.iter().filter(|document| document["kind"] == "watch-window").count();
    // A slow guest may miss some windows. If `watch` counted steps of the clock, there would be no window, or
    // windows without end.
    assert!((1..=WINDOWS).contains(&windows), "{windows} windows");
    let report = &documents.last().ok_or("a report")?["data"];
    assert!(report["requests"].as_u64().is_some_and(|requests| requests > 20), "{report}");
    let measured = report["measured_seconds"].as_f64().ok_or("how long")?;
    assert!(measured > 0.0 && measured < 60.0, "{report}");
    let p50 = report["response"]["p50"]["estimate"].as_f64().ok_or("a median")?;
    assert!(p50 > 0.0 && p50 < 1e9, "a second is far from any response: {report}");
    let rules: Vec<&str> =
        report["findings"].as_array().into_iter().flatten().filter_map(|one| one["rule"].as_str()).collect();
    assert!(!rules.contains(&"live-hangs"), "{report}");
    let recorded = std::fs::read_to_string(&record)?;
    let mut lines = recorded.lines().map(serde_json::from_str::<Value>);
    let started = lines.next().ok_or("a head")??["started"].as_u64().ok_or("when it began")?;
    let ends: Vec<u64> = lines
        .map(|line| Ok(line?["at"].as_u64().ok_or("when a window ended")? - started))
        .collect::<Result<_, Failed>>()?;
    assert!(ends.is_sorted() && ends.last().is_some_and(|last| *last < 120), "{ends:?}");
    let shown = operator.runs(&["show", "--processes", "none"], 0)?.words;
    assert!(shown.contains("port 11211: p50 "), "{shown}");
    Ok(())
}

fn compare() -> Result<(), Failed> {
    let operator = Operator::new("stepped-compare", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.host()?;
    let clock = Clock::new();
    let compare = [
        "-o",
        "json",
        "compare",
        "--port",
        "11211",
        "--b",
        "defer50,gro_flush_timeout=20ms",
        "--seconds",
        "20",
    ];
    let said = while_asked_in_turn(&operator, || {
        clock.is_set_during(Duration::from_secs(1), || operator.runs(&compare, 0))
    })?;
    assert_eq!(operator.host()?, before);
    let report: Value = serde_json::from_str(&said.data)?;
    // A step of the clock must neither end the comparison early nor prolong it by a day. An emulated machine
    // may be too slow for a verdict.
    let seconds = report["data"]["seconds"].as_f64().ok_or("how long")?;
    assert!(seconds < 60.0, "{report}");
    assert!(report["data"]["ended"] == "decided" || seconds > 15.0, "{report}");
    assert_ne!(report["data"]["comparisons"][0]["verdict"], "better", "{report}");
    let windows = report["data"]["rounds"].as_u64().unwrap_or(0)
        + report["data"]["void"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|one| one["rounds"].as_u64())
            .sum::<u64>();
    assert!(windows > 0, "{report}");
    let is_ours =
        |one: &Value| matches!(one["reason"].as_str(), Some("machine" | "rates" | "requests" | "estimator"));
    assert!(report["data"]["void"].as_array().into_iter().flatten().all(is_ours), "{report}");
    Ok(())
}

/// Tests a service that misses its goal: the daemon tries modes only after an hour of missing it.
fn daemon() -> Result<(), Failed> {
    let policy = "[daemon]\nsample = \"500ms\"\n[service.cache]\nmatch = { port = 11211 }\npolicy = \"latency\"\n\
                  goal = { p99 = \"1us\", on_missed = \"search\", for = \"3600s\" }\n";
    let operator = Operator::new("stepped-daemon", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let clock = Clock::new();
    let _daemon = at_work(&operator, policy)?;
    let service = || -> Result<Value, Failed> {
        let output = operator.netpolicy(&["-o", "json", "status"]).output()?;
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let requests = said["data"]["requests"].as_array().ok_or("requests")?;
        let found = requests.iter().find(|request| request["target"] == "service cache");
        Ok(found.ok_or("the service")?.clone())
    };
    while_asked_in_turn(&operator, || {
        for step in [0].into_iter().chain(STEPS) {
            clock.is_off_by(step)?;
            let measured_at = |said: &Value| said["measured"]["at_unix_micros"].as_u64();
            let was = measured_at(&service()?);
            let said = waited_for("windows after the clock was set", || {
                let said = service()?;
                Ok((measured_at(&said).is_some() && measured_at(&said) != was).then_some(said))
            })?;
            let at = u128::from(measured_at(&said).ok_or("when")?);
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
            assert!(now.abs_diff(at) < 120_000_000, "off by {step} s: {now} {said}");
            let p50 = said.pointer("/measured/response/p50/estimate").and_then(Value::as_f64);
            assert!(p50.is_none_or(|p50| p50 > 0.0 && p50 < 1e9), "off by {step} s: {said}");
            // By the monotonic clock, no hour has passed.
            assert_eq!(said.pointer("/search/tries_today").and_then(Value::as_u64).unwrap_or(0), 0, "{said}");
        }
        Ok(())
    })?;
    let said = operator.said()?;
    assert!(!said.contains("is tried in place of"), "{said}");
    Ok(())
}
