//! `sim` as users run it: messages, exit codes, evidence. Nothing here touches a host.

mod html;

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use serde_json::Value;
use testkit::command::{Scratch, command, netpolicy, text};
use testkit::fits::misfit;

use html::{Element, elements};

#[test]
fn a_simulated_run_is_evidence_and_the_same_seed_gives_the_same_bytes() {
    let words =
        ["-o", "json", "sim", "run", "lab", "--seeds", "2", "--window", "50ms", "--check", "--no-probe"];
    let once = netpolicy(&words);
    assert_eq!(once.status.code(), Some(0), "{}", text(&once.stderr));
    assert_eq!(once.stdout, netpolicy(&words).stdout);
    let document: Value = serde_json::from_slice(&once.stdout).expect("JSON");
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
    assert!(text(&output.stderr).contains("`costs.irqs` is not a key of a scenario"));
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

/// A very short run.
const SHORT: [&str; 8] = ["--seeds", "1", "--samples", "0", "--window", "5ms", "--warmup", "20ms"];

#[test]
fn a_report_that_cannot_be_written_fails_before_anything_is_simulated() {
    let scratch = Scratch::new("unwritable");
    let nowhere = format!("{}/none/report", scratch.file("here", ""));
    for words in [["sim", "validate", "epoll", "--html"], ["sim", "calibrate", "epoll", "--write"]] {
        let began = std::time::Instant::now();
        let output = netpolicy(&[&words[..], &[&nowhere]].concat());
        assert_ne!(output.status.code(), Some(0));
        assert!(text(&output.stderr).contains("none/report"), "{}", text(&output.stderr));
        assert!(began.elapsed().as_secs() < 5, "{words:?} took {:?}", began.elapsed());
    }
}

#[test]
fn keys_beside_a_swept_delivery_mode_change_it_in_either_order() {
    let of_load = "clients.load=50K";
    let timeouts = ["--sweep", "delivery.gro-flush-timeout=20us,200us"];
    let modes = ["--sweep", "delivery.mode=suspend20,defer20"];
    let points = |words: &[&str]| {
        let all = [&["-o", "json", "sim", "run", "lab", "--no-probe", "--set", of_load][..], &SHORT, words];
        let output = netpolicy(&all.concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let points = document["data"]["points"].as_array().expect("points").clone();
        points.iter().map(|point| point["evidence"]["latency"]["avg"].to_string()).collect::<Vec<_>>()
    };
    let [a, b, c, d] = points(&[timeouts, modes].concat()).try_into().expect("four points");
    assert_eq!(points(&[modes, timeouts].concat()), [&a, &c, &b, &d].map(String::clone));
    assert_ne!(a, c, "the timeout is what was asked for, not the mode's own");
}

#[test]
fn a_fit_takes_no_inputs_place() {
    let scratch = Scratch::new("inplace");
    let scenario = scratch.file("own.toml", "title = \"own\"\n");
    let words = ["--measured", &scenario, "--rows", "a", "--parameters", "irq", "--write", &scenario];
    let output = netpolicy(&[&["sim", "calibrate", &scenario][..], &words].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("would overwrite"), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_to_string(&scenario).expect("it is there"), "title = \"own\"\n");
}

#[test]
fn a_sweep_takes_lists_of_cpus_in_quotes() {
    let names = |sweep: &str| {
        let more = ["--no-probe", "--set", "layout.pinned=false", "--sweep", sweep];
        let output = netpolicy(&[&["-o", "json", "sim", "run", "lab"][..], &more, &SHORT].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let points = document["data"]["points"].as_array().expect("points").clone();
        points.iter().map(|point| point["name"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("layout.thread-cpus=\"0,1\",1"), ["0,1", "1"]);
    assert_eq!(names("layout.thread-cpus=0-1,1"), ["0-1", "1"]);
    let open = netpolicy(&["sim", "run", "lab", "--sweep", "layout.irq-cpus=\"0,1"]);
    assert_eq!(open.status.code(), Some(2));
    assert!(text(&open.stderr).contains("--sweep layout.irq-cpus: a quote is not closed"));
}

#[test]
fn a_fit_that_cannot_be_written_at_its_end_is_printed_all_the_same() {
    let scratch = Scratch::new("full");
    let table = scratch.file("rows.tsv", "clients.load\tavg\n20K\t60\n");
    let words = ["sim", "calibrate", "lab", "--measured", &table, "--rows", "20K", "--parameters", "request"];
    let output = netpolicy(&[&words[..], &["--evaluations", "8", "--write", "/dev/full"]].concat());
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(text(&output.stdout).contains("Fitted to 1 row: 20K; loss"), "{}", text(&output.stdout));
    assert!(stderr.contains("No space left on device; the fit continues"), "{stderr}");
    assert!(stderr.contains("error: /dev/full: No space left on device"), "{stderr}");
}

#[test]
fn a_report_takes_no_inputs_place_and_leaves_no_empty_file_behind() {
    let scratch = Scratch::new("html");
    let table = scratch.file("rows.tsv", "clients.load\tavg\n20K\tmuch\n");
    let own = scratch.file("own.toml", "[calibration]\nmeasured = \"rows.tsv\"\n");
    let report = scratch.path("report.html");
    let refused = |words: &[&str]| {
        let output = netpolicy(&[&["sim", "validate"][..], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        text(&output.stderr).to_owned()
    };
    for input in [&own, &table] {
        assert!(refused(&[&own, "--html", input]).contains("would overwrite"), "{input}");
    }
    assert!(refused(&["lab", "--measured", &table, "--html", &table]).contains("would overwrite"));
    assert!(refused(&[&own, "--html", &report]).contains("`much` is not a measured number"));
    assert!(!std::path::Path::new(&report).exists());
    assert!(refused(&["lab", "--html", "-"]).contains("--html: `-` is not a file that can be written"));
}

#[test]
fn standard_input_is_read_once() {
    for words in [
        &["sim", "run", "-", "--costs", "-"][..],
        &["sim", "validate", "-", "--measured", "-"],
        &["sim", "calibrate", "lab", "--costs", "-", "--measured", "-"],
    ] {
        let output = netpolicy(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains("standard input can be read once"), "{}", text(&output.stderr));
    }
}

#[test]
fn a_title_does_not_steer_the_terminal() {
    let scratch = Scratch::new("title");
    let file =
        scratch.file("red.toml", "title = \"a\\u001b[31mb\"\n[clients]\nload = \"50K\"\nconnections = 8\n");
    for colour in ["always", "never"] {
        let words = [&["--color", colour, "sim", "run", &file, "--no-probe"][..], &SHORT].concat();
        let page = text(&netpolicy(&words).stdout).to_owned();
        assert!(page.contains("a\u{fffd}[31mb"), "{page:?}");
    }
}

#[test]
fn a_span_that_cannot_be_simulated_is_refused_by_its_option() {
    for (words, expected) in [
        (&["--window", "0"][..], "invalid value '0' for '--window <SPAN>': must be longer than 0"),
        (&["--warmup", "3601s"], "'--warmup <SPAN>': at most 3600s can be simulated"),
        (&["--window", "3600s"], "--warmup and --window: at most 3600s can be simulated, both together"),
        (&["--seed", "18446744073709551615"], "invalid value '18446744073709551615' for '--seed <N>'"),
    ] {
        let output = netpolicy(&[&["sim", "run", "lab"][..], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

#[test]
fn what_a_sweep_says_twice_is_refused() {
    let refused = |words: &[&str]| {
        let output = netpolicy(&[&["sim", "run", "lab"][..], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        text(&output.stderr).to_owned()
    };
    let swept = refused(&["--sweep", "clients.load=10K", "--sweep", "clients.load=20K"]);
    assert!(
        swept.contains("clients.load is swept twice, or both swept and set")
            && swept.contains("--sweep clients.load=A,B"),
        "{swept}"
    );
    let beside = refused(&["--set", "clients.load=10K", "--sweep", "clients.load=20K,30K"]);
    assert!(beside.contains("clients.load is swept twice, or both swept and set"), "{beside}");
    let set = refused(&["--set", "clients.load=10K", "--set", "clients.load=20K"]);
    assert!(set.contains("clients.load is set twice"), "{set}");
    let value = refused(&["--sweep", "clients.load=10K,10K"]);
    assert!(value.contains("`10K` twice"), "{value}");
    let same = refused(&["--sweep", "clients.load=50K,20K,50000"]);
    assert!(same.contains("--sweep clients.load: `50K` and `50000` are the same"), "{same}");
    let key = refused(&["--set", "costs.requst=3"]);
    assert!(key.contains("did you mean `costs.request`?"), "{key}");
    let least = refused(&["--set", "clients.load=1e-300"]);
    assert!(least.contains("is not a load from 1 to 100000000 requests per second"), "{least}");
    let most = refused(&["--set", "clients.load=999G"]);
    assert!(most.contains("write requests per second up to 100000K"), "{most}");
}

#[test]
fn a_window_without_an_answer_is_no_prediction_of_zero() {
    let words = ["sim", "run", "lab", "--seeds", "1", "--no-probe", "--warmup", "0ms", "--window", "1us"];
    let output = netpolicy(&words);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no request was answered within 1us"), "{}", text(&output.stderr));
}

#[test]
fn a_load_that_has_not_settled_is_reported() {
    let reported = |warmup: &str| {
        let words = [
            "sim",
            "run",
            "irq-suspension",
            "--seeds",
            "1",
            "--samples",
            "0",
            "--no-probe",
            "--window",
            "5ms",
        ];
        let output = netpolicy(&[&words[..], &["--warmup", warmup]].concat());
        assert_eq!(output.status.code(), Some(0));
        text(&output.stderr).contains("a connection sends every 22.4 ms, so its load has not settled")
    };
    assert!(reported("10ms"));
    assert!(!reported("90ms"));
}

#[test]
fn a_table_of_measured_rows_is_looked_at_before_it_is_compared_with() {
    let scratch = Scratch::new("measured");
    let heading = "application.waits\tclients.connections\tclass\tqps\n";
    for (name, table, words) in [
        ("empty", String::new(), "the table has no rows"),
        ("heading", heading.to_owned(), "the table has no rows"),
        ("zero", format!("{heading}sleep\t15\tmax\t0\n"), "`0` is not a measured number"),
        ("huge", format!("{heading}sleep\t15\tmax\t1e308\n"), "`1e308` is not a measured number"),
        ("twice", format!("{heading}sleep\t15\tmax\t5\nsleep\t15\tmax\t6\n"), "row `sleep@15` occurs twice"),
        ("blanks", "application.waits qps\nsleep 5\n".to_owned(), "columns are separated by tabs"),
    ] {
        let file = scratch.file(name, &table);
        let output = netpolicy(&[&["sim", "validate", "epoll", "--measured", &file][..], &SHORT].concat());
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(text(&output.stderr).contains(words), "{name}: {}", text(&output.stderr));
    }
}

#[test]
fn what_sim_prints_for_programs_is_as_its_schema_says() {
    let scratch = Scratch::new("schema");
    let table = scratch.file(
        "rows.tsv",
        "delivery.mode\tclients.load\tclass\tqps\tavg\tcpu\ninterrupt\t20K\tstable\t20000\t60\t12\nsuspend20\tmax\tmax\t90000\t700\t90\n",
    );
    let fit = ["--measured", &table, "--rows", "interrupt@20K", "--parameters", "request"];
    let calls: [Vec<&str>; 4] = [
        [&["sim", "run", "lab", "--sweep", "clients.load=20K,max"][..], &SHORT].concat(),
        [&["sim", "validate", "lab", "--measured", &table][..], &SHORT].concat(),
        [&["sim", "calibrate", "lab", "--evaluations", "1"][..], &fit].concat(),
        [&["sim", "calibrate", "lab", "--evaluations", "3"][..], &fit].concat(),
    ];
    for call in calls {
        for form in ["json", "jsonl"] {
            let output = netpolicy(&[&["-o", form][..], &call].concat());
            assert_eq!(output.status.code(), Some(0), "{call:?}: {}", text(&output.stderr));
            let words = [&["-o", form][..], &call].concat();
            assert_eq!(misfit(&words, &output.stdout), None, "{words:?}");
            // Check that the checker rejects a wrong document.
            let documents = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
            let mut seen = 0;
            for document in documents {
                let mut document = document.expect("JSON");
                document["data"] = Value::from(1);
                assert!(misfit(&words, document.to_string().as_bytes()).is_some());
                seen += 1;
            }
            assert!(seen > 0, "{form} of {call:?}");
        }
    }
}

#[test]
fn a_single_run_has_no_range() {
    let words = [&["sim", "run", "lab", "--no-probe"][..], &SHORT].concat();
    let page = text(&netpolicy(&words).stdout);
    assert!(page.contains("its range over one seed at one set of parameters"), "{page}");
    let below = page.lines().last().expect("lines");
    assert_eq!(below.split_whitespace().collect::<Vec<_>>(), ["-"; 7], "{page}");
    let range = |words: &[&str]| {
        let output = netpolicy(&[&["-o", "json"][..], words].concat());
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        document["data"]["points"][0]["values"][1]["range"].clone()
    };
    assert_eq!(range(&words), Value::Null);
    let two = range(&[&["sim", "run", "lab", "--no-probe", "--seeds", "2"][..], &SHORT[2..]].concat());
    assert!(two["low"].as_f64() < two["high"].as_f64(), "{two}");
}

#[test]
fn a_fit_that_was_too_short_has_no_interval() {
    let scratch = Scratch::new("short-fit");
    let table = scratch.file("rows.tsv", "delivery.mode\tclients.load\tavg\ninterrupt\t20K\t60\n");
    let words = ["sim", "calibrate", "lab", "--measured", &table, "--rows", "interrupt@20K"];
    let fitted = |more: &[&str]| netpolicy(&[&words[..], more].concat());
    let page = text(&fitted(&["--parameters", "request", "--evaluations", "1"]).stdout);
    assert!(page.contains("too few evaluations") && !page.contains('–'), "{page}");
    for (parameters, says) in [
        ("", "no parameters were named"),
        ("reqest", "did you mean `request`?"),
        ("request,request", "parameter `request` was named twice"),
        ("request,", "`` is not a parameter"),
    ] {
        let output = fitted(&["--parameters", parameters]);
        assert_eq!(output.status.code(), Some(2), "{parameters}");
        assert!(text(&output.stderr).contains(says), "{parameters}: {}", text(&output.stderr));
    }
    let none = fitted(&[]);
    assert!(text(&none.stderr).contains("no parameters were named"), "{}", text(&none.stderr));
}

#[test]
fn an_invalid_scenario_and_an_unreadable_file_differ_in_their_errors() {
    let scratch = Scratch::new("no-scenario");
    let ends = |file: &str, code: i32, says: &str| {
        let output = netpolicy(&["sim", "run", file]);
        let words = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{file}: {words}");
        assert!(words.contains(says), "{file}: {words}");
    };
    ends(&scratch.file("empty.toml", ""), 2, "an empty file is not a scenario");
    ends("/dev/null", 2, "an empty file is not a scenario");
    ends("-", 2, "an empty file is not a scenario");
    ends(&scratch.path("none.toml"), 1, "No such file or directory");
    ends(&scratch.path(""), 1, "Is a directory");
    let latin = scratch.path("latin.toml");
    std::fs::write(&latin, b"title = \"a\"\n# caf\xe9\n").expect("file");
    ends(&latin, 2, "line 2 is not UTF-8 text");
    ends("/dev/zero", 2, "it is larger than 16777216 bytes");
    for (option, value) in [("--window", "-5ms"), ("--warmup", "-1"), ("--seeds", "-1"), ("--seed", "-1")] {
        let output = netpolicy(&["sim", "run", "lab", option, value]);
        let words = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{option}");
        assert!(words.contains(&format!("invalid value '{value}' for '{option}")), "{words}");
    }
}

#[test]
fn a_scenarios_name_need_not_be_text() {
    let scratch = Scratch::new("latin-name");
    let file = scratch.0.path().join(OsStr::from_bytes(b"caf\xe9.toml"));
    std::fs::write(&file, "[clients]\nload = \"50K\"\nconnections = 8\n").expect("file");
    let words = [&["sim", "run", "--no-probe"][..], &SHORT].concat();
    let output = command(&words).arg(&file).output().expect("runs");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("caf\u{fffd}.toml"), "{}", text(&output.stdout));
}

#[test]
fn a_scenario_may_come_from_standard_input() {
    let mut child = command(&[&["sim", "run", "-", "--no-probe"][..], &SHORT].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(b"title = \"From a pipe\"\n[clients]\nload = \"50K\"\n").expect("is read");
    drop(input);
    let output = child.wait_with_output().expect("ends");
    let page = text(&output.stdout);
    assert!(
        output.status.success() && page.starts_with("From a pipe (NOT CALIBRATED") && page.contains("50K"),
        "{page}"
    );
}

#[test]
fn a_report_is_well_formed_and_has_measured_points_over_predicted_lines() {
    let scratch = Scratch::new("report");
    let measured = [
        ("defer20", "200K", 110.5, 38.0),
        ("defer20", "300K", 120.5, 59.5),
        ("defer20", "600K", 140.5, 80.0),
        ("defer20", "max", 2999.5, 99.5),
        ("suspend20", "200K", 57.5, 28.5),
        ("suspend20", "300K", 61.5, 47.0),
        ("suspend20", "600K", 68.5, 64.5),
        ("suspend20", "max", 2700.5, 98.5),
    ];
    let mut table = "delivery.mode\tclients.load\tavg\tcpu\n".to_owned();
    for (mode, load, avg, cpu) in measured {
        table += &format!("{mode}\t{load}\t{avg}\t{cpu}\n");
    }
    let (table, report) = (scratch.file("rows.tsv", &table), scratch.path("report.html"));
    let words =
        ["sim", "validate", "irq-suspension", "--measured", &table, "--html", &report, "--seeds", "2"];
    let output = netpolicy(&[&words[..], &SHORT[2..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(&report).expect("written");
    let elements = elements(&page).unwrap_or_else(|wrong| panic!("not well-formed: {wrong}"));
    assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("NaN"), "from elsewhere");

    // A chart for each of two metrics and two modes, each with a heading, a band, a line and three points;
    // the closed loop is separate, with a short line.
    let headings: Vec<&str> = elements.iter().filter(|e| e.name == "h2").map(|e| e.text.as_str()).collect();
    assert_eq!(
        headings[..2],
        ["avg, in microseconds, by load", "cpu, in percent of the time of all CPUs, by load"]
    );
    let charts: Vec<&[Element]> = elements
        .split(|e| e.name == "svg")
        .skip(1)
        .map(|chart| chart.split(|e| e.name == "h2").next().unwrap_or_default())
        .collect();
    assert_eq!(charts.len(), 4);
    for (i, chart) in charts.iter().enumerate() {
        let rows = &measured[4 * (i % 2)..4 * (i % 2) + 4];
        let names: Vec<&str> = chart.iter().map(|e| e.name.as_str()).filter(|n| *n != "text").collect();
        let points = ["circle", "title"].repeat(3);
        let apart = ["rect", "line", "circle", "title"];
        assert_eq!(names, [&["polygon", "polyline"][..], &points, &apart].concat(), "chart {i}");
        let of = |name: &str| chart.iter().filter(|e| e.name == name).collect::<Vec<_>>();
        let (band, line) = (of("polygon")[0].points(), of("polyline")[0].points());
        assert_eq!((band.len(), line.len()), (6, 3), "chart {i}");
        let circles: Vec<(f64, f64)> =
            of("circle").iter().map(|e| (e.number("cx"), e.number("cy"))).collect();
        for (k, ((mode, load, avg, cpu), (x, y))) in rows.iter().zip(&circles).enumerate() {
            let there = line.get(k).map_or_else(|| of("line")[0].number("x1") + 6.0, |point| point.0);
            assert!((there - x).abs() < 0.01, "a point is at the load that the line has there");
            let value = if i < 2 { avg } else { cpu };
            assert_eq!(of("title")[k].text, value.to_string(), "{mode}@{load}");
            let labels: Vec<&str> = of("text").iter().map(|e| e.text.as_str()).collect();
            assert!(labels.contains(mode) && labels.contains(load), "{labels:?}");
            if i >= 2 {
                // CPU use is drawn from 0 at the bottom to 100 % at the top.
                assert!((y - (216.0 - 172.0 * cpu / 100.0)).abs() < 0.06, "{mode}@{load}: {y}");
            }
        }
        let all = band.iter().chain(&line).chain(&circles);
        assert!(
            all.clone().all(|(x, y)| (0.0..=420.0).contains(x) && (0.0..=260.0).contains(y)),
            "chart {i}"
        );
        // 300K is a quarter of the way from 200K to 600K.
        let way = (circles[1].0 - circles[0].0) / (circles[2].0 - circles[0].0);
        assert!((way - 0.25).abs() < 0.001 && circles[3].0 > circles[2].0 + 20.0, "chart {i}: {circles:?}");
        // Larger values are drawn higher.
        assert!(circles[0].1 > circles[2].1 && line[0].1 > line[2].1, "chart {i}: {circles:?} {line:?}");
    }
}

#[test]
fn costs_of_another_host_are_called_so_and_clients_cost_nothing_there() {
    let run = |words: &[&str]| {
        let all =
            [&["sim", "run"], words, &["--seeds", "1", "--samples", "0", "--window", "50ms", "--no-probe"]]
                .concat();
        let output = netpolicy(&all);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout).to_owned()
    };
    let first = |printed: &str| printed.lines().next().expect("a heading").to_owned();
    assert!(first(&run(&["lab"])).contains("NOT CALIBRATED"), "no rows of the lab were fitted");
    assert!(!first(&run(&["irq-suspension", "--set", "clients.load=100K"])).contains("NOT CALIBRATED"));
    let output =
        netpolicy(&["-o", "json", "sim", "run", "lab", "--seeds", "1", "--window", "50ms", "--no-probe"]);
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let point = &document["data"]["points"][0];
    assert_eq!(point["calibrated"], Value::Bool(false));
    let parameters = &point["evidence"]["origin"]["simulated"]["parameters"];
    for (parameter, least) in
        [("client-rtt", "1 us"), ("client-jitter", "0 us"), ("client-slow-base", "0 share")]
    {
        assert_eq!(parameters[parameter], least, "{parameters}");
    }
}

#[test]
fn hyper_threads_and_far_nodes_cost_something() {
    let average = |words: &[&str]| {
        let fixed = [
            "-o",
            "json",
            "sim",
            "run",
            "irq-suspension",
            "--set",
            "clients.load=300K",
            "--seeds",
            "1",
            "--samples",
            "0",
            "--window",
            "50ms",
            "--no-probe",
        ];
        let output = netpolicy(&[&fixed, words].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let values = document["data"]["points"][0]["values"].as_array().expect("values").clone();
        values
            .iter()
            .find(|value| value["metric"] == "avg")
            .and_then(|value| value["value"].as_f64())
            .expect("avg")
    };
    let plain = average(&[]);
    assert!(average(&["--set", "hardware.smt=true"]) > 1.02 * plain);
    assert!(average(&["--set", "hardware.node-cpus=4"]) > plain);
    let near = ["sim", "run", "lab", "--set", "hardware.node-cpus=1", "--set", "hardware.node-distance=10"];
    let output = netpolicy(&near);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("numactl --hardware"), "{}", text(&output.stderr));
}

#[test]
fn threads_without_a_queue_are_named_and_a_million_is_a_load() {
    let words = ["sim", "run", "lab", "--seeds", "1", "--samples", "0", "--window", "50ms", "--no-probe"];
    let more =
        ["--set", "hardware.cpus=4", "--set", "layout.thread-cpus=1-3", "--set", "application.threads=3"];
    let output = netpolicy(&[&words[..], &more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("2 threads idle"), "{}", text(&output.stdout));
    let output = netpolicy(&[
        "sim",
        "run",
        "irq-suspension",
        "--set",
        "clients.load=1M",
        "--seeds",
        "1",
        "--samples",
        "0",
        "--window",
        "20ms",
        "--no-probe",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}
