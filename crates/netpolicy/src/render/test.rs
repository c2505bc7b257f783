//! Compares the output for a host with snapshots.

use model::Host;
use session::page::{Page, Report};

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
