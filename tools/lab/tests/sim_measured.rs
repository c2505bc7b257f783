//! `sim` with this program's own measurements: evidence of a bench as rows, fitted and compared.

use std::io::Read;

use serde_json::Value;
use testkit::command::{Scratch, netpolicy, text};

/// The evidence of `bench memcached --matrix --short` on a machine with two CPUs.
const EVIDENCE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/runs/memcached-matrix-short.json.gz");

/// The evidence of `bench memcached --matrix` at six loads, on the same machine.
const WHOLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/runs/memcached-matrix.json.gz");

/// Very short runs.
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
    // The averages of the runs are 39 528, 54 315 and 52 036 ns.
    let base = row(&validation, "base@20.6K");
    let avg = measured(base, "avg").expect("a value");
    assert!((avg - 52.0357).abs() < 0.001, "{avg}");
    assert_eq!((measured(base, "qps"), base["class"].as_str()), (Some(20656.25), Some("stable")));
    // The averages of the runs, 59, 89 and 123 us, are far apart.
    assert_eq!(row(&validation, "base@61.9K")["class"], "knee");
    assert_eq!(row(&validation, "base@MAX")["class"], "max");
    // In two of the runs, the server fell behind: the response times of those runs reflect only the length of
    // the measurement.
    let behind = row(&validation, "defer20@61.9K");
    assert_eq!((behind["class"].as_str(), measured(behind, "avg")), (Some("overload"), None));
    assert!(measured(behind, "qps").is_some());
    // CPU use is not compared: the server had one CPU on that machine, and the scenario has two.
    assert_eq!(measured(base, "cpu"), None);
    let rows = validation["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| !row["name"].as_str().is_some_and(|name| name.starts_with("defer10"))));
}

#[test]
fn missing_evidence_is_reported() {
    let words = ["sim", "validate", "lab", "--measured", EVIDENCE];
    let stderr = text(&netpolicy(&[&words[..], &SHORT].concat()).stderr);
    for note in [
        "defer10@61.9K is omitted: of 3 runs the load generator limited 1, the others are void",
        "CPU use is omitted: the server had 1 of the scenario's 2 CPUs",
    ] {
        assert!(stderr.contains(note), "{note}\nin\n{stderr}");
    }
    let refused = |rows: &[&str]| {
        let output = netpolicy(&[&["sim", "calibrate", "lab", "--measured", EVIDENCE][..], rows].concat());
        assert_eq!(output.status.code(), Some(2), "{rows:?}");
        text(&output.stderr)
    };
    assert!(refused(&[]).contains("name them with --rows: the table has base@20.6K, base@61.9K,"));
    let parameters = ["--parameters", "request"];
    let unknown = refused(&[&["--rows", "base@20K"][..], &parameters].concat());
    assert!(unknown.contains("there is no measured row `base@20K`") && unknown.contains("base@20.6K"));
    let limited = refused(&[&["--rows", "defer10@MAX"][..], &parameters].concat());
    assert!(limited.contains("hint: defer10@MAX is omitted"), "{limited}");
}

#[test]
fn a_report_that_describes_two_machines_is_read_as_any_other() {
    let scratch = Scratch::new("machines");
    let netns = linux::Netns::own().expect("a namespace");
    let cpus = linux::process::cpus_of_this_thread().expect("CPUs");
    let described = [model::Side::Server, model::Side::Client].map(|side| {
        linux::machine::describe(&netns, model::IfIndex(1), side, cpus.clone()).expect("loopback")
    });
    let mut evidence: Value = serde_json::from_slice(&unpacked()).expect("JSON");
    let rows = ["--rows", "base@20.6K,base@MAX", "--parameters", "request", "--evaluations", "2"];
    let mut fit = || {
        let file = scratch.file("two.json", &evidence.to_string());
        let fit = data(&[&["sim", "calibrate", "lab", "--measured", &file][..], &rows].concat());
        evidence["machines"] = serde_json::to_value(&described).expect("JSON");
        fit
    };
    let (without, with) = (fit(), fit());
    assert!(with["parameters"][0]["value"].is_number() && with == without, "{with}");
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
fn a_fit_that_begins_with_an_earlier_one_keeps_what_that_had_found() {
    let scratch = Scratch::new("continued");
    let (first, second) =
        (scratch.file("first.toml", "[costs]\nirq = 2.5\nrequest = 5\n"), scratch.path("second.toml"));
    let words =
        ["sim", "calibrate", "lab", "--measured", EVIDENCE, "--rows", "base@MAX", "--parameters", "request"];
    let fit = |more: &[&str]| data(&[&words[..], &["--evaluations", "1"], more].concat());
    let begun = fit(&["--costs", &first, "--write", &second]);
    let value = begun["parameters"][0]["value"].as_f64().expect("a number");
    assert!((value - 5.0).abs() < 1e-9, "{value}");
    assert_ne!(begun["loss"], fit(&[])["loss"]);
    let written = std::fs::read_to_string(&second).expect("written");
    assert!(written.contains("[costs]\nrequest = 5.0000\nirq = 2.5\n"), "{written}");
    let output = netpolicy(&[&words[..], &["--costs", &first, "--write", &first]].concat());
    assert!(text(&output.stderr).contains("would overwrite"), "{}", text(&output.stderr));
}

#[test]
fn a_run_that_cannot_have_been_measured_is_refused() {
    let scratch = Scratch::new("unsound");
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut evidence: Value = serde_json::from_slice(&unpacked()).expect("JSON");
        change(&mut evidence);
        let file = scratch.file("runs.json", &evidence.to_string());
        let output = netpolicy(&["sim", "validate", "lab", "--measured", &file]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        text(&output.stderr).to_owned()
    };
    let in_runs = |path: [&str; 2], value: Value| {
        refused(&move |evidence: &mut Value| {
            for run in evidence["evidence"].as_array_mut().expect("runs") {
                match path {
                    [name, ""] => run[name] = value.clone(),
                    [group, name] => run[group][name] = value.clone(),
                }
            }
        })
    };
    for (path, value, words) in [
        (
            ["throughput", ""],
            0.into(),
            "run 1 of base@20.6K is impossible: a throughput of 0 was not measured",
        ),
        (["throughput", ""], (-5).into(), "a throughput of -5 was"),
        (["throughput", ""], 1e300.into(), "a throughput of 1e300 was"),
        (["latency", "p99"], 1.into(), "response times: p95 is 71.295us, and p99 only 1ns"),
        (["latency", "avg"], 1e300.into(), "their mean is 1e300 ns"),
        (["latency", "count"], 0.into(), "response times: there are none"),
        (["cpu", "user"], 7.into(), "CPU time: user is 7, which is not a share"),
        (["cpu", "steal"], 1.into(), "CPU time: the shares add up to 2"),
    ] {
        let stderr = in_runs(path, value);
        assert!(stderr.contains(words), "{words}\nin\n{stderr}");
    }
    let twice = refused(&|evidence| evidence["experiment"]["labels"][1] = "base".into());
    assert!(twice.contains("the experiment lists configuration base twice"), "{twice}");
    let none = refused(&|evidence| evidence["evidence"] = Value::Array(Vec::new()));
    assert!(none.contains("base@20.6K is omitted: it has no run"), "{none}");
}

#[test]
fn runs_that_the_experiment_does_not_list_are_counted() {
    let scratch = Scratch::new("unlisted");
    let mut evidence: Value = serde_json::from_slice(&unpacked()).expect("JSON");
    evidence["experiment"]["loads"].as_array_mut().expect("loads").remove(0);
    let file = scratch.file("runs.json", &evidence.to_string());
    let output = netpolicy(&[
        "sim",
        "calibrate",
        "lab",
        "--measured",
        &file,
        "--rows",
        "base@20.6K",
        "--parameters",
        "irq",
    ]);
    let stderr = text(&output.stderr);
    assert!(stderr.contains("there is no measured row `base@20.6K`"), "{stderr}");
    let words = ["sim", "validate", "lab", "--measured", &file];
    let output = netpolicy(&[&words[..], &SHORT].concat());
    assert!(
        text(&output.stderr).contains("33 runs are omitted: the experiment does not list"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn rows_that_parameters_were_fitted_to_and_that_are_absent_are_reported() {
    let scratch = Scratch::new("absent");
    let table = scratch.file("rows.tsv", "clients.load\tavg\n20K\t60\n");
    let costs = scratch.file("costs.toml", "[calibration]\nrows = [\"20K\", \"nix@20.6K\"]\n");
    let words = ["sim", "validate", "lab", "--measured", &table, "--costs", &costs];
    let output = netpolicy(&[&words[..], &SHORT].concat());
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(
        stderr.contains("the table does not have 1 row to which the parameters were fitted: nix@20.6K"),
        "{stderr}"
    );
}

/// Returns the evidence, decompressed.
fn unpacked() -> Vec<u8> {
    let mut text = Vec::new();
    let file = std::fs::File::open(EVIDENCE).expect("it is there");
    flate2::read::GzDecoder::new(file).read_to_end(&mut text).expect("gzip");
    text
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
    assert!(nothing.contains("nothing.json: not bench evidence: missing field"), "{nothing}");
    let grid = refused(&scratch.file("grid.json", "{\"variants\": []}"));
    assert!(grid.contains("not bench evidence"), "{grid}");
    let wrong = refused(&scratch.file("wrong.toml", "costs = 3\n"));
    assert!(wrong.contains("is neither a key of a scenario nor a measured quantity"), "{wrong}");
    for json in ["[]", " [{}]", "\u{feff}[1]"] {
        let stderr = refused(&scratch.file("list.json", json));
        assert!(stderr.contains("list.json: JSON, but not bench evidence"), "{stderr}");
    }
    let one_line = format!("{}\n", "x".repeat(300_000));
    assert!(refused(&scratch.file("line.txt", &one_line)).len() < 1000);
    let whole = std::fs::read(EVIDENCE).expect("it is there");
    for (name, bytes) in
        [("cut.json.gz", whole[..20_000].to_vec()), ("more.json.gz", [&whole[..], b"more"].concat())]
    {
        let file = scratch.path(name);
        std::fs::write(&file, bytes).expect("file");
        assert!(refused(&file).contains("Nothing was touched."));
    }
    let marked = scratch.path("marked.json");
    std::fs::write(&marked, [b"\xef\xbb\xbf".to_vec(), unpacked()].concat()).expect("file");
    let output = netpolicy(&[&["sim", "validate", "lab", "--measured", &marked][..], &SHORT].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn orderings_are_compared_with_the_documents_one_by_one() {
    let compared = data(&["bench", "report", WHOLE, "--orderings", "irq-suspension"]);
    let orderings = compared["orderings"].as_array().expect("orderings");
    let number = |value: &Value| value.as_f64().expect("a number");
    let mut agreements = std::collections::BTreeMap::new();
    for ordering in orderings {
        let [theirs, here] = ["published", "here"].map(|key| ordering[key].as_array().expect("two"));
        assert_ne!(ordering["one"], ordering["other"]);
        let is_below = number(&theirs[0]) < number(&theirs[1]);
        let (low, high) = (|i: usize| number(&here[i]["low"]), |i: usize| number(&here[i]["high"]));
        let (below, above) = (high(0) < low(1), low(0) > high(1));
        let agreement = ordering["agreement"].as_str().expect("a word");
        let right = match agreement {
            "same" => below == is_below && above != is_below,
            "opposite" => below != is_below && above == is_below,
            "undecided" => !below && !above,
            "saturated" => true,
            _ => false,
        };
        assert!(right, "{ordering}");
        *agreements.entry(agreement).or_insert(0) += 1;
    }
    assert!(agreements.len() == 4 && orderings.len() > 400, "{agreements:?}");
    // The evidence has three loads, which do not correspond to the document's six.
    let output = netpolicy(&["bench", "report", EVIDENCE, "--orderings", "irq-suspension"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("it has 6 loads, the evidence 3"), "{}", text(&output.stderr));
}
