//! The lines of the kernel's own tests of tc, as the installed tc sends them: checks the recording
//! `tools/tc-rules/tests/golden/tc-testing.hex`. Source: Linux,
//! `tools/testing/selftests/tc-testing/tc-tests/`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use libtest_mimic::{Failed, Trial};
use netlink::attr::AttrBuf;
use tc_rules::{Batch, Lookup};
use testkit::{Need, test};

use crate::rules::{Stage, messages, text};

pub(crate) fn tests() -> Vec<Trial> {
    let needs = [Need::Root, Need::Strace, Need::KernelsTcTests, Need::Iproute61];
    vec![
        test("tc_sends_what_was_recorded_for_the_lines_of_the_kernels_tests", &needs, recorded),
        test(
            "tc_reads_the_words_for_a_rule_as_netpolicy_does",
            &[Need::Root, Need::Strace, Need::Iproute61],
            words,
        ),
    ]
}

/// `NLM_F_ACK`, which tc sets on every message.
const ACK: u16 = 4;

const RECORDED: &str = include_str!("../golden/tc-testing.hex");

/// The tests' files, each with its lines that change rules and actions, without duplicates.
fn lines() -> Vec<(String, Vec<String>)> {
    let directory = testkit::kernel_sources::tc_tests().expect("the kernel's tests");
    let mut files = Vec::new();
    for part in ["actions", "filters", "infra", "qdiscs"] {
        let entries = std::fs::read_dir(directory.join(part)).expect("a directory");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        files.extend(paths);
    }
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for path in files {
        let mut lines = lines_of(&path);
        lines.retain(|line| seen.insert(line.clone()));
        let (part, name) = (path.parent().and_then(Path::file_name), path.file_stem());
        let name = [part, name].map(|name| name.expect("a name").to_string_lossy().into_owned()).join("/");
        if !lines.is_empty() {
            all.push((name, lines));
        }
    }
    all
}

/// The lines of one file of tests.
fn lines_of(path: &Path) -> Vec<String> {
    let text = std::fs::read(path).expect("a file");
    let tests: serde_json::Value = serde_json::from_slice(&text).expect("tests");
    let mut lines = Vec::new();
    for test in tests.as_array().expect("a list") {
        let around = ["setup", "teardown"].map(|part| test[part].as_array().cloned().unwrap_or_default());
        let [setup, teardown] = around;
        let commands = setup.iter().chain([&test["cmdUnderTest"]]).chain(&teardown);
        // A command is a string, or a list of a string and its allowed exit codes.
        lines.extend(commands.filter_map(|command| line(command[0].as_str().or(command.as_str())?)));
    }
    lines
}

/// A command as a line of a batch file, if it changes rules or actions and needs no shell.
fn line(command: &str) -> Option<String> {
    let line = command.trim().strip_prefix("$TC ")?;
    let line =
        line.replace("$DEV1", "d0").replace("$DUMMY", "d0").replace("$ETH", "d0").replace("$IFB", "d1");
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut words = line.split(' ');
    let (about, verb) = (words.next()?, words.next()?);
    let of_rules = match about {
        "filter" | "chain" | "actions" | "action" => true,
        "qdisc" => words.clone().any(|word| word == "clsact" || word == "ingress") && !line.contains(" root"),
        _ => false,
    };
    let changes = ["add", "replace", "change", "del", "delete", "flush"].contains(&verb);
    (of_rules && changes && !line.contains(['$', '`', '|', ';', '>'])).then_some(line)
}

fn recorded() -> Result<(), Failed> {
    let stage = Stage::new("corpus");
    let mut table = tc_rules::kernel::Devices::of(&stage.netns);
    let mut now = String::new();
    for line in RECORDED.lines().take_while(|line| line.starts_with("# ")) {
        writeln!(now, "{line}").expect("text");
    }
    for name in ["d0", "d1", "lo"] {
        writeln!(now, "{name} {}", table.device(name).expect("a device").0).expect("text");
    }
    for (file, lines) in lines() {
        writeln!(now, "## {file}").expect("text");
        for line in lines {
            let mut sent = sent_by_tc(&stage, &line);
            if line.contains(" sdata ") && sent != "-" {
                // After a short text, tc sends uninitialised memory, which may differ each time.
                let before = RECORDED.lines().skip_while(|row| *row != line).nth(1);
                sent = before.unwrap_or_default().to_owned();
            }
            writeln!(now, "{line}\n{sent}").expect("text");
        }
    }
    if now != RECORDED {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tc-testing.hex");
        std::fs::write(&path, now).expect("written");
        return Err(format!("tc sends something else now: see {}", path.display()).into());
    }
    Ok(())
}

/// The formatted rules of the lines, and their actions, each in a rule.
fn words() -> Result<(), Failed> {
    let stage = Stage::new("words");
    let mut table = tc_rules::kernel::Devices::of(&stage.netns);
    let mut seen = BTreeSet::new();
    for line in RECORDED.lines() {
        let line = match line.split_once(" add action ") {
            Some(("actions" | "action", action)) => {
                format!("filter add dev d0 ingress protocol ip prio 1 u32 match u32 0 0 action {action}")
            }
            _ if line.starts_with("filter add ") => line.to_owned(),
            _ => continue,
        };
        let mut batch = Batch::new(line.as_bytes());
        let Ok(Some((_, command))) = batch.next_command(&mut table) else { continue };
        let words = command.rule().cloned().and_then(|rule| rule.line(&mut table));
        seen.extend(words);
    }
    // After a short text, tc sends uninitialised memory.
    seen.retain(|line: &String| !line.contains("action simple sdata"));
    let mut differences = String::new();
    for line in &seen {
        let mut batch = Batch::new(line.as_bytes());
        let (_, command) = batch.next_command(&mut table).expect("read").expect("a command");
        let mut out = AttrBuf::new();
        command.encode(0, ACK, &mut out);
        let (own, sent) = (hexadecimal(out.as_bytes()), sent_by_tc(&stage, line));
        if own != sent {
            writeln!(differences, "{line}\n  {own}\n  {sent}").expect("text");
        }
    }
    assert!(differences.is_empty(), "{differences}");
    assert!(seen.len() >= 350, "only {} rules", seen.len());
    Ok(())
}

/// The messages that tc sends about rules for a line, in hexadecimal; `-` if tc refuses the line.
fn sent_by_tc(stage: &Stage, line: &str) -> String {
    /// `RTM_GETLINK`: tc requests devices.
    const GET_LINK: u16 = 18;
    let (batch, trace) = (stage.file(&format!("{line}\n")), stage.scratch.path("trace"));
    let _ = std::fs::remove_file(&trace);
    stage.run(
        "strace",
        &["-e", "trace=sendmsg", "-e", "write=all", "-o", text(&trace), "tc", "-b", text(&batch)],
    );
    let traced = std::fs::read_to_string(&trace).expect("a trace");
    let sent = messages(&traced).into_iter().rfind(|message| message[4..6] != GET_LINK.to_ne_bytes());
    let Some(mut sent) = sent else { return "-".to_owned() };
    sent[8..12].fill(0);
    hexadecimal(&sent)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
