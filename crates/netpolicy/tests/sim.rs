//! `sim` as its users see it: words, exit codes, evidence. Nothing here touches a host.

mod command;

use command::{Scratch, netpolicy, text};

#[test]
fn every_subcommand_has_help_with_what_it_takes() {
    for name in ["sim", "sim run", "sim calibrate", "sim validate"] {
        let words: Vec<&str> = name.split(' ').chain(["--help"]).collect();
        let output = netpolicy(&words);
        assert!(output.status.success(), "{name}");
        insta::assert_snapshot!(format!("help_of_{}", name.replace(' ', "_")), text(&output.stdout));
    }
}

#[test]
fn a_simulated_run_is_evidence_and_the_same_seed_gives_the_same_bytes() {
    let words =
        ["-o", "json", "sim", "run", "lab", "--seeds", "2", "--window", "50ms", "--check", "--no-probe"];
    let once = netpolicy(&words);
    assert_eq!(once.status.code(), Some(0), "{}", text(&once.stderr));
    assert_eq!(once.stdout, netpolicy(&words).stdout);
    let document: serde_json::Value = serde_json::from_slice(&once.stdout).expect("JSON");
    let evidence = document["data"]["points"][0]["evidence"].clone();
    let evidence: model::Evidence = serde_json::from_value(evidence).expect("evidence as of a measured run");
    let model::Origin::Simulated(from) = &evidence.origin else { panic!("simulated: {:?}", evidence.origin) };
    assert_eq!((from.seed, from.scenario.len()), (1, 16));
    assert_eq!(from.parameters.get("irq").map(String::as_str), Some("3.38 us"));
    assert!(evidence.latency.count > 0 && !evidence.latency.histogram.is_empty());
}

#[test]
fn a_scenario_that_cannot_be_is_refused_where_it_is_written() {
    let scratch = Scratch::new("scenario");
    let file = scratch.file("wrong.toml", "[hardware]\nqueues = 0\n");
    let output = netpolicy(&["sim", "run", &file]);
    assert_eq!(output.status.code(), Some(2));
    let words = text(&output.stderr);
    assert!(
        words.contains("`0` is not a whole number from 1 to 256") && words.contains("wrong.toml:2:10"),
        "{words}"
    );
    let output = netpolicy(&["sim", "run", "lab", "--set", "costs.irqs=3"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`costs.irqs` is no key of a scenario"));
}

#[test]
fn a_calibration_does_not_read_the_rows_that_are_held_out() {
    let scratch = Scratch::new("calibration");
    let rows = "delivery.mode\tclients.load\tclass\tavg\ninterrupt\t20K\tstable\t60\nsuspend20\t20K\tstable\tnot a number\n";
    let measured = scratch.file("rows.tsv", rows);
    let calibrate = |rows: &str| {
        let words = [
            "sim",
            "calibrate",
            "lab",
            "--measured",
            &measured,
            "--parameters",
            "request",
            "--evaluations",
            "1",
        ];
        netpolicy(&[&words[..], &["--rows", rows]].concat())
    };
    let held_out = calibrate("interrupt@20K");
    assert_eq!(held_out.status.code(), Some(0), "{}", text(&held_out.stderr));
    let read = calibrate("interrupt@20K,suspend20@20K");
    assert_eq!(read.status.code(), Some(2));
    assert!(text(&read.stderr).contains("`not a number` is not a measured number"), "{}", text(&read.stderr));
}
