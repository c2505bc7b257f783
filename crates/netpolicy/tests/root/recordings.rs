//! Tests `record`, and that commands print the same for a recording as on the host.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Command, Output};

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use model::{Nanoseconds, NapiKnob, Setting};
use serde_json::Value;
use testkit::operator::{Operator, somebody_else_sets};
use testkit::programs::netpolicy;
use testkit::{Need, repeated, test};

use crate::stacks::kind::{BRIDGE, MACVLAN};

/// Processes of other tests may begin or end between a recording and a command, so `repeated` retries a
/// failed test.
pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension, Need::Memcached];
    const STACKED: &[Need] =
        &[Need::Root, Need::Suspension, Need::Memcached, Need::Link(BRIDGE), Need::Link(MACVLAN)];
    vec![
        test("recordings/commands_print_the_same_bytes_as_on_the_host", NEEDS, repeated(same_bytes)),
        test("recordings/a_host_with_many_stacks_prints_the_same_bytes", STACKED, repeated(many_stacks)),
        test("recordings/pseudonyms_change_nothing_but_names_and_leave_none", NEEDS, repeated(pseudonyms)),
    ]
}

const POLICY: &str = "[service.blackbird]\nmatch = { exe = \"memcached\", port = 11211 }\npolicy = \"latency\"\n\
                      [device.veth-server]\ndelivery = \"defer50\"\n";

/// Commands about the whole host.
const COMMANDS: [&[&str]; 16] = [
    &["show"],
    &["-o", "json", "show"],
    &["show", "--processes", "none"],
    &["doctor", "--all"],
    &["-o", "json", "doctor"],
    &["plan"],
    &["-o", "json", "plan"],
    &["explain"],
    &["-o", "jsonl", "explain"],
    &["explain", "veth-server"],
    &["explain", "blackbird"],
    &["explain", "latency"],
    &["explain", "blackbyrd"],
    &["history"],
    &["-o", "json", "history"],
    &["verify"],
];

fn output(command: &mut Command) -> Result<(Option<i32>, String, String), Failed> {
    let Output { status, stdout, stderr } = command.env("NO_COLOR", "1").output()?;
    Ok((status.code(), String::from_utf8(stdout)?, String::from_utf8(stderr)?))
}

fn from_file(arguments: &[&str], file: &str) -> Result<(Option<i32>, String, String), Failed> {
    output(Command::new(netpolicy()).args(arguments).args(["--from", file]))
}

fn record(operator: &Operator, options: &[&str]) -> Result<String, Failed> {
    let file = operator.file("host.json", b"")?;
    operator.runs(&[&["record", &file, "--seconds", "0"], options].concat(), 0)?;
    Ok(file)
}

/// Records the host, and compares what each command prints on the host and for the recording.
fn compare(operator: &Operator, when: &str, pid: u32) -> Result<(), Failed> {
    let file = record(operator, &["--with-names"])?;
    let pid = pid.to_string();
    let more: [&[&str]; 2] = [&["show", "--processes", &pid], &["show", "--processes", "1,4194303"]];
    for arguments in COMMANDS.into_iter().chain(more) {
        // The recording has no counts, so `doctor` must not count on the host either.
        let uncounted: &[&str] = if arguments.contains(&"doctor") { &["--seconds", "0"] } else { &[] };
        let there = output(&mut operator.netpolicy(&[arguments, uncounted].concat()))?;
        let here = from_file(arguments, &file)?;
        if there.1.contains("gone: there is no process") {
            // Here, the command named a process that does not exist on the host; the recording's output must
            // say that, too.
            assert!(here.1.contains("it is not in the recording"), "{here:?}");
            continue;
        }
        assert_eq!(here, there, "{when}: {arguments:?}");
    }
    Ok(())
}

fn same_bytes() -> Result<(), Failed> {
    let operator = Operator::new("recordings", 2)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let pid = server.process().pid.0;
    compare(&operator, "without a policy", pid)?;
    operator.means_what_it_does_on_a_nic()?;
    operator.asks(POLICY)?;
    compare(&operator, "before the policy is applied", pid)?;
    operator.runs(&["apply"], 0)?;
    compare(&operator, "with the policy in force", pid)?;
    let host = operator.devices()?;
    let device = host.device_named(linux::lab::SERVER_DEVICE).ok_or("no device")?;
    let drift = Setting::Napi(device.rx_queues[0].id, NapiKnob::GroFlushTimeout(Nanoseconds(77_000)));
    somebody_else_sets(drift)?;
    compare(&operator, "after another program has set a value", pid)?;
    operator.asks("[device.veth-server]\npolicy = \"fast\"\n")?;
    compare(&operator, "with a mistake in the policy file", pid)?;
    operator.runs(&["rollback"], 0)?;
    compare(&operator, "after the rollback", pid)?;
    operator.asks(POLICY)?;
    drop(server);
    compare(&operator, "after the service has ended", pid)
}

/// The number of stacks: a veth, whose ends are both on the host, below a bridge, and a macvlan on the bridge.
const STACKS: usize = 50;

fn many_stacks() -> Result<(), Failed> {
    let operator = Operator::new("recordings-stacks", 64)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let mut batch = String::new();
    for nth in 0..STACKS {
        for command in [
            format!("link add v{nth} type veth peer name p{nth}"),
            format!("link add br{nth} type bridge"),
            format!("link set v{nth} master br{nth}"),
            format!("link add link br{nth} name mac{nth} type macvlan mode private"),
        ] {
            batch += &format!("{command}\n");
        }
        for device in ["v", "p", "br", "mac"] {
            batch += &format!("link set {device}{nth} up\n");
        }
    }
    let batch = operator.file("batch", batch.as_bytes())?;
    operator.inside(&format!("ip -batch {batch}"))?;
    operator.means_what_it_does_on_a_nic()?;
    operator.asks(&format!("{POLICY}[device.\"mac*\"]\npolicy = \"latency\"\n"))?;
    let pid = server.process().pid.0;
    compare(&operator, "before the policy is applied", pid)?;
    operator.runs(&["apply"], 0)?;
    compare(&operator, "with the policy in force", pid)?;
    let file = record(&operator, &[])?;
    let recorded: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    assert!(recorded["host"]["devices"].as_array().is_some_and(|devices| devices.len() > 4 * STACKS));
    let size = std::fs::metadata(&file)?.len();
    assert!(size < 1_000_000, "{size} bytes");
    Ok(())
}

/// Collects the texts of a JSON document by their position.
fn texts(value: &Value, at: &str, found: &mut BTreeMap<String, String>) {
    match value {
        Value::String(text) => drop(found.insert(at.to_owned(), text.clone())),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(place, one)| texts(one, &format!("{at}/{place}"), found));
        }
        Value::Object(fields) => {
            fields
                .iter()
                .enumerate()
                .for_each(|(place, (_, one))| texts(one, &format!("{at}/{place}"), found));
        }
        _ => {}
    }
}

/// Maps each text that differs between two recordings, and each address in such a text, to its replacement.
fn replacements(plain: &Value, redacted: &Value) -> BTreeMap<String, String> {
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    texts(plain, "", &mut before);
    texts(redacted, "", &mut after);
    let mut all = BTreeMap::new();
    for (at, text) in before {
        let Some(now) = after.get(&at).filter(|now| **now != text) else { continue };
        if let (Ok(was), Ok(is)) = (text.parse::<SocketAddr>(), now.parse::<SocketAddr>()) {
            all.insert(was.ip().to_string(), is.ip().to_string());
        }
        all.insert(text, now.clone());
    }
    all
}

/// Replaces whole words, the longest first, and collapses runs of spaces.
fn replaced(text: &str, all: &BTreeMap<String, String>) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut keys: Vec<&String> = all.keys().filter(|key| !key.is_empty()).collect();
    keys.sort_by_key(|key| std::cmp::Reverse(key.len()));
    let (mut result, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        let begins = !result.ends_with(is_part);
        let whole =
            |key: &&&String| rest.strip_prefix(key.as_str()).is_some_and(|after| !after.starts_with(is_part));
        match keys.iter().find(|key| begins && whole(key)) {
            Some(key) => {
                result.push_str(&all[*key]);
                rest = &rest[key.len()..];
            }
            None => {
                result.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    result.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn pseudonyms() -> Result<(), Failed> {
    let operator = Operator::new("pseudonyms", 2)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.means_what_it_does_on_a_nic()?;
    operator.asks(POLICY)?;
    operator.runs(&["apply"], 0)?;
    let file = record(&operator, &["--with-names"])?;
    let plain: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    let plain_file = operator.file("plain.json", plain.to_string().as_bytes())?;
    let file = record(&operator, &[])?;
    let text = std::fs::read_to_string(&file)?;
    let redacted: Value = serde_json::from_str(&text)?;
    assert_eq!((&plain["redacted"], &redacted["redacted"]), (&false.into(), &true.into()));
    assert_eq!(redacted["made"]["left_out"], serde_json::json!([]));

    // The redacted recording contains none of the host's names and addresses.
    let mut names = vec![
        rustix::system::uname().nodename().to_string_lossy().into_owned(),
        "blackbird".to_owned(),
        "10-test".to_owned(),
        operator.state().display().to_string(),
    ];
    let host = operator.host()?;
    for process in &host.processes {
        names.push(process.id.comm.to_string());
        names.extend(process.exe.rsplit('/').next().map(str::to_owned));
        let addresses = process.sockets.iter().flat_map(|socket| [socket.local, socket.remote]).flatten();
        let addresses =
            addresses.map(|address| address.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback());
        names.extend(addresses.map(|ip| ip.to_string()));
    }
    for device in &host.devices {
        names.extend(device.link.mac.clone().filter(|mac| mac != "00:00:00:00:00:00"));
    }
    names.push(linux::lab::SERVER_DEVICE.to_owned());
    assert!(names.len() > 8, "{names:?}");
    let mut found = BTreeMap::new();
    texts(&redacted, "", &mut found);
    for (at, text) in &found {
        for name in &names {
            let is_there = text.match_indices(name.as_str()).any(|(begin, _)| {
                let is_part = |c: char| c.is_alphanumeric() || c == '_';
                !text[..begin].ends_with(is_part) && !text[begin + name.len()..].starts_with(is_part)
            });
            assert!(!is_there, "`{name}` is at {at}: {text}");
        }
    }

    // The next recording uses the same pseudonyms.
    let again = std::fs::read_to_string(record(&operator, &[])?)?;
    let again: Value = serde_json::from_str(&again)?;
    assert_eq!(again["host"]["processes"], redacted["host"]["processes"]);

    // Once each name is replaced, the output is the same.
    let all = replacements(&plain, &redacted);
    // Exclude commands whose output depends on names: a shipped recipe mentions memcached, and the misspelt
    // name resembles a real name but no pseudonym.
    let differs = |arguments: &[&str]| arguments.contains(&"latency") || arguments.contains(&"blackbyrd");
    for arguments in COMMANDS.into_iter().filter(|arguments| !differs(arguments)) {
        let there = from_file(arguments, &plain_file)?;
        let arguments: Vec<String> = arguments.iter().map(|argument| replaced(argument, &all)).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let here = from_file(&arguments, &file)?;
        assert_eq!(here.0, there.0, "{arguments:?}");
        for (here, there) in [(&here.1, &there.1), (&here.2, &there.2)] {
            let here = here.split_whitespace().collect::<Vec<_>>().join(" ");
            let there = replaced(there, &all);
            let same = here.bytes().zip(there.bytes()).take_while(|(one, other)| one == other).count();
            let around =
                |text: &str| text.chars().skip(same.saturating_sub(80)).take(160).collect::<String>();
            assert!(here == there, "{arguments:?}:\n{}\n{}", around(&here), around(&there));
        }
    }
    drop(server);
    Ok(())
}
