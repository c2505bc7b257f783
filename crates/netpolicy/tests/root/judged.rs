//! Tests the findings of `doctor`, `top` and `show` on response times. Each test creates the condition that
//! the finding describes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::lab::{MemcachedOptions, SERVER_ADDRESS, ServerProgram};
use model::{EmptyPolls, Nanoseconds, NapiKnob, Setting};
use serde_json::Value;
use testkit::operator::{Operator, at_work, somebody_else_sets, waited_for};
use testkit::{Need, repeated, test};

use crate::requests::{connect, while_asked_in_turn};

pub(crate) fn tests() -> Vec<Trial> {
    const MEMCACHED: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached];
    const PYTHON: &[Need] = &[Need::Root, Need::Bpf, Need::Python];
    vec![
        test(
            "judged/a_goal_missed_by_the_applications_own_time_says_that_no_policy_helps",
            PYTHON,
            repeated(service),
        ),
        test("judged/a_busy_service_whose_requests_wait_to_be_read_is_named", PYTHON, repeated(wakeup)),
        test("judged/packets_that_wait_for_a_long_timer_wait_in_the_ring", MEMCACHED, repeated(ring)),
        test("judged/a_worker_that_is_slower_than_the_others_is_named", PYTHON, repeated(worker)),
        test("judged/a_queue_that_is_slower_than_the_others_is_named", MEMCACHED, repeated(queue)),
        test("judged/a_request_that_is_never_answered_is_a_problem", PYTHON, repeated(hangs)),
        test(
            "judged/top_shows_percentiles_of_each_service_and_show_when_they_were_measured",
            MEMCACHED,
            shown,
        ),
    ]
}

/// A server that answers each line after the number of milliseconds in it, and never answers a negative
/// number. With `threads`, each connection has its own thread.
const SERVER: &str = r"
import select, socket, sys, threading, time
def answer(line, connection):
    ms = int(line)
    if ms < 0: return
    time.sleep(ms / 1000)
    connection.sendall(b'ok\n')
def serve(connection):
    for line in connection.makefile('rb'): answer(line, connection)
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
connections = {}
while True:
    for ready in select.select([listener, *connections], [], [])[0]:
        if ready is listener:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if sys.argv[3] == 'threads':
                threading.Thread(target=serve, args=(connection,), daemon=True).start()
            else:
                connections[connection] = connection.makefile('rb')
        else:
            line = connections[ready].readline()
            if line: answer(line, ready)
            else: del connections[ready]
";

const PORT: u16 = 7_070;

fn server(operator: &Operator, mode: &str) -> Result<ServerProgram, Failed> {
    let mut command = Command::new("python3");
    command.args(["-c", SERVER, &SERVER_ADDRESS.to_string(), &PORT.to_string(), mode]);
    Ok(operator.lab.start_program(command, PORT)?)
}

/// Returns `doctor`'s findings under load. For each number in `asks`, a connection repeatedly requests an
/// answer after that many milliseconds. If the number is negative, it sends only one request.
fn found_while(operator: &Operator, port: u16, asks: &[i32]) -> Result<Vec<Value>, Failed> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking: Vec<_> = asks
            .iter()
            .map(|ms| {
                let stop = &stop;
                scope.spawn(move || -> Result<(), Failed> {
                    let mut connection = BufReader::new(connect(&operator.lab, port)?);
                    let mut answer = String::new();
                    if *ms < 0 {
                        connection.get_mut().write_all(format!("{ms}\n").as_bytes())?;
                    }
                    while !stop.load(Ordering::Relaxed) {
                        if *ms < 0 {
                            std::thread::sleep(Duration::from_millis(20));
                            continue;
                        }
                        connection.get_mut().write_all(format!("{ms}\n").as_bytes())?;
                        answer.clear();
                        connection.read_line(&mut answer)?;
                    }
                    Ok(())
                })
            })
            .collect();
        let found = doctor(operator);
        stop.store(true, Ordering::Relaxed);
        for one in asking {
            one.join().map_err(|_| "a client panicked")??;
        }
        found
    })
}

fn doctor(operator: &Operator) -> Result<Vec<Value>, Failed> {
    let output = operator.netpolicy(&["-o", "json", "doctor", "--seconds", "4"]).output()?;
    let said: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(said["data"]["findings"].as_array().ok_or("findings")?.clone())
}

/// Returns the finding of a rule about the service. Checks that the finding has evidence and, if the rule has
/// one, a remedy.
fn finding<'f>(findings: &'f [Value], rule: &str) -> Result<&'f Value, Failed> {
    let found = findings.iter().find(|finding| finding["rule"] == rule && finding["object"] == "slow");
    let found = found.ok_or_else(|| format!("no {rule} in {findings:#?}"))?;
    assert!(found["evidence"].as_array().is_some_and(|evidence| !evidence.is_empty()), "{found}");
    Ok(found)
}

fn asks_for(operator: &Operator, port: u16, goal: &str) -> Result<(), Failed> {
    operator.asks(&format!(
        "[service.slow]\nmatch = {{ port = {port} }}\npolicy = \"none\"\ngoal = {{ p50 = \"{goal}\" }}\n"
    ))
}

fn service() -> Result<(), Failed> {
    let operator = Operator::new("judged-service", 1)?;
    let _server = server(&operator, "threads")?;
    asks_for(&operator, PORT, "100us")?;
    let found = found_while(&operator, PORT, &[3, 3, 3, 3])?;
    let remedy = finding(&found, "live-mostly-service")?["remedy"].clone();
    assert!(remedy.as_str().is_some_and(|remedy| remedy.contains("application")), "{remedy}");
    assert_eq!(
        finding(&found, "live-goal-missed")?["remedy"],
        remedy,
        "the proposed remedy is one that helps in this case"
    );
    Ok(())
}

fn wakeup() -> Result<(), Failed> {
    let operator = Operator::new("judged-wakeup", 1)?;
    let _server = server(&operator, "one")?;
    asks_for(&operator, PORT, "1s")?;
    let found = found_while(&operator, PORT, &[2; 8])?;
    finding(&found, "live-mostly-wakeup")?;
    finding(&found, "live-goal-met")?;
    Ok(())
}

fn worker() -> Result<(), Failed> {
    let operator = Operator::new("judged-worker", 1)?;
    let _server = server(&operator, "threads")?;
    asks_for(&operator, PORT, "1s")?;
    let found = found_while(&operator, PORT, &[1, 1, 8])?;
    let evidence = finding(&found, "live-worker-slow")?["evidence"][0].clone();
    assert!(evidence.as_str().is_some_and(|words| words.starts_with("python3[")), "{evidence}");
    Ok(())
}

fn hangs() -> Result<(), Failed> {
    let operator = Operator::new("judged-hangs", 1)?;
    let _server = server(&operator, "threads")?;
    asks_for(&operator, PORT, "1s")?;
    let found = {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // The request must arrive while the service is being measured, because `doctor` does not know
            // earlier requests.
            let hanging = scope.spawn(|| -> Result<(), Failed> {
                let mut connections = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let mut connection = connect(&operator.lab, PORT)?;
                    connection.write_all(b"-1\n")?;
                    connections.push(connection);
                    std::thread::sleep(Duration::from_millis(50));
                }
                Ok(())
            });
            let found = found_while(&operator, PORT, &[1]);
            stop.store(true, Ordering::Relaxed);
            hanging.join().map_err(|_| "a client panicked")??;
            found
        })?
    };
    assert_eq!(finding(&found, "live-hangs")?["severity"], "problem");
    Ok(())
}

/// Makes packets on these queues wait for a timer of `span`.
fn defers(operator: &Operator, queues: &BTreeSet<usize>, span: Nanoseconds) -> Result<(), Failed> {
    let host = operator.devices()?;
    let device = host.device_named(linux::lab::SERVER_DEVICE).ok_or("the device")?;
    for queue in
        device.rx_queues.iter().enumerate().filter(|(at, _)| queues.contains(at)).map(|(_, queue)| queue.id)
    {
        somebody_else_sets(Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(1_000))))?;
        somebody_else_sets(Setting::Napi(queue, NapiKnob::GroFlushTimeout(span)))?;
    }
    Ok(())
}

fn ring() -> Result<(), Failed> {
    let operator = Operator::new("judged-ring", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    asks_for(&operator, 11_211, "100us")?;
    defers(&operator, &BTreeSet::from([0]), Nanoseconds::from_millis(2))?;
    let found = while_asked_in_turn(&operator, || doctor(&operator))?;
    let remedy = finding(&found, "live-mostly-ring")?["remedy"].clone();
    assert!(remedy.as_str().is_some_and(|remedy| remedy.contains("gro-flush-timeout")), "{remedy}");
    assert!(
        remedy.as_str().is_some_and(|remedy| remedy.contains("slow")),
        "the remedy names the service: {remedy}"
    );
    finding(&found, "live-goal-missed")?;
    Ok(())
}

fn queue() -> Result<(), Failed> {
    const CONNECTIONS: usize = 24;
    let operator = Operator::new("judged-queue", 2)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    asks_for(&operator, 11_211, "1s")?;
    defers(&operator, &BTreeSet::from([1]), Nanoseconds::from_millis(4))?;
    let stop = AtomicBool::new(false);
    let found = std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| -> Result<(), Failed> {
                let mut connection = BufReader::new(connect(&operator.lab, 11_211)?);
                let mut answer = String::new();
                while !stop.load(Ordering::Relaxed) {
                    connection.get_mut().write_all(b"get nothing\r\n")?;
                    answer.clear();
                    connection.read_line(&mut answer)?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            });
        }
        let found = doctor(&operator);
        stop.store(true, Ordering::Relaxed);
        found
    })?;
    let evidence = finding(&found, "live-queue-slow")?["evidence"][0].clone();
    assert!(evidence.as_str().is_some_and(|words| words.starts_with("veth-server rx-1")), "{evidence}");
    Ok(())
}

fn shown() -> Result<(), Failed> {
    let operator = Operator::new("judged-shown", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let policy = "[daemon]\nsample = \"500ms\"\n[service.slow]\nmatch = { port = 11211 }\npolicy = \"none\"\ngoal = { p50 = \"1s\" }\n";
    let _daemon = at_work(&operator, policy)?;
    while_asked_in_turn(&operator, || {
        let top = operator.runs(&["-o", "json", "top", "--once", "--interval", "3"], 0)?;
        let top: Value = serde_json::from_str(&top.data)?;
        let service = &top["data"]["services"][0];
        assert_eq!(service["name"], "slow", "{top}");
        for span in ["p50", "wakeup", "service"] {
            assert!(service[span]["estimate"].as_f64().is_some_and(|ns| ns > 0.0), "{span}: {service}");
        }
        waited_for("what `show` says", || {
            let said = operator.runs(&["show"], 0)?.words;
            let says = said.contains("service slow: p50 ") && said.contains("s ago by the daemon");
            Ok(says.then_some(()))
        })
    })
}
