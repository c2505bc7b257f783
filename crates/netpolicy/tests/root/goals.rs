//! Tests that the daemon measures services with a goal: a real memcached under load in a lab.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use serde_json::Value;
use testkit::operator::{Operator, Started, at_work, caught, waited_for};
use testkit::{Need, test};

use crate::requests::{connect, while_asked_in_turn};
use crate::watched::{is_loaded, links, programs};

pub(crate) fn tests() -> Vec<Trial> {
    const MEMCACHED: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached];
    vec![
        test("goals/the_metrics_of_a_service_count_each_request_once", MEMCACHED, counted),
        test(
            "goals/the_status_says_how_long_requests_take_and_how_far_the_mode_is_engaged",
            MEMCACHED,
            status,
        ),
        test("goals/a_goal_that_is_missed_is_a_finding_until_it_is_another", MEMCACHED, missed),
        test("goals/a_daemon_that_is_killed_leaves_nothing_attached", MEMCACHED, killed),
        test("goals/where_measuring_is_off_there_is_no_thread_for_it", MEMCACHED, off),
        test("goals/a_kernel_that_refuses_is_reported_once", MEMCACHED, refused),
    ]
}

/// Returns a policy file for a service on memcached's port with this p99 goal. `sample` is how much of each
/// second to measure.
fn policy(goal: &str, sample: &str) -> String {
    format!(
        "[daemon]\nsample = \"{sample}\"\n[service.cache]\nmatch = {{ port = 11211 }}\npolicy = \"bulk\"\n\
         delivery = \"defer50\"\ngoal = {{ p99 = \"{goal}\" }}\n"
    )
}

/// Reads the daemon's page of metrics.
pub(crate) fn page(operator: &Operator) -> Result<String, Failed> {
    let mut stream = UnixStream::connect(operator.state().join("metrics"))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}

/// Returns the value of a service's sample on the page.
pub(crate) fn sample(page: &str, name: &str, labels: &str) -> Option<u64> {
    let sample = format!("{name}{{target=\"service cache\"{labels}}} ");
    page.lines().find_map(|line| line.strip_prefix(&sample)?.parse().ok())
}

fn windows(page: &str) -> u64 {
    sample(page, "netpolicy_live_windows_total", "").unwrap_or(0)
}

fn ask(connection: &mut BufReader<TcpStream>, requests: u64) -> Result<(), Failed> {
    let mut answer = String::new();
    for _ in 0..requests {
        connection.get_mut().write_all(b"get nothing\r\n")?;
        answer.clear();
        connection.read_line(&mut answer)?;
        assert_eq!(answer, "END\r\n");
    }
    Ok(())
}

/// Returns the ids of the daemon's current BPF links. Each window has new ids.
fn live_links(pid: u32) -> Result<BTreeSet<u32>, Failed> {
    links(pid, &live_programs(pid)?)
}

/// Returns the BPF programs that the process uses to measure.
fn live_programs(pid: u32) -> Result<BTreeSet<u32>, Failed> {
    let held = programs(pid)?;
    let live = libbpf_rs::query::ProgInfoIter::default()
        .filter(|program| program.name.to_string_lossy().starts_with("live_"));
    Ok(live.map(|program| program.id).filter(|id| held.contains(id)).collect())
}

/// Tests that requests that arrive during one window are counted once. The ids of the BPF links tell the
/// windows apart.
fn counted() -> Result<(), Failed> {
    const REQUESTS: u64 = 2_000;
    /// How long a window may take to open after its programs are attached, on a busy machine; see
    /// [`linux::bpf::live::LiveMeter::GUARD`].
    const OPENS_WITHIN: Duration = Duration::from_millis(50);
    const ATTEMPTS: usize = 8;
    let operator = Operator::new("goals-counted", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let daemon = at_work(&operator, &policy("1s", "1s"))?;
    let pid = daemon.child.id();
    let mut connection = BufReader::new(connect(&operator.lab, 11_211)?);
    ask(&mut connection, 10)?;
    waited_for("the first window", || Ok((windows(&page(&operator)?) > 0).then_some(())))?;
    let mut few = None;
    for _ in 0..ATTEMPTS {
        caught("a moment between two windows", || Ok(live_links(pid)?.is_empty().then_some(())))?;
        let of_window =
            caught("an open window", || Ok(Some(live_links(pid)?).filter(|links| links.len() >= 4)))?;
        std::thread::sleep(OPENS_WITHIN);
        let before = page(&operator)?;
        ask(&mut connection, REQUESTS)?;
        if !live_links(pid)?.is_superset(&of_window) {
            continue; // The machine was too busy to send so many requests in one window.
        }
        let last = windows(&before);
        let after = waited_for("the end of the window", || {
            let page = page(&operator)?;
            let ended = live_links(pid)?.is_disjoint(&of_window);
            Ok((ended && windows(&page) > last).then_some(page))
        })?;
        let difference = |name: &str, labels: &str| {
            Some(sample(&after, name, labels)? - sample(&before, name, labels).unwrap_or(0))
        };
        let requests = difference("netpolicy_live_requests_total", "").ok_or("a counter of requests")?;
        assert!(requests <= REQUESTS, "{REQUESTS} requests were counted more than once: {after}");
        if requests < REQUESTS {
            continue; // The window opened late, or requests were missed on a busy machine.
        }
        for histogram in ["response", "wakeup", "service"] {
            let name = format!("netpolicy_live_{histogram}_seconds");
            let count = difference(&format!("{name}_count"), "").ok_or("a histogram")?;
            // A request has no response time if the meter no longer remembers the poll that delivered it.
            assert!(count <= REQUESTS && (REQUESTS - count) * 100 <= REQUESTS, "{name}: {count}: {after}");
            let all = difference(&format!("{name}_bucket"), ",le=\"+Inf\"");
            assert_eq!(all, Some(count), "{name}: {after}");
        }
        let by =
            |who: &str| difference("netpolicy_live_packets_total", &format!(",by=\"{who}\"")).unwrap_or(0);
        let packets = by("interrupt") + by("timer") + by("application") + by("kthread");
        // A few packets arrive on paths where the kernel runs no BPF program (`unseen` in a window's counts).
        if packets * 100 >= REQUESTS * 99 {
            return Ok(());
        }
        few = Some(packets);
    }
    Err(format!(
        "in {ATTEMPTS} attempts, no window counted all {REQUESTS} requests and the packets that brought them ({few:?})"
    )
    .into())
}

/// Returns the daemon's status of the service.
fn said_of_service(operator: &Operator) -> Result<Value, Failed> {
    let output = operator.netpolicy(&["-o", "json", "status"]).output()?;
    let said: Value = serde_json::from_slice(&output.stdout)?;
    let requests = said["data"]["requests"].as_array().ok_or("requests")?;
    let of_service = requests.iter().find(|request| request["target"] == "service cache");
    Ok(of_service.ok_or("the service")?.clone())
}

fn status() -> Result<(), Failed> {
    let operator = Operator::new("goals-status", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let _daemon = at_work(&operator, &policy("1s", "500ms"))?;
    let said = while_asked_in_turn(&operator, || {
        waited_for("percentiles that meet the goal", || {
            let said = said_of_service(&operator)?;
            let mut found = said["measured"]["found"].as_array().into_iter().flatten();
            let is_met = found.any(|rule| rule == "live-goal-met");
            Ok((is_met && said["measured"]["response"]["p99"].is_object()).then_some(said))
        })
    })?;
    let measured = &said["measured"];
    let at = |pointer: &str| measured.pointer(pointer).and_then(Value::as_f64);
    let (p50, p99) = (at("/response/p50/estimate"), at("/response/p99/estimate"));
    assert!(p50 > Some(1_000.0) && p99 >= p50, "{said}");
    assert!(at("/wakeup/p50/estimate").is_some() && at("/cost/service") > Some(500.0), "{said}");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let measured_at = u128::from(measured["at_unix_micros"].as_u64().ok_or("when")?);
    assert!(now.abs_diff(measured_at) < 60_000_000, "{now} {said}");
    // With one client, the timer of defer50 delivers most packets.
    assert!(said["engaged"].as_f64().is_some_and(|share| (0.5..=1.0).contains(&share)), "{said}");
    let text = operator.runs(&["status"], 0)?.data;
    assert!(text.contains("MEASURED") && text.contains("s ago"), "{text}");
    Ok(())
}

fn missed() -> Result<(), Failed> {
    let operator = Operator::new("goals-missed", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let _daemon = at_work(&operator, &policy("1us", "900ms"))?;
    let is_found = |rule: &str| -> Result<bool, Failed> {
        let output = operator.netpolicy(&["-o", "json", "status"]).output()?;
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let findings = said["data"]["findings"].as_array().ok_or("findings")?;
        Ok(findings.iter().any(|finding| finding["rule"] == rule))
    };
    while_asked_in_turn(&operator, || {
        waited_for("the finding", || Ok(is_found("live-goal-missed")?.then_some(())))?;
        operator.asks(&policy("2s", "900ms"))?;
        waited_for("no finding", || Ok((!is_found("live-goal-missed")?).then_some(())))
    })?;
    let said = operator.said()?;
    assert_eq!(said.matches("the goal of p99 is missed").count(), 1, "{said}");
    Ok(())
}

fn killed() -> Result<(), Failed> {
    let operator = Operator::new("goals-killed", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let mut daemon = at_work(&operator, &policy("1s", "900ms"))?;
    let pid = daemon.child.id();
    let found = waited_for("the measurement's programs to be attached", || {
        let programs = live_programs(pid)?;
        Ok((links(pid, &programs)?.len() >= 4).then_some(programs))
    })?;
    caught("a moment between two windows", || Ok(links(pid, &found)?.is_empty().then_some(())))?;
    caught("the next window", || Ok((links(pid, &found)?.len() >= 4).then_some(())))?;
    daemon.child.kill()?; // SIGKILL
    daemon.child.wait()?;
    waited_for("the measurement's programs to be detached", || Ok((!is_loaded(&found)).then_some(())))
}

/// Returns whether the daemon has started its measuring thread.
fn measures(daemon: &Started) -> Result<bool, Failed> {
    let mut threads = std::fs::read_dir(format!("/proc/{}/task", daemon.child.id()))?.flatten();
    Ok(threads.any(|thread| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name == "netpolicy-live\n")
    }))
}

fn off() -> Result<(), Failed> {
    let operator = Operator::new("goals-off", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let daemon = at_work(&operator, &policy("1s", "20ms"))?;
    waited_for("the thread", || Ok(measures(&daemon)?.then_some(())))?;
    waited_for("a window", || Ok((windows(&page(&operator)?) > 0).then_some(())))?;
    operator.asks(&policy("1s", "off"))?;
    waited_for("its end", || Ok((!measures(&daemon)?).then_some(())))?;
    waited_for("a page without the measurement", || {
        Ok((!page(&operator)?.contains("netpolicy_live")).then_some(()))
    })?;
    operator.asks(&policy("1s", "20ms"))?;
    waited_for("the thread again", || Ok(measures(&daemon)?.then_some(())))
}

fn refused() -> Result<(), Failed> {
    let operator = Operator::new("goals-refused", 1)?;
    operator.asks(&policy("1s", "20ms"))?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let words = operator.file("refused-words", b"")?;
    let file = std::fs::OpenOptions::new().append(true).open(&words)?;
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", operator.lab.server_pid()));
    command.args(["setpriv", "--bounding-set", "-bpf,-perfmon,-sys_admin", "--inh-caps", "-all"]);
    let daemon = operator.netpolicy_here(&["daemon"]);
    command.arg(daemon.get_program()).args(daemon.get_args());
    let child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()?;
    let _daemon = Started { child };
    const SUMMARY: &str = "its response times cannot be measured";
    let said = || Ok::<_, Failed>(std::fs::read_to_string(&words)?);
    waited_for("the refusal", || Ok(said()?.contains(SUMMARY).then_some(())))?;
    // The daemon does not repeat the message in later rounds.
    std::thread::sleep(Duration::from_millis(3_000));
    let said = said()?;
    assert_eq!(said.matches(SUMMARY).count(), 1, "{said}");
    assert!(said.contains("load BPF programs live: Operation not permitted (EPERM)"), "{said}");
    Ok(())
}
