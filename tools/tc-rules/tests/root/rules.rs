//! Tests loads of many rules with the command: which rules are loaded, refused and undone, and what tc itself
//! sends.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use linux::Netns;
use netlink::rtlink::{RtLink, VethEnd};
use netlink::{AttrBuf, DumpPiece, Malformed, NetlinkProtocol, NetlinkSocket};
use tc_rules::kernel::{Devices, Loader, Options, dump};
use tc_rules::{Batch, Hook, Lookup, command};
use testkit::fits::misfit;
use testkit::scratch::Scratch;
use testkit::{Need, test};

/// How long a process may take to react.
pub(crate) const SOON: Duration = Duration::from_secs(120);

/// The polling interval while a load is running.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(1);

pub(crate) fn tests() -> Vec<Trial> {
    let root = [Need::Root];
    vec![
        test("a_loaded_file_is_as_the_kernel_dumps_it", &root, round_trip),
        test("a_wrong_line_in_the_middle_of_a_million_sends_nothing", &root, wrong_line),
        test("a_match_that_the_kernel_ignores_is_refused_and_nothing_stands_of_it", &root, ignored),
        test("every_refusal_has_its_line_and_the_rest_is_loaded", &root, refusals),
        test("a_load_that_stops_accounts_for_every_line", &root, stops),
        test("a_load_that_leaves_out_wrong_lines_sends_while_it_reads", &root, streams),
        test("an_atomic_load_that_is_refused_leaves_nothing", &root, atomic_refused),
        test("an_atomic_load_that_is_killed_leaves_nothing", &root, atomic_killed),
        test("a_load_that_is_killed_is_resumed", &root, resumed),
        test("a_device_that_vanishes_half_way_is_accounted_for", &root, device_vanishes),
        test("answers_that_are_lost_are_unknown_and_none_is_counted_wrong", &root, overrun),
        test("shared_actions_are_one_instance", &root, shared),
        test("tc_sends_the_same_bytes_for_every_construct", &[Need::Root, Need::Strace], golden),
    ]
}

/// A test's namespace with a pair of devices, d0 and d1, and a directory for files.
pub(crate) struct Stage {
    pub(crate) netns: Netns,
    pub(crate) scratch: Scratch,
}

impl Stage {
    pub(crate) fn new(name: &str) -> Self {
        Self::within(Netns::create().expect("a namespace"), name)
    }

    /// Creates a stage in an existing namespace.
    pub(crate) fn within(netns: Netns, name: &str) -> Self {
        let made = netns.run(|| {
            let end = |name| VethEnd { name, queues: 1 };
            RtLink::open_here()?.create_veth(end("d0"), end("d1"), netns.as_fd())
        });
        made.expect("inside").expect("a pair of devices");
        let scratch = Scratch::new(&format!("rules-{name}")).expect("a directory");
        Self { netns, scratch }
    }

    pub(crate) fn file(&self, text: &str) -> PathBuf {
        let path = self.scratch.path("rules.batch");
        std::fs::File::create(&path).and_then(|mut file| file.write_all(text.as_bytes())).expect("a file");
        path
    }

    pub(crate) fn command(program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Output {
        self.netns.run(|| Self::command(program, arguments).output()).expect("inside").expect("run")
    }

    pub(crate) fn netpolicy(&self, arguments: &[&str]) -> (i32, serde_json::Value) {
        let output = self.run(testkit::programs::netpolicy(), &[&["-o", "json"], arguments].concat());
        assert_eq!(misfit(&[&["-o", "json"], arguments].concat(), &output.stdout), None, "{arguments:?}");
        let value = serde_json::from_slice(&output.stdout).unwrap_or(serde_json::Value::Null);
        (output.status.code().expect("ended"), value["data"].clone())
    }

    pub(crate) fn hook(&self) -> Hook {
        let device = Devices::of(&self.netns).device("d0").expect("d0");
        Hook { device, block: 0, parent: command::INGRESS }
    }

    /// Whether at least `count` rules exist. The dump stops at that number, because a dump of all rules may
    /// outlast the load.
    pub(crate) fn has(&self, count: usize) -> bool {
        let hook = self.hook();
        let mut header = [0; 20]; // struct tcmsg
        header[4..8].copy_from_slice(&hook.device.0.to_ne_bytes());
        header[12..16].copy_from_slice(&hook.parent.to_ne_bytes());
        let mut seen = 0;
        let mut socket = NetlinkSocket::open(NetlinkProtocol::Route, &self.netns).expect("a socket");
        let _ = socket.dump_each("rules", command::message::GET_FILTER, &AttrBuf::after(&header), |piece| {
            match piece {
                DumpPiece::Begin => seen = 0,
                DumpPiece::Object(object) => seen += usize::from(object[8..12] != [0; 4]),
            }
            if seen < count { Ok(()) } else { Err(Malformed("this many are enough")) }
        });
        seen >= count
    }

    /// The number of rules; 0 if the hook does not exist.
    pub(crate) fn rules(&self) -> usize {
        let mut count = 0;
        let _ = dump::rules(&self.netns, self.hook(), |dumped| match dumped {
            dump::Dumped::Begin => count = 0,
            dump::Dumped::Rule(_) | dump::Dumped::Unknown => count += 1,
        });
        count
    }
}

pub(crate) const HOOK: &str = "qdisc add dev d0 clsact\n";

/// Returns the lines that create a hash table and `count` rules with handles in one priority, each of which
/// matches a different address.
pub(crate) fn rules(priority: u16, count: u32) -> String {
    let table = format!(
        "filter add dev d0 ingress protocol ip prio {priority} handle {priority:x}: u32 divisor 256\n"
    );
    let rule = |rule: u32| {
        let (bucket, node) = (rule % 256, rule / 256 + 1);
        format!(
            "filter add dev d0 ingress protocol ip prio {priority} handle {priority:x}:{bucket:x}:{node:x} u32 ht \
             {priority:x}:{bucket:x}: match ip src 10.{}.{}.{} action mirred egress redirect dev d1\n",
            rule >> 16 & 255,
            rule >> 8 & 255,
            rule & 255
        )
    };
    std::iter::once(table).chain((0..count).map(rule)).collect()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

fn round_trip() -> Result<(), Failed> {
    let stage = Stage::new("round_trip");
    let file = stage.file(&format!("{HOOK}{}", rules(1, 1000)));
    let (code, report) = stage.netpolicy(&["tc", "load", text(&file)]);
    assert_eq!((code, &report["loaded"]), (0, &1002.into()), "{report}");
    let (code, report) = stage.netpolicy(&["tc", "diff", text(&file)]);
    assert_eq!((code, &report["same"], &report["extra"]), (0, &1001.into(), &0.into()), "{report}");
    let dump = |stage: &Stage| {
        let dumped = stage.run(testkit::programs::netpolicy(), &["tc", "dump", "--dev", "d0", "--qdisc"]);
        assert!(dumped.status.success());
        String::from_utf8(dumped.stdout).expect("text")
    };
    // The dump includes the clsact qdisc, so it can be loaded on a device without one.
    let dumped = dump(&stage);
    assert!(dumped.starts_with(HOOK), "{}", dumped.lines().next().unwrap_or_default());
    let other = Stage::new("round_trip_other");
    let again = other.file(&dumped);
    assert_eq!(other.netpolicy(&["tc", "load", text(&again)]).0, 0);
    assert_eq!(dump(&other), dumped);
    Ok(())
}

fn wrong_line() -> Result<(), Failed> {
    let stage = Stage::new("wrong_line");
    let line = 500_000;
    let right = "filter add dev d0 ingress prio 1 handle 1 matchall\n";
    let mut wrong = right.repeat(1_000_000);
    let at = (line - 2) * right.len();
    wrong.replace_range(at..at + right.len(), &right.replace("handle", "handel"));
    let file = stage.file(&format!("{HOOK}{wrong}"));
    let output = stage.run(testkit::programs::netpolicy(), &["tc", "load", text(&file)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("did you mean `handle`?") && said.contains("^^^^^^"), "{said}");
    assert!(said.contains(&format!("{}:{line}", text(&file))), "{said}");
    assert_eq!(stage.rules(), 0);
    Ok(())
}

/// With `CONFIG_CLS_U32_MARK` the line is loaded; without it, the line is refused and no rule remains. It is
/// never reported as loaded while the kernel has a different rule.
fn ignored() -> Result<(), Failed> {
    let marked =
        "filter add dev d0 ingress protocol ip prio 6 u32 match mark 0x6 0xffff match u32 0 0 flowid 1:6\n";
    let plain = marked.replace("match mark 0x6 0xffff ", "").replace("prio 6", "prio 5");
    for options in [&[][..], &["--atomic"], &["--keep-going"], &["--workers", "2"]] {
        let stage = Stage::new("ignored");
        assert!(stage.run("tc", &["qdisc", "add", "dev", "d0", "clsact"]).status.success());
        let file = stage.file(&format!("{plain}{marked}{marked}{plain}"));
        let load = [&["tc", "load", text(&file)][..], options].concat();
        let (code, report) = stage.netpolicy(&load);
        let (differs, diff) = stage.netpolicy(&["tc", "diff", text(&file)]);
        if code == 0 {
            assert_eq!((differs, &diff["same"]), (0, &4.into()), "{diff}");
            continue;
        }
        let refused = report["refused"].as_array().expect("a list");
        assert_eq!(refused[0]["line"], 2, "{report}");
        assert!(refused[0]["words"].as_str().expect("words").contains("CONFIG_CLS_U32_MARK"), "{report}");
        let (stand, lines) = match options {
            ["--atomic"] => (0, 1),
            ["--keep-going"] => (2, 2),
            _ => (1, 1),
        };
        assert_eq!((diff["same"].as_u64(), &diff["extra"]), (Some(stand), &0.into()), "{options:?} {diff}");
        assert_eq!(refused.len(), lines, "{options:?} {report}");
        if options == ["--keep-going"] {
            // A rule that tc has loaded from such a line counts as different, not as missing and extra.
            let output = stage.run("tc", &["-b", text(&file)]);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let (_, diff) = stage.netpolicy(&["tc", "diff", text(&file)]);
            assert_eq!(diff["different"], serde_json::json!([2, 3]), "{diff}");
            let (code, report) = stage.netpolicy(&["tc", "load", text(&file), "--resume"]);
            assert_ne!(code, 0, "{report}");
            assert_eq!(report["loaded"], 0, "the same lines are not added again: {report}");
        }
    }
    Ok(())
}

fn refusals() -> Result<(), Failed> {
    let stage = Stage::new("refusals");
    // Load every rule twice: the second half is refused, with more answers than the default receive buffer
    // holds.
    let once = rules(1, 2000);
    let file = stage.file(&format!("{HOOK}{once}{once}"));
    let (code, report) = stage.netpolicy(&["tc", "load", text(&file), "--keep-going"]);
    assert_eq!((code, &report["loaded"]), (1, &2002.into()));
    let lines: Vec<u64> =
        report["refused"].as_array().expect("a list").iter().filter_map(|r| r["line"].as_u64()).collect();
    assert_eq!(lines, (2003..=4003).collect::<Vec<u64>>());
    assert!(
        report["refused"][5]["words"].as_str().expect("words").contains("EEXIST"),
        "{}",
        report["refused"][5]
    );
    Ok(())
}

fn streams() -> Result<(), Failed> {
    let stage = Stage::new("streams");
    let (right, wrong) = (rules(1, 100_000), "filter add dev d0 ingress prio 1 handel 1 u32\n");
    let file = stage.file(&format!("{HOOK}{right}{wrong}"));
    let arguments = ["-o", "json", "tc", "load", "--keep-going", text(&file)];
    let spawned = stage.netns.run(|| Stage::command(testkit::programs::netpolicy(), &arguments).spawn());
    let child = spawned.expect("inside").expect("started");
    let began = Instant::now();
    while !stage.has(1000) {
        assert!(began.elapsed() < SOON, "it never began");
        std::thread::sleep(LOOK_AGAIN);
    }
    let io = std::fs::read_to_string(format!("/proc/{}/io", child.id())).expect("counts");
    let read =
        io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse::<usize>().ok()).expect("rchar");
    assert!(
        read < right.len() / 2,
        "{read} of {} bytes were read before the first thousand rules",
        right.len()
    );
    let output = child.wait_with_output()?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let (report, said) = (&report["data"], String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        (output.status.code(), &report["loaded"], &report["wrong"]),
        (Some(1), &100_002.into(), &1.into())
    );
    assert_eq!((&report["commands"], &report["wrong_lines"][0]["line"]), (&100_003.into(), &100_003.into()));
    assert!(said.contains("did you mean `handle`?") && said.contains("This part was skipped."), "{said}");
    Ok(())
}

fn stops() -> Result<(), Failed> {
    let stage = Stage::new("stops");
    let good = rules(1, 5000);
    let twice = good.lines().nth(1).expect("a rule").to_owned();
    let mut lines: Vec<&str> = good.lines().collect();
    lines.insert(2000, &twice);
    let file = stage.file(&format!("{HOOK}{}\n", lines.join("\n")));
    let (code, report) = stage.netpolicy(&["tc", "load", text(&file)]);
    assert_eq!(code, 1);
    let count = |key: &str| report[key].as_array().map_or(0, Vec::len) as u64;
    let loaded = report["loaded"].as_u64().expect("a number");
    assert_eq!(report["refused"][0]["line"], 2002, "{}", report["refused"]);
    assert_eq!(loaded + count("refused") + count("not_sent") + count("not_loaded"), 5003);
    assert_eq!(stage.rules() as u64, loaded - 1, "rules and the hook");
    Ok(())
}

fn atomic_refused() -> Result<(), Failed> {
    let stage = Stage::new("atomic");
    let before = stage.file(&format!("{HOOK}{}", rules(1, 10)));
    assert_eq!(stage.netpolicy(&["tc", "load", text(&before)]).0, 0);
    let fresh = rules(2, 3000);
    let twice = fresh.lines().last().expect("a rule").to_owned();
    let file = stage.file(&format!("{fresh}{twice}\n"));
    let (code, report) = stage.netpolicy(&["tc", "load", "--atomic", text(&file)]);
    assert_eq!((code, &report["undone"]), (4, &true.into()), "{report}");
    assert_eq!(stage.rules(), 11, "the former rules");
    // The priority existed before: undoing the load must keep the earlier rules in it.
    let more = "filter add dev d0 ingress protocol ip prio 1 handle 1:7:aa u32 ht 1:7: match ip src 1.1.1.1 classid 1:1\n\
                filter add dev d0 ingress protocol ip prio 1 handle 1:8:aa u32 ht 99:8: match ip src 1.1.1.1 classid 1:1\n";
    let file = stage.file(more);
    assert_eq!(stage.netpolicy(&["tc", "load", "--atomic", text(&file)]).0, 4);
    assert_eq!(stage.rules(), 11);
    Ok(())
}

/// Kills a load once this many rules exist.
pub(crate) fn killed_at(stage: &Stage, file: &Path, options: &[&str], count: usize) {
    // Run the load with a lower CPU priority: this test must observe it before it ends.
    let arguments =
        [&["-n", "5", testkit::programs::netpolicy(), "tc", "load", text(file)], options].concat();
    let spawned = stage.netns.run(|| Stage::command("nice", &arguments).spawn());
    let mut child = spawned.expect("inside").expect("started");
    let began = Instant::now();
    while !stage.has(count) {
        assert!(child.try_wait().expect("asked").is_none(), "the load ended too soon");
        assert!(began.elapsed() < SOON, "{count} rules did not exist within {SOON:?}");
        std::thread::sleep(LOOK_AGAIN);
    }
    child.kill().expect("killed");
    child.wait().expect("waited");
}

fn atomic_killed() -> Result<(), Failed> {
    let stage = Stage::new("killed");
    let hook = stage.file(HOOK);
    assert_eq!(stage.netpolicy(&["tc", "load", text(&hook)]).0, 0);
    let file = stage.file(&rules(3, 50_000));
    killed_at(&stage, &file, &["--atomic"], 1000);
    let began = Instant::now();
    while stage.rules() > 0 {
        assert!(began.elapsed() < SOON, "{} rules were left", stage.rules());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn resumed() -> Result<(), Failed> {
    // On a busy machine the load may end before it is killed: try again.
    const ATTEMPTS: usize = 10;
    let killed_half_way = || {
        let stage = Stage::new("resumed");
        let file = stage.file(&format!("{HOOK}{}", rules(1, 50_000)));
        killed_at(&stage, &file, &[], 1000);
        (1000..50_000).contains(&stage.rules()).then_some((stage, file))
    };
    let (stage, file) = (0..ATTEMPTS).find_map(|_| killed_half_way()).ok_or("no load was killed halfway")?;
    let (code, report) = stage.netpolicy(&["tc", "load", "--resume", text(&file)]);
    assert_eq!(code, 0, "{report}");
    assert_eq!(
        report["loaded"].as_u64().expect("a number") + report["skipped"].as_u64().expect("a number"),
        50_002
    );
    assert_eq!(stage.rules(), 50_001);
    // With both options, wrong lines are reported and skipped, and the missing rules are loaded.
    let hook = "qdisc del dev d0 clsact\nqdisc add dev d0 clsact\n";
    assert_eq!(stage.netpolicy(&["tc", "load", text(&stage.file(&format!("{hook}{}", rules(1, 10))))]).0, 0);
    let file = stage.file(&rules(1, 5000).replace("10.0.16.0", "10.0.16.O"));
    let (code, report) = stage.netpolicy(&["tc", "load", "--resume", "--keep-going", text(&file)]);
    assert_eq!(code, 1, "{report}");
    assert_eq!(
        (&report["loaded"], &report["skipped"], &report["wrong"]),
        (&4989.into(), &11.into(), &1.into()),
        "{report}"
    );
    assert_eq!(stage.rules(), 5000);
    Ok(())
}

fn device_vanishes() -> Result<(), Failed> {
    let stage = Stage::new("vanishes");
    let file = stage.file(&format!("{HOOK}{}", rules(1, 50_000)));
    let arguments = ["-o", "json", "tc", "load", text(&file), "--keep-going"];
    let spawned = stage.netns.run(|| Stage::command(testkit::programs::netpolicy(), &arguments).spawn());
    let child = spawned.expect("inside").expect("started");
    let began = Instant::now();
    while !stage.has(1000) {
        assert!(began.elapsed() < SOON, "it never began");
        std::thread::sleep(LOOK_AGAIN);
    }
    assert!(stage.run("ip", &["link", "del", "d0"]).status.success());
    let output = child.wait_with_output().expect("waited");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let report = &report["data"];
    let refused = report["refused"].as_array().expect("a list");
    assert_eq!(report["loaded"].as_u64().expect("a number") + refused.len() as u64, 50_002);
    assert!(
        refused.last().expect("refusals")["words"].as_str().expect("words").contains("ENODEV"),
        "{:?}",
        refused.last()
    );
    Ok(())
}

fn overrun() -> Result<(), Failed> {
    let stage = Stage::new("overrun");
    let once = rules(1, 1000);
    let all = format!("{HOOK}{once}{once}");
    // With such a small buffer, most answers are lost if every rule of a portion fails.
    let options = Options { stop_at_refusal: false, receive_bytes: 4096, ..Options::default() };
    let mut loader = Loader::open(&stage.netns, options).expect("a loader");
    let mut devices = Devices::of(&stage.netns);
    let mut batch = Batch::new(all.as_bytes());
    while let Some((line, command)) = batch.next_command(&mut devices).expect("read") {
        loader.push(line, command).expect("pushed");
    }
    let account = loader.finish().expect("an account");
    assert!(!account.unknown.is_empty(), "nothing was lost");
    let known = account.refused.len() + account.unknown.len();
    assert_eq!(account.loaded + known as u64, 2003);
    assert!(account.refused.iter().all(|refused| refused.line > 1002));
    assert!(account.loaded <= 1002, "{} were loaded", account.loaded);
    Ok(())
}

fn shared() -> Result<(), Failed> {
    let stage = Stage::new("shared");
    let file = stage.file(&format!("{HOOK}{}", rules(1, 100)));
    let (code, report) =
        stage.netpolicy(&["tc", "load", text(&file), "--share-actions", "--no-percpu", "always"]);
    assert_eq!((code, &report["shared_actions"]), (0, &1.into()), "{report}");
    let listed = stage.run("tc", &["actions", "ls", "action", "mirred"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(
        listed.contains("total acts 1") && listed.contains("bind 100") && listed.contains("no_percpu"),
        "{listed}"
    );
    Ok(())
}

/// Compares the recorded bytes of every construct with those that the installed tc sends.
fn golden() -> Result<(), Failed> {
    let stage = Stage::new("golden");
    let constructs = include_str!("../golden/lines.batch");
    let trace = stage.scratch.path("trace");
    let mut devices = Devices::of(&stage.netns);
    let mut compared = 0;
    for line in constructs.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let file = stage.file(&format!("{line}\n"));
        stage.run(
            "strace",
            &["-e", "trace=sendmsg", "-e", "write=all", "-o", text(&trace), "tc", "-b", text(&file)],
        );
        let traced = std::fs::read_to_string(&trace).expect("a trace");
        let sent = messages(&traced).into_iter().rfind(|message| message[4..6] != 18_u16.to_ne_bytes());
        let mut sent = sent.unwrap_or_else(|| panic!("tc sent nothing for: {line}"));
        sent[8..12].fill(0);
        let mut batch = Batch::new(line.as_bytes());
        let (_, command) = batch.next_command(&mut devices).expect("read").expect("a command");
        let mut out = netlink::attr::AttrBuf::new();
        command.encode(0, 4, &mut out);
        assert!(out.as_bytes() == sent, "{line}\n{:02x?}\n{sent:02x?}", out.as_bytes());
        compared += 1;
    }
    assert!(compared >= 140, "only {compared} lines");
    for line in include_str!("../golden/refused.batch").lines().filter(|l| !l.starts_with('#')) {
        let file = stage.file(&format!("{line}\n"));
        let output = stage.run("tc", &["-b", text(&file)]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && !said.contains("error talking to the kernel"), "{line}\n{said}");
    }
    Ok(())
}

/// Extracts the messages from the hexadecimal dump of a trace.
pub(crate) fn messages(trace: &str) -> Vec<Vec<u8>> {
    let mut messages: Vec<Vec<u8>> = Vec::new();
    for line in trace.lines() {
        if line.starts_with("sendmsg(") {
            messages.push(Vec::new());
        } else if let (Some(dump), Some(message)) = (line.strip_prefix(" | "), messages.last_mut()) {
            let columns = dump.get(7..57).unwrap_or("");
            message.extend(columns.split_whitespace().filter_map(|byte| u8::from_str_radix(byte, 16).ok()));
        }
    }
    messages.retain(|message| message.len() > 16);
    messages
}
