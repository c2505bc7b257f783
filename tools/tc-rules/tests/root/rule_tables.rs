//! Tests the hash tables of u32, which the kernel shares between all chains and both hooks of a priority.

use libtest_mimic::{Failed, Trial};
use testkit::{Need, test};

use crate::rules::{HOOK, Stage, text};

pub(crate) fn tests() -> Vec<Trial> {
    let root = [Need::Root];
    vec![
        test("one_priority_in_two_chains_and_at_both_hooks_is_kept_apart", &root, apart),
        test("a_table_that_the_kernel_numbered_is_dumped_with_its_rules", &root, numbered),
        test("a_rule_whose_target_is_gone_has_no_words", &root, without_target),
        test("a_class_of_no_queueing_discipline_is_not_dumped_as_empty", &root, without_class),
    ]
}

/// Returns a rule that redirects packets for an address to the other device.
fn rule(place: &str, rest: &str, address: u8) -> String {
    format!(
        "filter add dev d0 {place} prio 1 u32 {rest}match ip dst 10.0.0.{address}/32 action mirred egress redirect dev d1\n"
    )
}

fn dumped(stage: &Stage, hook: &str) -> String {
    let output = stage.run(testkit::programs::netpolicy(), &["tc", "dump", "--dev", "d0", "--parent", hook]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Loads a file, and checks that all of it is loaded and that there is nothing to resume.
fn load(stage: &Stage, rules: &str, count: u64) {
    let file = stage.file(rules);
    assert_eq!(stage.netpolicy(&["tc", "load", text(&file)]).0, 0);
    let (code, report) = stage.netpolicy(&["tc", "diff", text(&file)]);
    assert_eq!((code, &report["same"], &report["extra"]), (0, &count.into(), &0.into()), "{report}");
    let (code, report) = stage.netpolicy(&["tc", "load", "--resume", text(&file)]);
    assert_eq!((code, &report["loaded"]), (0, &0.into()), "{report}");
}

fn apart() -> Result<(), Failed> {
    let stage = Stage::new("apart");
    let places = ["ingress protocol ip", "ingress protocol ip chain 5", "egress protocol ipv6"];
    let rules: String = places.iter().zip(1..).map(|(place, address)| rule(place, "", address)).collect();
    load(&stage, &format!("{HOOK}{rules}"), 3);
    let (ingress, egress) = (dumped(&stage, "ingress"), dumped(&stage, "egress"));
    assert_eq!((ingress.lines().count(), egress.lines().count()), (2, 1), "{ingress}{egress}");
    let other = Stage::new("apart_other");
    load(&other, &format!("{HOOK}{ingress}{egress}"), 3);
    assert_eq!((dumped(&other, "ingress"), dumped(&other, "egress")), (ingress, egress));
    // A rule that exists only in another chain or at another hook counts as missing.
    for (place, address) in places.iter().zip([2, 3, 1]) {
        let file = stage.file(&rule(place, "", address));
        let (code, report) = stage.netpolicy(&["tc", "diff", text(&file)]);
        assert_eq!(
            (code, &report["same"], &report["missing"]),
            (3, &0.into(), &serde_json::json!([1])),
            "{report}"
        );
    }
    // A rule that another program adds to one of the tables is reported as extra only in that table.
    assert_eq!(stage.netpolicy(&["tc", "load", text(&stage.file(&rule(places[1], "", 9)))]).0, 0);
    for (place, address, extra) in [(places[0], 1, 0), (places[1], 2, 1), (places[2], 3, 0)] {
        let file = stage.file(&rule(place, "", address));
        let (_, report) = stage.netpolicy(&["tc", "diff", text(&file)]);
        assert_eq!((&report["same"], &report["extra"]), (&1.into(), &extra.into()), "{place}: {report}");
    }
    Ok(())
}

fn numbered() -> Result<(), Failed> {
    let stage = Stage::new("numbered");
    let table = "filter add dev d0 ingress protocol ip prio 1 u32 divisor 4\n";
    // Both rules match the same packets, and only the second one is in the table.
    let rules = [rule("ingress protocol ip", "", 7), rule("ingress protocol ip", "ht 801:1: ", 7)].concat();
    load(&stage, &format!("{HOOK}{table}{rules}"), 3);
    let dump = dumped(&stage, "ingress");
    assert!(
        dump.contains("handle 801:: u32 divisor 4\n") && dump.contains(" u32 ht 801:1: match "),
        "{dump}"
    );
    let other = Stage::new("numbered_other");
    load(&other, &format!("{HOOK}{dump}"), 3);
    let mut lines = [dump, dumped(&other, "ingress")].map(|dump| {
        let mut lines: Vec<String> = dump.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    });
    let again = std::mem::take(&mut lines[1]);
    assert_eq!(lines[0], again, "each rule is in its former table");
    // Deleting the rule in the table makes it missing, although the root table has an equal one.
    let node = lines[0].iter().find(|line| line.contains("ht 801:1:")).expect("a rule in the table");
    let deleted = node.split(" ht ").next().expect("a handle").replace("add", "del");
    let words: Vec<&str> = deleted.split(' ').collect();
    assert!(stage.run("tc", &words).status.success(), "{deleted}");
    let (code, report) = stage.netpolicy(&["tc", "diff", text(&stage.file(&format!("{table}{rules}")))]);
    assert_eq!((code, &report["missing"]), (3, &serde_json::json!([3])), "{report}");
    Ok(())
}

fn without_target() -> Result<(), Failed> {
    let stage = Stage::new("target");
    assert!(stage.run("ip", &["link", "add", "d2", "type", "veth", "peer", "name", "d3"]).status.success());
    let rules = [1, 2].map(|address| rule("ingress protocol ip", "", address));
    load(&stage, &format!("{HOOK}{}{}", rules[0].replace("dev d1", "dev d2"), rules[1]), 2);
    assert!(stage.run("ip", &["link", "del", "d2"]).status.success());
    let output = stage.run(testkit::programs::netpolicy(), &["tc", "dump", "--dev", "d0"]);
    let (lines, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{lines}{said}");
    assert!(
        lines.lines().count() == 1 && lines.contains("dev d1") && said.contains("1 rule"),
        "{lines}{said}"
    );
    let (code, report) = stage.netpolicy(&["tc", "dump", "--dev", "d0"]);
    assert_eq!(
        (code, &report["left_out"], report["lines"].as_array().map(Vec::len)),
        (1, &1.into(), Some(1))
    );
    Ok(())
}

fn without_class() -> Result<(), Failed> {
    let stage = Stage::new("class");
    let dump = |parent| {
        stage.run(testkit::programs::netpolicy(), &["tc", "dump", "--dev", "d0", "--parent", parent])
    };
    let output = dump("7:10");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("no queueing discipline 7:"), "{said}");
    assert_eq!(dump("root").status.code(), Some(2));
    // A dump of a device without a hook is empty and succeeds, and netpolicy says why.
    let output = dump("ingress");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && output.stdout.is_empty() && said.contains("neither clsact nor ingress"),
        "{said}"
    );
    Ok(())
}
