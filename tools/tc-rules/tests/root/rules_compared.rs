//! Compares the kernel's rules with a file: `tc diff`, `--resume`, and rules for which the kernel chooses the
//! priority or the handle.

use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use rustix::process::{Pid, Signal, kill_process_group};
use testkit::{Need, test};

use crate::rules::{HOOK, Stage, killed_at, rules, text};

pub(crate) fn tests() -> Vec<Trial> {
    let root = [Need::Root];
    vec![
        test("rules_without_priority_or_handle_are_known_by_their_content", &root, placed_by_the_kernel),
        test("rules_without_a_priority_that_have_another_order_are_named", &root, another_order),
        test("a_killed_load_of_rules_without_priority_is_resumed", &root, resumed),
        test("a_file_that_removes_something_is_not_resumed", &root, removing),
        test("rules_that_change_while_they_are_compared_are_not_counted_twice", &root, changing),
        test("what_a_file_deletes_again_is_not_missing", &root, deleted_again),
    ]
}

/// Rules for which the kernel chooses a separate priority each, or only a handle.
fn unplaced(count: u32) -> String {
    mixed(count, |rule| rule.is_multiple_of(3))
}

/// Returns `count` rules, some of which have a priority.
fn mixed(count: u32, has_priority: impl Fn(u32) -> bool) -> String {
    let rule = |rule: u32| {
        let priority = if has_priority(rule) { "prio 7 " } else { "" };
        format!(
            "filter add dev d0 ingress protocol ip {priority}u32 match ip src 10.9.{}.{} action mirred egress redirect \
             dev d1\n",
            rule >> 8,
            rule & 255
        )
    };
    (0..count).map(rule).collect()
}

fn placed_by_the_kernel() -> Result<(), Failed> {
    let stage = Stage::new("unplaced");
    let rules = unplaced(300);
    let file = stage.file(&format!("{HOOK}{rules}"));
    assert_eq!(
        stage.netpolicy(&["tc", "diff", text(&file)]).1["missing"].as_array().map(Vec::len),
        Some(300)
    );
    assert_eq!(stage.netpolicy(&["tc", "load", text(&file)]).0, 0);
    let (code, report) = stage.netpolicy(&["tc", "diff", text(&file)]);
    assert_eq!((code, &report["same"], &report["extra"]), (0, &300.into(), &0.into()), "{report}");
    // Nothing is missing, and nothing is loaded twice.
    let file = stage.file(&rules);
    let (code, report) = stage.netpolicy(&["tc", "load", "--resume", text(&file)]);
    assert_eq!((code, &report["loaded"], &report["skipped"]), (0, &0.into(), &300.into()), "{report}");
    assert_eq!(stage.rules(), 300);
    // A rule that another program added without a priority is extra.
    let output = stage.run(
        "tc",
        &["filter", "add", "dev", "d0", "ingress", "protocol", "ip", "u32", "match", "ip", "src", "1.1.1.1"],
    );
    assert!(output.status.success());
    let (code, report) = stage.netpolicy(&["tc", "diff", text(&file)]);
    assert_eq!((code, &report["same"], &report["extra"]), (3, &300.into(), &1.into()), "{report}");
    let named = report["extra_rules"][0].as_str().expect("the rule that the file does not have");
    assert!(named.starts_with("filter add dev d0 ingress "), "{named}");
    Ok(())
}

fn another_order() -> Result<(), Failed> {
    let stage = Stage::new("order");
    let rules = unplaced(6).replace("prio 7 ", "");
    let turned: String = rules.lines().rev().map(|line| format!("{line}\n")).collect();
    let file = stage.file(&format!("{HOOK}{turned}"));
    assert_eq!(stage.netpolicy(&["tc", "load", text(&file)]).0, 0);
    assert_eq!(stage.netpolicy(&["tc", "diff", text(&file)]).0, 0);
    let file = stage.file(&rules);
    let (code, report) = stage.netpolicy(&["tc", "diff", text(&file)]);
    assert_eq!((code, &report["same"]), (3, &6.into()), "{report}");
    assert_eq!(
        report["misplaced"].as_array().map(Vec::len),
        Some(5),
        "all but one would have to move: {report}"
    );
    Ok(())
}

fn resumed() -> Result<(), Failed> {
    let stage = Stage::new("resumed_unplaced");
    // Use enough rules that the load is killed before it ends. Each priority that the kernel chooses for u32
    // needs a separate table, and the kernel has numbers for only 2047 tables.
    const RULES: u32 = 15_000;
    let file = stage.file(&format!("{HOOK}{}", mixed(RULES, |rule| !rule.is_multiple_of(32))));
    killed_at(&stage, &file, &[], 300);
    let there = stage.rules();
    assert!((300..RULES as usize).contains(&there), "{there}");
    let (code, report) = stage.netpolicy(&["tc", "load", "--resume", text(&file)]);
    assert_eq!(code, 0, "{report}");
    let count = |key: &str| report[key].as_u64().expect("a number");
    assert_eq!(count("loaded") + count("skipped"), u64::from(RULES) + 1);
    assert_eq!(stage.rules(), RULES as usize);
    assert_eq!(stage.netpolicy(&["tc", "diff", text(&file)]).0, 0);
    Ok(())
}

fn removing() -> Result<(), Failed> {
    let stage = Stage::new("removing");
    let file = stage.file(&format!("{HOOK}{}", rules(1, 10)));
    assert_eq!(stage.netpolicy(&["tc", "load", text(&file)]).0, 0);
    let file = stage.file(&format!("qdisc del dev d0 clsact\n{HOOK}{}", rules(1, 10)));
    let output = stage.run(testkit::programs::netpolicy(), &["tc", "load", "--resume", text(&file)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains(&format!("{}:1: --resume", text(&file))), "{said}");
    assert_eq!(stage.rules(), 11);
    Ok(())
}

fn deleted_again() -> Result<(), Failed> {
    let stage = Stage::new("deleted");
    let all = rules(1, 10);
    let last = all.lines().last().and_then(|line| line.split_once(" u32 ")).expect("a rule").0;
    let file = stage.file(&format!("{HOOK}{all}{} u32\n", last.replace("add", "del")));
    assert_eq!(stage.netpolicy(&["tc", "load", text(&file)]).0, 0);
    let (code, report) = stage.netpolicy(&["tc", "diff", text(&file)]);
    assert_eq!((code, &report["same"], &report["extra"]), (0, &10.into(), &0.into()), "{report}");
    Ok(())
}

/// Kills a process group when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

fn changing() -> Result<(), Failed> {
    let stage = Stage::new("changing");
    let file = stage.file(&format!("{HOOK}{}", rules(1, 5000)));
    assert_eq!(stage.netpolicy(&["tc", "load", text(&file)]).0, 0);
    // Another program keeps adding and deleting a rule ahead of all others, which shifts the position at
    // which the kernel continues its dump.
    let add = "filter add dev d0 ingress protocol ip prio 1 handle 1:0:fff u32 ht 1:0: match ip src 9.9.9.9 classid 1:1\n";
    let delete = "filter del dev d0 ingress protocol ip prio 1 handle 1:0:fff u32\n";
    let other = stage.scratch.path("other.batch");
    std::fs::write(&other, format!("{add}{delete}").repeat(10_000)).expect("a file");
    let spawned = stage.netns.run(|| {
        let again = format!("while :; do tc -b {}; done", text(&other));
        let mut command = Stage::command("sh", &["-c", &again]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()
    });
    let mut busy = Ended(spawned.expect("inside").expect("started"));
    std::thread::sleep(Duration::from_millis(100));
    let (_, report) = stage.netpolicy(&["tc", "diff", text(&file)]);
    assert!(busy.0.try_wait().expect("asked").is_none(), "the process ended too soon");
    let count = |key: &str| report[key].as_u64().expect("a number");
    // Each rule of the file counts once, even if dumped twice; the other program's rule may be included or
    // not.
    let missing = report["missing"].as_array().expect("a list").len() as u64;
    assert_eq!(count("same") + missing, 5001, "{} and {missing}", count("same"));
    assert!(count("extra") <= 1, "{}", count("extra"));
    assert_eq!(report["changing"], true, "rules that kept changing are reported");
    drop(busy);
    // The kernel soon finishes the work that tc has left pending.
    let mut report = stage.netpolicy(&["tc", "diff", text(&file)]).1;
    for _ in 0..100 {
        if report["changing"] == false {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        report = stage.netpolicy(&["tc", "diff", text(&file)]).1;
    }
    assert_eq!((&report["changing"], &report["same"]), (&false.into(), &5001.into()));
    Ok(())
}
