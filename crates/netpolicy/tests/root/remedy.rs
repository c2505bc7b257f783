//! Tests that an operator in another namespace can paste the commands that `doctor` prints.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use linux::Netns;
use linux::lab::MemcachedOptions;
use model::{EpollParams, Finding, IfIndex, ProcessKnob, Setting};
use netlink::Links;
use netlink::offload::{Offload, switch};
use testkit::operator::{Operator, somebody_else_sets};
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension, Need::Memcached];
    vec![
        test("doctor/a_remedy_sets_what_it_says_from_another_namespace", NEEDS, own_remedy),
        test("doctor/the_other_end_of_a_veth_is_mended_where_it_is", NEEDS, other_end),
        test("doctor/a_process_that_no_packet_can_come_to_gets_nothing", &[Need::Root], nothing_to_set),
    ]
}

/// Returns the findings of `doctor` on the settings; nothing is counted.
fn findings(operator: &Operator, code: i32) -> Result<Vec<Finding>, Failed> {
    let said = operator.runs(&["-o", "json", "doctor", "--seconds", "0"], code)?;
    let document: serde_json::Value = serde_json::from_str(&said.data)?;
    Ok(serde_json::from_value(document["data"]["findings"].clone())?)
}

fn remedy(findings: &[Finding], rule: &str) -> Result<Option<String>, Failed> {
    let finding = findings.iter().find(|finding| finding.rule == rule);
    Ok(finding.ok_or_else(|| format!("no {rule} in {findings:?}"))?.remedy.clone())
}

/// Runs a command in the test's own namespace.
pub(crate) fn typed(command: &str) -> Result<(), Failed> {
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_netpolicy"));
    let beside = binary.parent().ok_or("a directory")?.display().to_string();
    let path = format!("{beside}:{}", std::env::var("PATH").unwrap_or_default());
    let output = Command::new("sh").args(["-c", command]).env("PATH", path).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    output
        .status
        .success()
        .then_some(())
        .ok_or_else(|| format!("{command}: {}: {said}", output.status).into())
}

/// Connects from the client, and waits for an answer.
pub(crate) fn connected(operator: &Operator, server: &linux::lab::Memcached) -> Result<TcpStream, Failed> {
    let mut stream = operator.lab.client().run(|| TcpStream::connect(server.address()))??;
    asked(&mut stream)?;
    Ok(stream)
}

fn asked(stream: &mut TcpStream) -> Result<(), Failed> {
    stream.write_all(b"version\r\n")?;
    let mut answer = [0; 64];
    assert!(stream.read(&mut answer)? > 0, "an answer");
    Ok(())
}

fn own_remedy() -> Result<(), Failed> {
    let operator = Operator::new("remedy", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let _stream = connected(&operator, &server)?;
    operator.runs(&["set", "device", "veth-server", "suspend20"], 0)?;
    let epolls = || -> Result<Vec<(model::EpollId, Option<EpollParams>)>, Failed> {
        let host = operator.host()?;
        let process = host.process(server.process().pid).ok_or("memcached")?;
        Ok(process.epolls.iter().map(|epoll| (epoll.id, epoll.params)).collect())
    };
    for (epoll, _) in epolls()? {
        somebody_else_sets(Setting::Process(ProcessKnob::Epoll(epoll, EpollParams::default())))?;
    }
    let command = remedy(&findings(&operator, 3)?, "prefer-off")?.ok_or("a remedy")?;
    let there = format!(
        "netpolicy --netns pid:{} --state-dir {} ",
        operator.lab.server_pid(),
        operator.state().display()
    );
    assert!(command.starts_with(&there), "{command}");
    typed(&command)?;
    assert!(epolls()?.iter().all(|(_, params)| params.is_some_and(|params| params.prefer_busy_poll)));
    assert!(!findings(&operator, 0)?.iter().any(|finding| finding.rule == "prefer-off"));
    Ok(())
}

fn other_end() -> Result<(), Failed> {
    let operator = Operator::new("other-end", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    operator.runs(&["set", "device", "veth-server", "suspend20"], 0)?;
    operator.lab.client().run(|| -> Result<(), linux::KernelError> {
        let links = Links::open_here()?.all(|link| (link.name == b"veth-client").then_some(link.ifindex))?;
        links.into_iter().flatten().try_for_each(|index| switch(IfIndex(index), Offload::Tso, true))
    })??;
    let mut stream = connected(&operator, &server)?;
    let command = remedy(&findings(&operator, 3)?, "packets-on-no-napi")?.ok_or("a remedy")?;
    let words: Vec<&str> = command.split(' ').collect();
    assert_eq!(words[2..], ["ethtool", "-K", "veth-client", "tso", "off"], "{command}");
    let file = words[1].strip_prefix("--net=").ok_or("a namespace")?;
    assert_eq!(Netns::at(std::path::Path::new(file))?.id(), operator.lab.client().id());
    typed(&command)?;
    // The old connection has received no packet since then, so `doctor` has no remedy for it.
    assert_eq!(remedy(&findings(&operator, 3)?, "packets-on-no-napi")?, None);
    asked(&mut stream)?;
    assert!(!findings(&operator, 3)?.iter().any(|finding| finding.rule == "packets-on-no-napi"));
    Ok(())
}

fn nothing_to_set() -> Result<(), Failed> {
    let operator = Operator::new("no-sockets", 2)?;
    let before = operator.host()?;
    let mut sleeper = operator.lab.server().run(|| Command::new("sleep").arg("60").spawn())??;
    let pid = sleeper.id().to_string();
    let said = operator.runs(&["attach", &pid, "--policy", "latency", "--once"], 0);
    sleeper.kill()?;
    sleeper.wait()?;
    let words = said?.words;
    assert!(words.contains("has no socket that could receive packets"), "{words}");
    assert!(words.contains("Nothing to set."), "{words}");
    assert_eq!(operator.host()?, before);
    Ok(())
}
