//! Lines for the installed tc in the middle of a load: executed in order, reported, and refused with options
//! that promise more than is possible.

use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use libtest_mimic::{Failed, Trial};
use rustix::process::{Pid, Signal, kill_process};
use testkit::{Need, test};

use crate::rules::{HOOK, SOON, Stage, rules, text};

pub(crate) fn tests() -> Vec<Trial> {
    let root = [Need::Root];
    vec![
        test("tc_does_lines_of_disciplines_and_classes_in_their_turn", &root, in_turn),
        test("a_line_that_tc_refuses_is_accounted_for", &root, refused),
        test("nothing_after_a_refused_line_is_done_by_tc_or_netpolicy", &root, refused_amid),
        test("what_cannot_be_promised_of_lines_for_tc_is_refused", &root, not_promised),
        test("one_tc_does_all_lines_of_a_file", &root, one_process),
        test("a_tc_that_hangs_does_not_keep_a_load_that_shall_end", &root, hangs),
    ]
}

const ROOT: &str = "qdisc add dev d0 root handle 1: htb default 10\nclass add dev d0 parent 1: classid 1:10 htb rate 1mbit\n";
const MORE: &str = "class add dev d0 parent 1: classid 1:20 htb rate 2mbit\n";

/// Rules on the qdisc of [`ROOT`].
fn on_root(count: u32) -> String {
    let rule = |number: u32| {
        let address = format!("10.0.{}.{}", number >> 8, number & 255);
        format!("filter add dev d0 parent 1: protocol ip prio 1 u32 match ip src {address} classid 1:10\n")
    };
    (0..count).map(rule).collect()
}

/// The output of `tc` for d0.
fn shown(stage: &Stage, what: &[&str]) -> String {
    let output = stage.run("tc", what);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn in_turn() -> Result<(), Failed> {
    let stage = Stage::new("in_turn");
    let file = stage.file(&format!("{ROOT}{}{MORE}{HOOK}{}", on_root(300), rules(3, 300)));
    // Without `--with-tc`, the lines are errors and nothing is sent.
    let output = stage.run(testkit::programs::netpolicy(), &["tc", "load", text(&file)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--with-tc hands such a line to the installed tc"), "{said}");
    let (code, report) = stage.netpolicy(&["tc", "load", "--with-tc", "--dry-run", text(&file)]);
    assert_eq!((code, &report["for_tc"], &report["commands"]), (0, &3.into(), &605.into()), "{report}");
    assert!(!shown(&stage, &["class", "show", "dev", "d0"]).contains("htb"));

    for workers in ["1", "3"] {
        let arguments = ["tc", "load", "--with-tc", "--workers", workers, text(&file)];
        let (code, report) = stage.netpolicy(&arguments);
        assert_eq!((code, &report["loaded"], &report["by_tc"]), (0, &605.into(), &3.into()), "{report}");
        let classes = shown(&stage, &["class", "show", "dev", "d0"]);
        assert!(classes.contains("1:10") && classes.contains("1:20"), "{classes}");
        let filters = shown(&stage, &["filter", "show", "dev", "d0", "parent", "1:"]);
        assert_eq!(filters.matches("flowid 1:10").count(), 300);
        assert_eq!(stage.rules(), 301);
        // tc creates the qdisc of these rules and then removes it: in any other order, lines would fail.
        let away = format!(
            "qdisc del dev d0 root\nqdisc del dev d0 clsact\n{ROOT}{}qdisc del dev d0 root\n",
            on_root(200)
        );
        let away =
            stage.scratch.path("away.batch").to_str().map(|path| (path.to_owned(), away)).ok_or("text")?;
        std::fs::write(&away.0, away.1)?;
        let (code, report) = stage.netpolicy(&["tc", "load", "--with-tc", "--workers", workers, &away.0]);
        assert_eq!((code, &report["loaded"], &report["by_tc"]), (0, &205.into(), &4.into()), "{report}");
        assert!(!shown(&stage, &["qdisc", "show", "dev", "d0"]).contains("htb"));
    }
    Ok(())
}

fn refused() -> Result<(), Failed> {
    let stage = Stage::new("refused_by_tc");
    let wrong = "class add dev d0 parent 9: classid 9:1 htb rate 1mbit\n";
    let file = stage.file(&format!("{HOOK}{}{ROOT}{wrong}{MORE}{}", rules(1, 20), rules(2, 20)));
    let (code, report) = stage.netpolicy(&["tc", "load", "--with-tc", text(&file)]);
    assert_eq!(code, 1, "{report}");
    assert_eq!(
        (&report["loaded"], &report["by_tc"], &report["commands"]),
        (&24.into(), &2.into(), &47.into()),
        "{report}"
    );
    assert_eq!(
        (&report["refused"][0]["line"], &report["refused"][0]["errno"]),
        (&25.into(), &0.into()),
        "{report}"
    );
    assert!(
        report["refused"][0]["words"].as_str().is_some_and(|words| words.starts_with("tc: ")),
        "{report}"
    );
    let not_sent: Vec<u64> =
        report["not_sent"].as_array().ok_or("lines")?.iter().filter_map(|line| line.as_u64()).collect();
    assert_eq!(not_sent, (26..=47).collect::<Vec<_>>());
    assert_eq!(stage.rules(), 21);

    let other = Stage::new("refused_by_tc_on");
    let (code, report) = other.netpolicy(&["tc", "load", "--with-tc", "--keep-going", text(&file)]);
    assert_eq!((code, &report["loaded"], &report["by_tc"]), (1, &46.into(), &3.into()), "{report}");
    assert_eq!(
        (&report["refused"][0]["line"], report["refused"].as_array().map(Vec::len)),
        (&25.into(), Some(1))
    );
    assert_eq!(other.rules(), 42);
    Ok(())
}

/// Rules and classes alternate; lines that only list are skipped.
fn one_process() -> Result<(), Failed> {
    let stage = Stage::new("one_process");
    let tc = stage.scratch.path("tc");
    std::fs::write(&tc, "#!/bin/sh\necho started >>\"$0.starts\"\nexec /usr/sbin/tc \"$@\"\n")?;
    std::fs::set_permissions(&tc, std::fs::Permissions::from_mode(0o755))?;
    let alternating: String = (0..50)
        .map(|number| {
            let class = format!("class add dev d0 parent 1: classid 1:{:x} htb rate 1mbit\n", number + 0x100);
            format!("{class}filter add dev d0 parent 1: protocol ip prio 1 u32 match ip src 10.0.0.{number} classid 1:10\n")
        })
        .collect();
    let listing = "filter show dev d0 parent 1:\nqdisc show dev d0\n";
    let file = stage.file(&format!("{ROOT}{alternating}{listing}"));
    let arguments = ["-o", "json", "tc", "load", "--with-tc", text(&file)];
    let path = format!("{}:{}", stage.scratch.directory().display(), std::env::var("PATH")?);
    let mut load = Stage::command(testkit::programs::netpolicy(), &arguments);
    let load = stage.netns.run(|| load.env("PATH", path).spawn()).expect("inside").expect("started");
    let output = load.wait_with_output()?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let report = &report["data"];
    assert_eq!(
        (output.status.code(), &report["loaded"], &report["by_tc"], &report["commands"]),
        (Some(0), &102.into(), &52.into(), &102.into()),
        "{report}"
    );
    assert!(report["rate"].as_f64().is_some_and(|rate| rate > 0.0), "{report}");
    assert_eq!(std::fs::read_to_string(stage.scratch.path("tc.starts"))?.lines().count(), 1);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("2 lines from line 103 on only list rules"), "{said}");
    Ok(())
}

/// The kernel refuses a rule between two lines for tc, and a class between two rules: nothing after it is
/// executed.
fn refused_amid() -> Result<(), Failed> {
    let class = |number: u32| format!("class add dev d0 parent 1: classid 1:{number:x} htb rate 1mbit\n");
    let rule = |number: u32| {
        format!(
            "filter add dev d0 parent 1: protocol ip prio 1 handle 800::{number:x} u32 match ip src 10.0.0.{number} flowid 1:10\n"
        )
    };
    let pairs: Vec<String> = (0x100..0x140).flat_map(|number| [class(number), rule(number - 0xff)]).collect();
    // A class, or a handle, that exists already.
    for (name, again, by_tc, rules) in [("rule", 61, 33, 30), ("class", 60, 32, 30)] {
        let stage = Stage::new(&format!("refused_amid_{name}"));
        let mut lines = pairs.clone();
        lines[again].clone_from(&pairs[again - 2]);
        let file = stage.file(&format!("{ROOT}{}", lines.concat()));
        let (code, report) = stage.netpolicy(&["tc", "load", "--with-tc", text(&file)]);
        let at = again as u64 + 3;
        assert_eq!((code, &report["refused"][0]["line"]), (1, &at.into()), "{report}");
        assert_eq!(
            (&report["loaded"], &report["by_tc"]),
            (&(by_tc + rules).into(), &by_tc.into()),
            "{report}"
        );
        let not_sent = report["not_sent"].as_array().ok_or("lines")?;
        assert!(not_sent.iter().filter_map(|line| line.as_u64()).eq(at + 1..=130), "{report}");
        let classes = shown(&stage, &["class", "show", "dev", "d0"]);
        assert_eq!(classes.lines().count(), by_tc - 1, "{classes}");
        let filters = shown(&stage, &["filter", "show", "dev", "d0", "parent", "1:"]);
        assert_eq!(filters.matches("flowid 1:10").count(), rules, "{filters}");
    }
    Ok(())
}

fn not_promised() -> Result<(), Failed> {
    let stage = Stage::new("not_promised");
    assert_eq!(stage.netpolicy(&["tc", "load", text(&stage.file(HOOK))]).0, 0);
    let file = stage.file(&format!("{}{ROOT}", rules(1, 20)));
    for option in [&["--atomic"][..], &["--swap", "10"], &["--resume"]] {
        let arguments = [&["tc", "load", "--with-tc", text(&file)], option].concat();
        let output = stage.run(testkit::programs::netpolicy(), &arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), stage.rules()), (Some(7), 0), "{option:?}: {said}");
        assert!(said.contains(&format!("{}:22", text(&file))), "{option:?}: {said}");
    }
    assert_eq!(stage.netpolicy(&["tc", "load", "--with-tc", text(&file)]).0, 0);
    for compare in [&["tc", "diff"][..], &["tc", "load", "--check"]] {
        let (code, report) = stage.netpolicy(&[compare, &["--with-tc", text(&file)]].concat());
        assert_eq!((code, &report["same"], &report["not_compared"]), (0, &21.into(), &2.into()), "{report}");
    }
    Ok(())
}

fn hangs() -> Result<(), Failed> {
    let stage = Stage::new("hangs");
    let tc = stage.scratch.path("tc");
    std::fs::write(&tc, "#!/bin/sh\n: >\"$0.begun\"\nexec sleep 60\n")?;
    std::fs::set_permissions(&tc, std::fs::Permissions::from_mode(0o755))?;
    let file = stage.file(&format!("{HOOK}{ROOT}{}", rules(1, 20)));
    let arguments = ["-o", "json", "tc", "load", "--with-tc", text(&file)];
    let path = format!("{}:{}", stage.scratch.directory().display(), std::env::var("PATH")?);
    let mut load = Stage::command(testkit::programs::netpolicy(), &arguments);
    let load = stage.netns.run(|| load.env("PATH", path).spawn()).expect("inside").expect("started");
    let began = Instant::now();
    while !stage.scratch.path("tc.begun").exists() {
        assert!(began.elapsed() < SOON, "it never began");
    }
    let pid = i32::try_from(load.id()).ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(pid, Signal::TERM).expect("asked to end");
    let output = load.wait_with_output()?;
    assert!(began.elapsed() < SOON, "the load waited for tc");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let report = &report["data"];
    assert_eq!(
        (output.status.code(), &report["interrupted"], &report["loaded"]),
        (Some(1), &true.into(), &1.into())
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("A signal ended the load") && !said.contains("--resume"), "{said}");
    let words = report["refused"][0]["words"].as_str().ok_or("words")?;
    assert!(words.contains("it may or may not have done this line"), "{words}");
    assert_eq!(report["not_sent"].as_array().map(Vec::len), Some(22), "{report}");
    Ok(())
}
