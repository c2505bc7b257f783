//! Tests what `tc load` prints, mainly if a file is wrong. The tests need no root, and nothing is sent.

use std::process::{Command, Output};

use tempfile::TempDir;

/// Each line has one mistake.
const WRONG: &str = "\
filter add dev lo ingres protocol ip prio 1 flower
filter add dev lo ingress protocol ip prio 1 handel 1 flower
filter add dev lo ingress protocol ip prio 1 flowre dst_ip 10.0.0.1
filter add dev lo ingress protocol ip prio 1 flower dst_ip 10.0.0.999
filter add dev lo ingress protocol ip prio 1 flower src_mac 02:00:00:00:00:01 \\
    ip_proto tcp dts_port 80 action drop
filter add dev lo ingress protocol ip prio 1 flower action dorp
filter add dev lo ingress protocol ip prio 1 flower action mirred egress redirect dev nowhere
filter add dev lo ingress protocol ip prio 1 flower action mirred egress redirect
filter add dev lo ingress protocol ip prio 1 flower vlan_id 5
filter add dev lo ingress protocol ip prio 1 u32 match ip scr 10.0.0.1
filter add dev lo ingress protocol ip prio 1 u32 divisor 100
filter add dev lo ingress protocol mpls_uc prio 1 flower mpls lse label 5
filter add dev lo ingress protocol ip prio 1 flower skip_hw skip_sw
filter add dev lo ingress protocol ip prio 1 flower action drop no_precpu
filtre add dev lo ingress
filter add dev 'lo ingress
filter add dev lo ingress protocol ip prio 70000 flower
qdisc add dev lo fq_codel
";

const RIGHT: &str = "\
# A comment, and a line that goes on.
qdisc add dev lo clsact
filter add dev lo ingress protocol ip prio 1 flower \\
    dst_ip 10.0.0.1 action drop
filter add dev lo ingress protocol ip prio 2 u32 match ip src 10.0.0.0/8 action ok
";

fn loaded(name: &str, text: &str, arguments: &[&str]) -> Output {
    let folder = TempDir::with_prefix(format!("netpolicy-rule-files-{name}-")).expect("a directory");
    std::fs::write(folder.path().join("rules.batch"), text).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_netpolicy-tc"));
    command.current_dir(folder.path()).args(arguments).env("NO_COLOR", "1");
    command.output().expect("started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[test]
fn every_mistake_is_shown_with_line_caret_and_nearest_word() {
    let output = loaded("wrong", WRONG, &["tc", "load", "rules.batch"]);
    assert_eq!(output.status.code(), Some(2));
    insta::assert_snapshot!("mistakes", text(&output.stderr));
    assert!(output.stdout.is_empty());
}

#[test]
fn the_json_report_lists_every_mistake_with_its_line() {
    for arguments in
        [&["tc", "load"][..], &["tc", "load", "--dry-run"], &["tc", "load", "--check"], &["tc", "diff"]]
    {
        let arguments = [&["-o", "json"], arguments, &["rules.batch"]].concat();
        let output = loaded("listed", WRONG, &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let wrong = report["data"]["wrong_lines"].as_array().expect("a list");
        assert_eq!((wrong.len(), &report["data"]["wrong"]), (18, &18.into()), "{report}");
        assert_eq!((&wrong[4]["line"], &wrong[4]["column"]), (&6.into(), &18.into()), "{report}");
        assert_eq!(wrong[1]["help"], "did you mean `handle`?", "{report}");
        // Every command prints the same text for people.
        assert!(text(&output.stderr).contains("--> rules.batch:6:18"), "{}", text(&output.stderr));
    }
}

#[test]
fn of_many_mistakes_some_are_drawn_and_all_are_counted() {
    let output = loaded("many", &"filtre add\n".repeat(3000), &["tc", "load", "rules.batch"]);
    let said = text(&output.stderr);
    assert!(said.contains("… and 2980 more"), "{said}");
}

#[test]
fn a_word_as_long_as_a_line_is_not_printed_whole() {
    let long = "x".repeat(1_000_000);
    let lines = [
        format!("filter add dev {long} ingress\n"),
        format!("filter add dev lo ingress protocol ip prio 1 u32 match ip src {long}\n"),
        format!("{long} add dev lo\n"),
        format!("qdisc add dev lo root {long}\n"),
    ];
    for options in [&["tc", "load"][..], &["-o", "json", "tc", "load"], &["tc", "diff"]] {
        let output = loaded("long", &lines.concat(), &[options, &["rules.batch"]].concat());
        assert_eq!(output.status.code(), Some(2));
        let (said, data) = (text(&output.stderr), text(&output.stdout));
        assert!(said.len() < 8_000 && data.len() < 8_000, "{} and {} bytes", said.len(), data.len());
        assert!(said.contains("x` is not the name of an existing device"), "{said}");
    }
    // A name on the command line is escaped in the same way.
    let long = "x".repeat(100_000);
    for arguments in
        [&["tc", "dump", "--dev", &long][..], &["tc", "load", "--workers", &long, "rules.batch"], &[&long]]
    {
        let output = loaded("argument", RIGHT, arguments);
        assert!(!output.status.success() && output.stderr.len() < 8_000, "{} bytes", output.stderr.len());
    }
}

#[test]
fn rules_that_a_packet_is_compared_with_one_after_the_other_are_warned_of() {
    let rule = |place: &str, rule: u32| {
        let address = format!("10.0.{}.{}", rule >> 8, rule & 255);
        format!("filter add dev lo ingress protocol ip prio 1 u32 {place}match ip src {address} action ok\n")
    };
    let said = |name: &str, place: &dyn Fn(u32) -> String| {
        let rules: String = (0..1500).map(|number| rule(&place(number), number)).collect();
        let output = loaded(name, &rules, &["tc", "load", "--dry-run", "rules.batch"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let deep = said("deep", &|_| String::new());
    assert!(deep.contains("lo ingress, priority 1 gets 1500 rules in no hash table of the file"), "{deep}");
    let one = said("one", &|_| "ht 3:7: ".to_owned());
    assert!(one.contains("gets 1500 rules in bucket 3:7"), "{one}");
    assert_eq!(said("spread", &|number| format!("ht 3:{:x}: ", number & 255)), "");
}

#[test]
fn a_dry_run_counts_and_sends_nothing() {
    let output = loaded("dry", RIGHT, &["tc", "load", "--dry-run", "rules.batch"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    insta::assert_snapshot!("dry_run", text(&output.stdout));
    let output = loaded("dry_json", RIGHT, &["-o", "json", "tc", "load", "--dry-run", "rules.batch"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["data"]["commands"], 3, "{report}");
    assert_eq!(report["data"]["rules"], 2, "{report}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let output = loaded("absent", "", &["tc", "load", "absent.batch"]);
    assert_eq!(output.status.code(), Some(1));
    insta::assert_snapshot!("absent", text(&output.stderr));
}
