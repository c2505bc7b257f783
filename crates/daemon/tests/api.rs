//! Tests the daemon's sockets with well-behaved, broken, slow and many clients.

mod desk;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use daemon::api::{ApiOptions, CLIENTS_MAX, Serving, method};
use daemon::sessions::{SESSIONS_PER_USER_MAX, Sessions};
use daemon::{Answer, Shared};
use desk::{Desk, Talk};
use model::{Finding, Severity};
use serde_json::{Value, json};

/// Opens the sockets with this process as a trusted client: as root, or through the trusted group.
fn desk() -> Desk {
    Desk::new(Some(rustix::process::getegid().as_raw()))
}

#[test]
fn the_service_says_what_it_is_and_describes_its_interfaces() {
    let desk = desk();
    let mut talk = desk.connect();
    let info = talk.ask(r#"{"method":"org.varlink.service.GetInfo"}"#);
    assert_eq!(info["parameters"]["interfaces"], json!(["org.varlink.service", "io.netpolicy"]));
    for name in ["org.varlink.service", "io.netpolicy"] {
        let call = json!({"method": "org.varlink.service.GetInterfaceDescription", "parameters": {"interface": name}});
        let said = talk.ask(&call.to_string());
        let text = said["parameters"]["description"].as_str().expect("text").to_owned();
        assert!(text.contains(&format!("interface {name}\n")), "{text}");
    }
    let said = talk.ask(
        r#"{"method":"org.varlink.service.GetInterfaceDescription","parameters":{"interface":"com.example"}}"#,
    );
    assert_eq!(said["error"], "org.varlink.service.InterfaceNotFound");
}

#[test]
fn what_is_said_has_the_shape_that_the_description_promises() {
    let desk = desk();
    let mut talk = desk.connect();
    let said = talk.ask(r#"{"method":"io.netpolicy.Status"}"#);
    let state = said["parameters"]["status"].as_object().expect("a state");
    let described =
        method::DESCRIPTION.split("type State (").nth(1).and_then(|rest| rest.split("\n)").next());
    let described: Vec<&str> = described
        .expect("a type")
        .lines()
        .filter_map(|line| line.trim().split(':').next())
        .filter(|f| !f.is_empty())
        .collect();
    let mut said: Vec<&str> = state.keys().map(String::as_str).collect();
    let mut described = described.clone();
    said.sort_unstable();
    described.sort_unstable();
    assert_eq!(said, described);
    assert_eq!(state["phase"], "managing");
}

#[test]
fn a_set_is_done_by_the_daemon_and_a_refusal_keeps_its_words() {
    let desk = desk();
    let mut talk = desk.connect();
    let said = talk.ask(
        r#"{"method":"io.netpolicy.Set","parameters":{"target":{"device":"eth0"},"request":"latency"}}"#,
    );
    assert_eq!(said["parameters"]["summary"], "device eth0 is set");
    let pid = std::process::id();
    let by = format!("asked by io.netpolicy by uid {} (pid {pid})", rustix::process::geteuid().as_raw());
    assert_eq!(said["parameters"]["changes"], json!([by]));
    let said = talk.ask(r#"{"method":"io.netpolicy.Unset","parameters":{"target":{"task":812}}}"#);
    assert_eq!(said["error"], "io.netpolicy.Refused");
    assert_eq!(
        said["parameters"],
        json!({"exit": 2, "why": "task 812 was not set", "hint": "netpolicy status"})
    );
    assert!(desk.log().iter().any(|line| line.contains("calls io.netpolicy.Set")), "{:?}", desk.log());
}

#[test]
fn the_status_is_answered_while_the_daemon_is_at_work() {
    let directory = tempfile::TempDir::with_prefix("netpolicy-desk-").expect("a directory");
    let shared = Shared::new().expect("descriptors");
    let options = ApiOptions {
        socket: directory.path().join("io.netpolicy"),
        group: Some(rustix::process::getegid().as_raw()),
        metrics_socket: Some(directory.path().join("metrics")),
        metrics_file: None,
        metrics_address: None,
        log: Box::new(|_| ()),
        answer_query: std::sync::Arc::new(|_| Ok(serde_json::Map::new())),
        sessions: Sessions::new(desk::fake_program(), shared.clone()),
    };
    let (socket, metrics) = (options.socket.clone(), options.metrics_socket.clone().expect("a path"));
    let serving = Serving::begin(&shared, options).expect("sockets");
    // This thread plays the daemon, and has not handled any request yet.
    let (mut asking, mut other) = (Talk::to(&socket), Talk::to(&socket));
    asking.say(r#"{"method":"io.netpolicy.Reload"}"#);
    let said = other.ask(r#"{"method":"io.netpolicy.Status"}"#);
    assert_eq!(said["parameters"]["status"]["phase"], "starting");
    let mut collector = UnixStream::connect(&metrics).expect("a connection");
    collector.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("asked");
    let mut page = String::new();
    collector.read_to_string(&mut page).expect("read");
    assert!(page.starts_with("HTTP/1.1 200 OK"), "{page}");

    let (_, reply) = std::iter::repeat_with(|| shared.next_request()).flatten().next().expect("a request");
    let (summary, none) = ("it is read".to_owned(), Vec::new);
    reply(Answer::Done { summary, changes: none(), transactions: none(), notes: none(), pending: false });
    shared.update(|status| status.phase = daemon::status::DaemonPhase::Managing);
    assert_eq!(asking.receive().expect("an answer")["parameters"]["summary"], "it is read");
    let said = other.ask(r#"{"method":"io.netpolicy.Status"}"#);
    assert_eq!(said["parameters"]["status"]["phase"], "managing");
    drop(serving);
    assert!(other.receive().is_none(), "the connections end with the thread");
}

#[test]
fn calls_that_come_together_are_answered_in_turn_and_oneway_ones_not_at_all() {
    let desk = desk();
    let mut talk = desk.connect();
    let plan = r#"{"method":"io.netpolicy.Plan"}"#;
    let oneway = r#"{"method":"io.netpolicy.Reload","oneway":true}"#;
    let info = r#"{"method":"io.netpolicy.Settings"}"#;
    talk.stream.write_all(format!("{plan}\0{oneway}\0{info}\0").as_bytes()).expect("said");
    // The client sends nothing more, but must still receive its answers.
    talk.stream.shutdown(Shutdown::Write).expect("shut");
    assert_eq!(talk.receive().expect("an answer")["parameters"]["said"], "Plan");
    assert_eq!(talk.receive().expect("an answer")["parameters"]["settings"][0]["knob"], "defer-hard-irqs");
    assert_eq!(talk.receive(), None);
}

#[test]
fn the_loop_does_not_spin_while_an_answer_is_waited_for() {
    let desk = desk();
    let mut talk = desk.connect();
    talk.say(r#"{"method":"io.netpolicy.Verify"}"#);
    talk.stream.shutdown(Shutdown::Write).expect("shut");
    let before = desk.turns();
    std::thread::sleep(Duration::from_millis(200));
    let turns = desk.turns() - before;
    assert!(turns < 60, "{turns} turns in 200 ms");
    assert_eq!(talk.receive().expect("an answer")["parameters"]["said"], "Verify");
}

#[test]
fn questions_that_read_the_host_are_limited_and_no_other_client_waits() {
    let desk = desk();
    let mut talks: Vec<Talk> = (0..3).map(|_| desk.connect()).collect();
    for talk in &mut talks {
        talk.say(r#"{"method":"io.netpolicy.Plan"}"#);
    }
    let begun = Instant::now();
    assert!(desk.connect().ask(r#"{"method":"io.netpolicy.Settings"}"#)["parameters"]["settings"].is_array());
    assert!(
        begun.elapsed() < Duration::from_millis(250),
        "the answer waited for the plans: {:?}",
        begun.elapsed()
    );
    let answers: Vec<Value> = talks.iter_mut().map(|talk| talk.receive().expect("an answer")).collect();
    let busy = answers.iter().filter(|answer| answer["error"] == "io.netpolicy.Busy").count();
    assert_eq!(busy, 1, "{answers:?}");
}

#[test]
fn findings_come_again_when_they_change_and_not_when_something_else_does() {
    let desk = desk();
    let mut talk = desk.connect();
    let said = talk.ask(r#"{"method":"io.netpolicy.Findings","more":true}"#);
    assert_eq!((&said["continues"], &said["parameters"]["findings"]), (&json!(true), &json!([])));
    desk.change(|status| status.settings = 7);
    desk.change(|status| {
        status.findings.push(Finding {
            rule: "drift".to_owned(),
            severity: Severity::Problem,
            object: "eth0 rx-0".to_owned(),
            summary: "it flaps".to_owned(),
            evidence: Vec::new(),
            remedy: None,
        });
    });
    let said = talk.receive().expect("again");
    assert_eq!(said["parameters"]["findings"][0]["summary"], "it flaps");
    assert_eq!(said["continues"], true);
}

#[test]
fn what_is_no_varlink_ends_the_connection_and_nothing_else() {
    let desk = desk();
    let mut good = desk.connect();
    for bytes in
        ["hello", "{}", "[1,2]", "{\"method\":7}", "\u{1}\u{2}", "{\"method\":\"a.b\",\"parameters\":[]}"]
    {
        let mut bad = desk.connect();
        bad.say(bytes);
        assert_eq!(bad.receive(), None, "{bytes:?}");
    }
    // A message that is too long and has no end.
    let mut long = desk.connect();
    let _ = long.stream.write_all(&vec![b'x'; 80 * 1024]);
    assert_eq!(long.receive(), None);
    assert!(good.ask(r#"{"method":"io.netpolicy.Status"}"#)["parameters"]["status"].is_object());
    let dropped = desk.log().iter().filter(|line| line.contains("was dropped: ")).count();
    assert_eq!(dropped, 7, "{:?}", desk.log());
}

#[test]
fn a_client_that_does_not_end_a_message_or_take_answers_is_dropped_in_time() {
    let desk = desk();
    let mut slow = desk.connect();
    slow.stream.write_all(b"{\"method\":").expect("said");
    let mut deaf = desk.connect();
    deaf.stream.set_nonblocking(true).expect("no waiting");
    let call = b"{\"method\":\"org.varlink.service.GetInterfaceDescription\",\"parameters\":{\"interface\":\"io.netpolicy\"}}\0";
    // The client sends for as long as it can, but never reads an answer.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) && deaf.stream.write(call).is_ok() {}
    assert!(
        desk.connect().ask(r#"{"method":"io.netpolicy.Status"}"#).is_object(),
        "others are served meanwhile"
    );
    assert_eq!(slow.receive(), None);
    assert!(begun.elapsed() < Duration::from_secs(15));
    let deadline = Instant::now() + Duration::from_secs(15);
    while !desk.log().iter().any(|line| line.ends_with("the client does not read replies")) {
        assert!(Instant::now() < deadline, "{:?}", desk.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(desk.log().iter().any(|line| line.ends_with("incomplete message")), "{:?}", desk.log());
}

#[test]
fn there_is_room_for_so_many_and_a_place_that_was_left_is_free() {
    let desk = desk();
    let mut talks: Vec<Talk> = (0..CLIENTS_MAX + 20).map(|_| desk.connect()).collect();
    let alive = |talk: &mut Talk| {
        // A rejected client may be unable to send, but it still receives the reason for the rejection.
        talk.stream.write_all(b"{\"method\":\"io.netpolicy.Status\"}\0").is_ok() && {
            talk.receive().is_some_and(|said| said["error"].is_null())
        }
    };
    let last = talks.last_mut().expect("many").receive().expect("why");
    assert_eq!(last["error"], "io.netpolicy.Busy");
    let served = talks.iter_mut().filter_map(|talk| alive(talk).then_some(())).count();
    assert!((8..=CLIENTS_MAX).contains(&served), "{served}");
    assert!(desk.log().iter().any(|line| line.contains("connection limit reached")), "{:?}", desk.log());
    drop(talks);
    std::thread::sleep(Duration::from_millis(300));
    assert!(alive(&mut desk.connect()));
}

#[test]
fn more_calls_than_are_done_in_a_second_wait_and_are_not_lost() {
    let desk = desk();
    let mut talk = desk.connect();
    let calls = "{\"method\":\"org.varlink.service.GetInfo\"}\0".repeat(250);
    talk.stream.write_all(calls.as_bytes()).expect("said");
    let begun = Instant::now();
    for _ in 0..250 {
        assert!(talk.receive().expect("an answer")["parameters"]["version"].is_string());
    }
    assert!(begun.elapsed() > Duration::from_millis(900), "{:?}", begun.elapsed());
}

#[test]
fn connections_that_ask_for_nothing_keep_no_collector_from_the_metrics() {
    use std::io::{Read, Write};
    let desk = Desk::new(None);
    let silent: Vec<UnixStream> =
        (0..40).map(|_| UnixStream::connect(&desk.metrics).expect("a connection")).collect();
    let mut collector = UnixStream::connect(&desk.metrics).expect("a connection");
    collector.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("asked");
    let mut page = String::new();
    collector.read_to_string(&mut page).expect("read");
    assert!(page.starts_with("HTTP/1.1 200 OK"), "{page}");
    drop(silent);
}

#[test]
fn metrics_are_had_by_http_and_nothing_else_is() {
    let desk = desk();
    let get = |request: &str| {
        let mut stream = UnixStream::connect(&desk.metrics).expect("a connection");
        stream.write_all(request.as_bytes()).expect("asked");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("an answer");
        said
    };
    let page = get("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(
        page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0"),
        "{page}"
    );
    assert!(
        page.contains("netpolicy_build_info{version=\"0.1.0\"} 1\n") && page.ends_with("# EOF\n"),
        "{page}"
    );
    let length: usize = page
        .split("Content-Length: ")
        .nth(1)
        .and_then(|rest| rest.split('\r').next())
        .expect("a length")
        .parse()
        .expect("a number");
    assert_eq!(page.split_once("\r\n\r\n").map(|(_, body)| body.len()), Some(length));
    assert!(get("GET /etc/passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(get("DELETE /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(get(&"x".repeat(9000)).starts_with("HTTP/1.1 431"));
}

fn session(method: &str, service: &str, more: bool) -> String {
    let mut parameters = json!({ "service": { "name": service } });
    if method == "Compare" {
        parameters["candidates"] = json!(["latency"]);
    }
    json!({ "method": format!("io.netpolicy.{method}"), "more": more, "parameters": parameters }).to_string()
}

#[test]
fn a_session_streams_what_its_command_prints_and_ends_with_its_exit_code() {
    let desk = desk();
    let mut talk = desk.connect();
    talk.say(&session("Compare", "short", true));
    let begun = talk.receive().expect("the number");
    assert_eq!((&begun["continues"], &begun["parameters"]["records"]), (&json!(true), &json!([])));
    assert_eq!(begun["parameters"]["session"], 1);
    let record = talk.receive().expect("a record");
    assert_eq!(record["parameters"]["records"], json!([{ "kind": "window", "data": { "n": 1 } }]));
    assert_eq!(talk.receive().expect("a note")["parameters"]["notes"], json!(["a note"]));
    let last = talk.receive().expect("the end");
    assert!(last["continues"].is_null(), "{last}");
    assert_eq!(
        (&last["parameters"]["exit"], &last["parameters"]["transactions"]),
        (&json!(0), &json!(["kept"]))
    );
    // Without `more`, a single reply contains all records, and the connection then handles the next call.
    let all = talk.ask(&session("Watch", "short", false));
    assert_eq!(all["parameters"]["session"], 2);
    assert_eq!((&all["parameters"]["notes"], &all["parameters"]["exit"]), (&json!(["a note"]), &json!(0)));
    let policy = json!({ "method": "io.netpolicy.Try", "parameters": { "policy": "[device.eth0]\n" } });
    let tried = talk.ask(&policy.to_string());
    assert_eq!(tried["parameters"]["notes"], json!(["policy: [device.eth0]"]));
}

#[test]
fn a_session_that_fails_is_refused_with_the_words_of_its_command() {
    let desk = desk();
    let mut talk = desk.connect();
    let failed = talk.ask(&session("Compare", "fails", false));
    assert_eq!(failed["error"], "io.netpolicy.Refused");
    assert_eq!(
        failed["parameters"],
        json!({ "exit": 7, "why": "too few requests", "hint": "generate traffic" })
    );
    let failed = talk.ask(&session("Watch", "dies", false));
    assert_eq!(
        (&failed["parameters"]["exit"], &failed["parameters"]["why"]),
        (&json!(2), &json!("error: no such option"))
    );
    let failed = talk.ask(&session("Watch", "killed", false));
    assert!(failed["parameters"]["why"].as_str().expect("why").contains("signal 9"), "{failed}");
}

/// Begins a session. Returns the session's number, or null if the session was refused.
fn begin(talk: &mut Talk, method: &str, service: &str) -> Value {
    talk.say(&session(method, service, true));
    talk.receive().expect("the number")["parameters"]["session"].clone()
}

#[test]
fn one_session_changes_settings_and_a_user_has_so_many() {
    let desk = desk();
    let mut first = desk.connect();
    let number = begin(&mut first, "Tune", "long");
    // `Tune` without a goal is refused.
    assert_eq!(number, Value::Null);
    let number = begin(&mut first, "Compare", "long");
    let refused = desk.connect().ask(&session("Compare", "long", false));
    assert_eq!(
        (&refused["error"], &refused["parameters"]["exit"]),
        (&json!("io.netpolicy.Refused"), &json!(7))
    );
    let why = refused["parameters"]["why"].as_str().expect("why");
    assert!(why.starts_with(&format!("session {number} (Compare, uid ")), "{why}");
    let mut others: Vec<Talk> = (1..SESSIONS_PER_USER_MAX).map(|_| desk.connect()).collect();
    for other in &mut others {
        assert!(begin(other, "Watch", "long").is_u64());
    }
    let busy = desk.connect().ask(&session("Watch", "long", false));
    assert_eq!(busy["error"], "io.netpolicy.Busy", "{busy}");
    // `Cancel` ends the first session, whose command restores the host before the last reply.
    let cancel = json!({ "method": "io.netpolicy.Cancel", "parameters": { "session": number } }).to_string();
    assert_eq!(desk.connect().ask(&cancel)["parameters"], json!({}));
    let replies: Vec<Value> =
        std::iter::from_fn(|| first.receive()).take_while(|reply| reply["continues"] == true).collect();
    assert!(replies.iter().any(|reply| reply["parameters"]["notes"] == json!(["restored"])), "{replies:?}");
    let again = desk.connect().ask(&cancel);
    assert_eq!(again["parameters"]["exit"], 1, "{again}");
    assert!(begin(&mut first, "Compare", "long").is_u64(), "there is room again");
}

/// Stops the hostile clients on drop, and thus also after a failed assertion.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends nonsense until it is told to stop.
fn harass(desk: &Desk, how: usize, until: &AtomicBool) {
    let mut turn = 0_u64;
    while !until.load(Ordering::Relaxed) {
        turn += 1;
        let Ok(mut stream) = UnixStream::connect(&desk.socket) else { continue };
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        stream.set_write_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        let said = match how {
            // The client disconnects at once, in the middle of a message, or in the middle of a session.
            0 => String::new(),
            1 => session("Compare", "long", true)[..20].to_owned(),
            2 => session("Watch", "flood", true) + "\0",
            // The client sends more bytes or deeper JSON than a message may have.
            3 => "x".repeat(70_000),
            4 => "[".repeat(60_000) + "\0",
            5 => format!("{{\"method\":\"io.netpolicy.{}\"}}\0", "\\n\\u0000".repeat(4_000)),
            // The client cancels sessions that belong to others or do not exist.
            _ => {
                let cancel =
                    |id: u64| json!({ "method": "io.netpolicy.Cancel", "parameters": { "session": id } });
                format!("{}\0{}\0", cancel(1_000_000 + turn), cancel(u64::MAX))
            }
        };
        let _refused = stream.write_all(said.as_bytes());
        if turn.is_multiple_of(2) {
            let _answered = stream.shutdown(Shutdown::Write).and_then(|()| stream.read(&mut [0; 64]));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn hostile_clients_keep_no_other_from_its_answers_and_leave_nothing() {
    let desk = desk();
    let (mut measuring, mut asking, mut deaf) = (desk.connect(), desk.connect(), desk.connect());
    let number = begin(&mut measuring, "Compare", "long");
    assert!(number.is_u64());
    deaf.say(r#"{"method":"io.netpolicy.Findings","more":true}"#);
    let until = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&until);
        for how in 0..7 {
            let (desk, until) = (&desk, &until);
            scope.spawn(move || harass(desk, how, until));
        }
        for turn in 0..300 {
            desk.change(move |status| {
                status.findings = vec![Finding {
                    rule: "hostile".to_owned(),
                    severity: Severity::Note,
                    object: turn.to_string(),
                    summary: "x".repeat(20_000),
                    evidence: Vec::new(),
                    remedy: None,
                }];
            });
            let said = asking.ask(r#"{"method":"io.netpolicy.Status"}"#);
            assert_eq!(said["parameters"]["status"]["phase"], "managing");
        }
    });
    let cancel = json!({ "method": "io.netpolicy.Cancel", "parameters": { "session": number } }).to_string();
    assert_eq!(asking.ask(&cancel)["parameters"], json!({}), "the session of the others goes on");
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let said = asking.ask(r#"{"method":"io.netpolicy.Status"}"#);
        let running = said["parameters"]["status"]["sessions"]["running"].clone();
        if running == json!([]) {
            break;
        }
        assert!(Instant::now() < deadline, "{running}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_client_that_leaves_or_does_not_read_ends_its_session() {
    let desk = desk();
    let begins = |service: &str| {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let mut talk = desk.connect();
            if begin(&mut talk, "Compare", service).is_u64() {
                return talk;
            }
            assert!(Instant::now() < deadline, "{service}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    drop(begins("long"));
    drop(begins("flood"));
    let _deaf = begins("flood");
    let deadline = Instant::now() + Duration::from_secs(15);
    while !desk.log().iter().any(|line| line.ends_with("the client does not read replies")) {
        assert!(Instant::now() < deadline, "{:?}", desk.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}
