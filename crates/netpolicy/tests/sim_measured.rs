//! `sim` beside what this program has measured itself: the evidence of a bench as rows, fitted and compared with.

mod command;

use command::{Scratch, netpolicy, text};
use serde_json::Value;

/// What `bench memcached --matrix --short` wrote on a machine of two CPUs.
const EVIDENCE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/runs/memcached-matrix-short.json.gz");

/// Runs that take no time.
const SHORT: [&str; 9] =
    ["--seeds", "2", "--samples", "2", "--no-probe", "--window", "20ms", "--warmup", "20ms"];

fn data(words: &[&str]) -> Value {
    let output = netpolicy(&[&["-o", "json"][..], words].concat());
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    document["data"].clone()
}

fn row<'a>(validation: &'a Value, name: &str) -> &'a Value {
    let rows = validation["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name}"))
}

fn measured(row: &Value, metric: &str) -> Option<f64> {
    let values = row["values"].as_array().expect("values");
    values.iter().find(|value| value["metric"] == metric)?["measured"].as_f64()
}

#[test]
fn a_row_of_evidence_is_the_median_of_its_runs() {
    let validation = data(&[&["sim", "validate", "lab", "--measured", EVIDENCE][..], &SHORT].concat());
    // Averages of 39 528, 54 315 and 52 036 ns.
    let base = row(&validation, "base@20.6K");
    let avg = measured(base, "avg").expect("a value");
    assert!((avg - 52.0357).abs() < 0.001, "{avg}");
    assert_eq!((measured(base, "qps"), base["class"].as_str()), (Some(20656.25), Some("stable")));
    // 59, 89 and 123 us: runs differ.
    assert_eq!(row(&validation, "base@61.9K")["class"], "knee");
    assert_eq!(row(&validation, "base@MAX")["class"], "max");
    // Two of its runs were behind; how long their requests took says how long was measured.
    let behind = row(&validation, "defer20@61.9K");
    assert_eq!((behind["class"].as_str(), measured(behind, "avg")), (Some("overload"), None));
    assert!(measured(behind, "qps").is_some());
    // The server had one CPU there, the scenario has two.
    assert_eq!(measured(base, "cpu"), None);
    let rows = validation["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| !row["name"].as_str().is_some_and(|name| name.starts_with("defer10"))));
}

#[test]
fn what_evidence_does_not_say_is_told() {
    let words = ["sim", "validate", "lab", "--measured", EVIDENCE];
    let told = text(&netpolicy(&[&words[..], &SHORT].concat()).stderr);
    for note in [
        "defer10@61.9K is left out: of 3 runs the load generator limited 1, the others are void",
        "CPU use is left out: the server had 1 of the scenario's 2 CPUs",
    ] {
        assert!(told.contains(note), "{note}\nin\n{told}");
    }
    let refused = |rows: &[&str]| {
        let output = netpolicy(&[&["sim", "calibrate", "lab", "--measured", EVIDENCE][..], rows].concat());
        assert_eq!(output.status.code(), Some(2), "{rows:?}");
        text(&output.stderr)
    };
    assert!(refused(&[]).contains("name them with --rows: there are base@20.6K, base@61.9K,"));
    let parameters = ["--parameters", "request"];
    let unknown = refused(&[&["--rows", "base@20K"][..], &parameters].concat());
    assert!(unknown.contains("there is no measured row `base@20K`") && unknown.contains("base@20.6K"));
    let limited = refused(&[&["--rows", "defer10@MAX"][..], &parameters].concat());
    assert!(limited.contains("hint: defer10@MAX is left out"), "{limited}");
}

#[test]
fn a_scenario_is_fitted_to_what_was_measured_here_and_says_which_rows_were() {
    let scratch = Scratch::new("fitted");
    let costs = scratch.path("costs.toml");
    let fit = |evaluations: &str| {
        let words = ["sim", "calibrate", "lab", "--measured", EVIDENCE, "--rows", "base@20.6K,base@MAX"];
        let how = ["--parameters", "packet,request", "--evaluations", evaluations, "--write", &costs];
        data(&[&words[..], &how].concat())
    };
    let loss = |fit: &Value| fit["loss"].as_f64().expect("a number");
    let (before, after) = (loss(&fit("1")), fit("12"));
    assert!(loss(&after) < 0.8 * before, "{before} and {after}");
    let fitted = after["parameters"][0]["value"].as_f64().expect("a number");

    let run = data(&[&["sim", "run", "lab", "--costs", &costs][..], &SHORT].concat());
    let point = &run["points"][0];
    let used = point["evidence"]["origin"]["simulated"]["parameters"]["packet"].as_str().expect("text");
    assert_eq!(used, format!("{} us", format!("{fitted:.4}").parse::<f64>().expect("a number")));
    assert_eq!(run["over"], "2 seeds and 2 more sets of parameters");

    let words = ["sim", "validate", "lab", "--measured", EVIDENCE, "--costs", &costs];
    let validation = data(&[&words[..], &SHORT].concat());
    let fitted = |name: &str| row(&validation, name)["fitted"].clone();
    assert_eq!((fitted("base@MAX"), fitted("suspend20@MAX")), (true.into(), false.into()));
}

#[test]
fn other_evidence_is_refused_with_the_reason() {
    let scratch = Scratch::new("other-evidence");
    let refused = |file: &str| {
        let output = netpolicy(&["sim", "validate", "lab", "--measured", file]);
        assert_eq!(output.status.code(), Some(2), "{file}");
        text(&output.stderr)
    };
    let nothing = refused(&scratch.file("nothing.json", "{}"));
    assert!(nothing.contains("nothing.json: no evidence: missing field"), "{nothing}");
    let grid = refused(&scratch.file("grid.json", "{\"variants\": []}"));
    assert!(grid.contains("no evidence"), "{grid}");
    let wrong = refused(&scratch.file("wrong.toml", "costs = 3\n"));
    assert!(wrong.contains("is neither a key of a scenario nor something measured"), "{wrong}");
}
