//! Concurrent loads, and reports that must be correct regardless of what fails.

use libtest_mimic::{Failed, Trial};
use testkit::{Need, test};

use crate::rules::{HOOK, Stage, text};

pub(crate) fn tests() -> Vec<Trial> {
    let root = [Need::Root];
    vec![
        test("an_atomic_load_leaves_what_another_loaded_beside_it", &root, beside),
        test("an_atomic_load_is_refused_where_a_handle_could_not_be_taken_back", &root, cut_short),
        test("a_load_with_other_counters_is_compared_with_them", &root, counters),
        test("a_load_whose_account_cannot_be_printed_was_done", &root, unprinted),
    ]
}

/// Rules without handles in a priority.
fn rules(network: u8, count: u32) -> String {
    let rule = |rule: u32| {
        format!(
            "filter add dev d0 ingress protocol ip prio 1 u32 match ip dst 10.{network}.{}.{}/32 action mirred egress redirect \
             dev d1\n",
            rule >> 8,
            rule & 255
        )
    };
    (0..count).map(rule).collect()
}

fn stage(name: &str) -> Stage {
    let stage = Stage::new(name);
    let hook = stage.file(HOOK);
    assert_eq!(stage.netpolicy(&["tc", "load", text(&hook)]).0, 0);
    stage
}

fn beside() -> Result<(), Failed> {
    let stage = stage("beside");
    let refused = "filter add dev d0 ingress protocol ip prio 1 u32 ht 99: match u32 0 0 classid 1:1\n";
    let (good, bad) = (stage.scratch.path("good"), stage.scratch.path("bad"));
    std::fs::write(&good, rules(1, 500)).expect("written");
    std::fs::write(&bad, format!("{}{refused}", rules(2, 500))).expect("written");
    let both = ["good", "bad"].map(|name| {
        let path = stage.scratch.path(name);
        let arguments = ["tc", "load", "--atomic", text(&path)];
        let command = || Stage::command(testkit::programs::netpolicy(), &arguments).spawn();
        stage.netns.run(command).expect("inside").expect("started")
    });
    let [good, bad] = both.map(|child| child.wait_with_output().expect("waited").status.code());
    assert_eq!(good, Some(0));
    // Whichever load comes first, the bad one is undone, or refused because its priority exists.
    assert!(matches!(bad, Some(4 | 7)), "{bad:?}");
    assert_eq!(stage.rules(), 500);
    Ok(())
}

fn cut_short() -> Result<(), Failed> {
    let stage = stage("cut_short");
    assert_eq!(stage.netpolicy(&["tc", "load", text(&stage.file(&rules(1, 3)))]).0, 0);
    let more = rules(2, 1).replace("prio 1", "prio 1 handle ::501");
    assert_eq!(stage.netpolicy(&["tc", "load", "--atomic", text(&stage.file(&more))]).0, 7);
    let whole = rules(2, 1).replace("prio 1", "prio 1 handle 800::501");
    let twice = format!("{whole}{whole}");
    assert_eq!(stage.netpolicy(&["tc", "load", "--atomic", text(&stage.file(&twice))]).0, 4);
    assert_eq!(stage.rules(), 3);
    Ok(())
}

fn counters() -> Result<(), Failed> {
    let stage = stage("counters");
    let file = stage.file(&rules(1, 5));
    let auto = ["--no-percpu", "auto", text(&file)];
    assert_eq!(stage.netpolicy(&[&["tc", "load"], &auto[..]].concat()).0, 0);
    let (code, report) = stage.netpolicy(&[&["tc", "load", "--check"], &auto[..]].concat());
    assert_eq!((code, &report["same"]), (0, &5.into()), "{report}");
    let (code, report) = stage.netpolicy(&[&["tc", "load", "--resume"], &auto[..]].concat());
    assert_eq!((code, &report["loaded"]), (0, &0.into()), "{report}");
    assert_eq!(stage.rules(), 5);
    // `tc diff` with the same options finds no difference, either.
    assert_eq!(stage.netpolicy(&[&["tc", "diff"], &auto[..]].concat()).0, 0);
    // Without the options, the rules differ from the file.
    assert_eq!(stage.netpolicy(&["tc", "diff", text(&file)]).0, 3);
    Ok(())
}

fn unprinted() -> Result<(), Failed> {
    let stage = stage("unprinted");
    let file = stage.file(&rules(1, 5));
    let line = format!("{} tc load {} >/dev/full", testkit::programs::netpolicy(), text(&file));
    let output = stage.run("sh", &["-c", &line]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("had been completed before"), "{said}");
    assert_eq!((output.status.code(), stage.rules()), (Some(1), 5));
    Ok(())
}
