//! Compares the output for a host with snapshots.

use std::time::Duration;

use model::host::{Irq, IrqEdge, Napi, NapiEdge, Unread};
use model::{Host, IrqNumber, NapiId, Pid, QueueIndex};
use session::page::{Page, Report};
use session::recording::Recording;

use super::host::HostReport;
use super::svg::svg;

/// Returns a complete but fictitious server with a NIC, a veth, memcached, nginx and an io_uring application.
fn cache_server() -> Host {
    serde_json::from_str(include_str!("../../tests/hosts/cache-server.json")).expect("the fixture is a host")
}

#[test]
fn show_prints_the_packet_path_of_a_cache_server() {
    let mut page = Page::new(false);
    HostReport(&cache_server()).page(&mut page);
    insta::assert_snapshot!(page.into_text());
}

#[test]
fn every_json_line_names_the_schema_and_its_kind() {
    let host = cache_server();
    let kinds: Vec<String> = HostReport(&host)
        .records()
        .lines()
        .map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).expect("one document per line");
            format!("{} {}", record["schema"].as_str().unwrap_or(""), record["kind"].as_str().unwrap_or(""))
        })
        .collect();
    let kind = |kind: &str| format!("netpolicy/v1 {kind}");
    assert_eq!(kinds.len(), host.devices.len() + host.irqs.len() + host.processes.len() + host.unread.len());
    assert!(kinds.starts_with(&[kind("device")]) && kinds.ends_with(&[kind("unread")]), "{kinds:?}");
}

#[test]
fn the_json_document_holds_the_whole_host() {
    let host = cache_server();
    let document: serde_json::Value = serde_json::from_str(&HostReport(&host).document()).expect("json");
    let data = serde_json::from_value::<Host>(document["data"].clone()).expect("a host");
    assert_eq!(data, host);
}

#[test]
fn the_drawing_is_well_formed_and_stands_alone() {
    let mut host = cache_server();
    host.irqs[0].name = "<&\"\u{1b}>".to_owned();
    let drawing = svg(&host);
    assert!(drawing.contains("&lt;&amp;&quot;\u{fffd}&gt;"));
    assert_eq!(drawing.matches("<svg").count(), drawing.matches("</svg>").count());
    assert_eq!(drawing.matches("<text").count(), drawing.matches("</text>").count());
    assert!(!drawing.contains("href") && !drawing.contains("<script") && !drawing.contains("url("));
}

#[test]
fn the_drawing_of_a_cache_server() {
    insta::assert_snapshot!(svg(&cache_server()));
}

#[test]
fn pages_and_names_agree_on_what_misleads_a_reader() {
    for c in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
        assert_eq!(session::page::is_misleading(c), model::is_misleading(c), "{c:?}");
    }
}

/// The number of queues of a generated recording.
const QUEUES: u32 = 64;

/// Returns a recording with this many processes, each with an epoll and two sockets, on 64 queues.
fn recording_of(count: u32) -> Recording {
    let text = include_str!("../../tests/hosts/recording.json");
    let mut recording = Recording::parse(text.as_bytes()).expect("a recording");
    let host = &mut recording.host;
    let cache = cache_server();
    let mut nic = cache.devices.iter().find(|device| !device.napis.is_empty()).expect("a NIC").clone();
    let (queue, napi) = (nic.rx_queues[0].clone(), nic.napis[0].clone());
    let irq = cache.irqs[0].clone();
    (nic.rx_queues, nic.napis) = (Vec::new(), Vec::new());
    let process = cache.processes.iter().find(|process| !process.epolls.is_empty()).expect("a server");
    host.processes.clear();
    host.irqs.clear();
    for nth in 0..QUEUES {
        let id = NapiId(100_000 + nth);
        let mut queue = queue.clone();
        queue.id.index = QueueIndex(nth);
        queue.napi = queue.napi.map(|edge| NapiEdge { napi: id, ..edge });
        nic.rx_queues.push(queue);
        let edge = napi.irq.map(|edge| IrqEdge { irq: IrqNumber(1_000 + nth), ..edge });
        nic.napis.push(Napi { id, irq: edge, ..napi.clone() });
        host.irqs.push(Irq { number: IrqNumber(1_000 + nth), ..irq.clone() });
    }
    for nth in 0..count {
        let id = NapiId(100_000 + nth % QUEUES);
        let mut process = process.clone();
        process.id.pid = Pid(20_000 + nth);
        process.epolls.truncate(1);
        process.sockets.truncate(2);
        for epoll in &mut process.epolls {
            epoll.id.process = process.id;
            epoll.members.truncate(2);
        }
        process.threads.clear();
        process.sockets.iter_mut().for_each(|socket| socket.napi = Some(id));
        host.processes.push(process);
        host.unread
            .push(Unread { what: format!("a[{}]: its epolls", 900_000 + nth), why: "denied".to_owned() });
    }
    recording.networking = host.processes.iter().map(|process| process.id.pid).collect();
    host.devices.push(nic);
    recording
}

/// Tests that the CPU time does not grow with the square of the number of processes: a loop over all
/// processes inside another such loop would take a hundred times the CPU time.
#[test]
fn ten_times_the_processes_print_ten_times_the_lines() {
    let lines = |count: u32| -> (Vec<usize>, Duration) {
        let recording = recording_of(count);
        let begun = of_this_thread();
        let texts = crate::recording_texts(&recording).expect("texts");
        (texts.iter().map(|text| text.lines().count()).collect(), of_this_thread() - begun)
    };
    let ((small, fast), (large, slow)) = (lines(1_000), lines(10_000));
    assert!(slow < 40 * fast, "{fast:?} for 1000 processes, {slow:?} for 10 000");
    assert!(large[0] > 10_000, "{large:?}");
    for (small, large) in small.iter().zip(&large) {
        assert!(*large <= 10 * small, "{small} {large}");
    }
}

/// Returns the CPU time of this thread.
fn of_this_thread() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
