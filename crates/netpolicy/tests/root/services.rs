//! Tests which processes belong to a service, and the messages when no process is visible.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use linux::lab::{MemcachedOptions, SERVER_DEVICE};
use testkit::operator::{Operator, flushes};
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Memcached, Need::Suspension];
    vec![
        test("services/an_executable_is_found_by_a_symbolic_link_to_it", NEEDS, by_link),
        test("services/what_could_not_be_inspected_is_not_said_not_to_run", NEEDS, as_nobody),
        test(
            "services/a_first_policy_file_has_what_runs_here_and_can_be_applied_and_undone",
            NEEDS,
            first_file,
        ),
        test(
            "services/a_first_policy_file_is_written_without_privileges_and_says_what_it_lacks",
            NEEDS,
            first_as_nobody,
        ),
        test(
            "services/a_first_policy_file_that_cannot_be_written_whole_is_not_left",
            &[Need::Root],
            first_cut_short,
        ),
    ]
}

fn by_link() -> Result<(), Failed> {
    let operator = Operator::new("service-link", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let link = operator.state().with_file_name("cache-server");
    std::os::unix::fs::symlink("/usr/bin/memcached", &link)?;
    let service =
        |exe: &str| format!("[service.cache]\nmatch = {{ exe = \"{exe}\" }}\ndelivery = \"suspend20\"\n");
    operator.asks(&service(&link.display().to_string()))?;
    let said = operator.runs(&["plan"], 3)?;
    assert!(said.data.contains("memcached"), "{}", said.data);
    operator.asks(&service("no-such-server"))?;
    let said = operator.runs(&["plan"], 0)?.words;
    assert!(said.contains("no process of this service runs (exe no-such-server)"), "{said}");
    assert!(said.contains("the host already matches the policy for all running services"), "{said}");
    Ok(())
}

fn as_nobody() -> Result<(), Failed> {
    let operator = Operator::new("service-unseen", 1)?;
    let _server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.asks("[service.init]\nmatch = { exe = \"no-such-server\" }\ndelivery = \"suspend20\"\n")?;
    for arguments in [&["plan"][..], &["apply", "--dry-run"]] {
        let said = operator.runs_as_nobody(arguments, 1)?.words;
        assert!(
            said.contains("whether a process of this service runs (exe no-such-server) is not known"),
            "{said}"
        );
        assert!(said.contains("could not be inspected (process 1: Permission denied (EACCES)"), "{said}");
        assert!(!said.contains("the host already matches the policy."), "{said}");
    }
    Ok(())
}

/// Connects the lab's client to memcached and waits for an answer, so that the device has received packets.
fn connected(operator: &Operator, server: SocketAddr) -> Result<BufReader<TcpStream>, Failed> {
    let stream = operator.lab.client().run(|| TcpStream::connect(server))??;
    let mut connection = BufReader::new(stream);
    connection.get_mut().write_all(b"version\r\n")?;
    let mut answer = String::new();
    connection.read_line(&mut answer)?;
    if answer.starts_with("VERSION") { Ok(connection) } else { Err(answer.into()) }
}

fn first_file() -> Result<(), Failed> {
    let operator = Operator::new("service-first", 2)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let _client = connected(&operator, server.address())?;
    let before = operator.host()?;
    let json: serde_json::Value = serde_json::from_str(&operator.runs(&["-o", "json", "init"], 0)?.data)?;
    let first = &json["data"];
    assert_eq!(first["devices"][0]["name"], SERVER_DEVICE, "{json}");
    // If the tests run in a systemd unit, the server does too, and `init` names that unit.
    let of_server = format!("{}: tcp 11211", server.process());
    let services = first["services"].as_array().ok_or("services")?;
    let is_server = |service: &serde_json::Value| service["facts"].to_string().contains(&of_server);
    assert!(services.iter().any(is_server), "{of_server}: {json}");

    // `init` does not overwrite an existing file.
    let path = operator.state().with_file_name("first.toml").display().to_string();
    let said = operator.runs(&["init", &path], 0)?;
    assert!(said.data.is_empty(), "{}", said.data);
    assert!(said.words.contains("No setting was changed."), "{}", said.words);
    let text = std::fs::read_to_string(&path)?;
    operator.asks(&text)?;
    operator.runs(&["plan"], 0)?;
    let refused = operator.runs(&["init", &path], 1)?.words;
    assert!(
        refused.contains("first.toml") && refused.contains("existing files are not overwritten"),
        "{refused}"
    );
    assert_eq!(std::fs::read_to_string(&path)?, text);
    let below = operator.state().with_file_name("made/policy.d/first.toml").display().to_string();
    operator.runs(&["init", &below], 0)?;
    assert!(!std::fs::read_to_string(&below)?.is_empty(), "its directories were created");
    let refused = operator.runs(&["init", "/dev/null/first.toml"], 1)?.words;
    assert!(refused.contains("/dev/null"), "{refused}");

    // With a policy, the printed file can be applied and undone.
    operator.asks(&operator.runs(&["init", "--policy", "cpu"], 0)?.data)?;
    assert_eq!(flushes(&operator.devices()?), flushes(&before), "no setting was changed yet");
    let plan = operator.runs(&["plan"], 3)?;
    assert!(plan.data.contains("gro-flush-timeout"), "{}", plan.data);
    operator.runs(&["apply"], 0)?;
    operator.runs(&["verify"], 0)?;
    assert_ne!(flushes(&operator.devices()?), flushes(&before));
    operator.runs(&["rollback"], 0)?;
    assert_eq!(flushes(&operator.devices()?), flushes(&before));
    Ok(())
}

fn first_as_nobody() -> Result<(), Failed> {
    let operator = Operator::new("service-first-unseen", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let _client = connected(&operator, server.address())?;
    let text = operator.runs_as_nobody(&["init"], 0)?.data;
    assert!(text.contains("who serves tcp 11211"), "{text}");
    assert!(text.contains("run it as root, or with CAP_SYS_PTRACE"), "{text}");
    assert!(text.contains(&format!("[device.{SERVER_DEVICE}]")), "{text}");
    operator.asks(&text)?;
    operator.runs(&["plan"], 0)?;
    Ok(())
}

/// A limit on the file size makes writes fail as on a full file system.
fn first_cut_short() -> Result<(), Failed> {
    let operator = Operator::new("service-first-full", 1)?;
    let path = operator.state().with_file_name("first.toml");
    let limited = "trap '' XFSZ; ulimit -f 0; exec \"$0\" init \"$1\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_netpolicy")]).arg(&path);
    let output = command.output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("first.toml"), "{words}");
    assert!(!path.exists(), "a truncated file could be read as the whole");
    Ok(())
}
