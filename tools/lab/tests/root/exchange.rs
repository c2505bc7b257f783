//! `bench tcp-rr`, `tcp-stream`, `udp-rr`, `udp-stream`, `threaded` and `storage` as users run them, in a
//! separate lab: who polled, what was skipped and why, and that nothing is left behind. The tests check
//! counts, not times.

use std::process::{Command, Output, Stdio};

use libtest_mimic::{Failed, Trial};
use model::Evidence;
use runs::Grid;
use serde_json::Value;
use testkit::scratch::Scratch;
use testkit::{Need, repeated, test};

pub(crate) fn tests() -> Vec<Trial> {
    const LAB: &[Need] = &[Need::Root];
    const COUNTED: &[Need] = &[Need::Root, Need::ThreadPerNapi, Need::Bpf];
    const THREADS: &[Need] = &[Need::Root, Need::ThreadPerNapi];
    vec![
        test(
            "exchange/kernel_threads_poll_where_they_are_asked_to_and_only_there",
            COUNTED,
            repeated(threaded),
        ),
        test(
            "exchange/the_whole_matrix_has_both_tables_of_the_letter_in_every_form",
            THREADS,
            repeated(both_tables),
        ),
        test("exchange/every_size_of_the_document_is_exchanged_over_loopback", LAB, repeated(sizes)),
        test("exchange/a_stream_goes_either_way", LAB, repeated(stream)),
        test(
            "exchange/datagrams_are_answered_and_polled_by_a_suspended_server",
            COUNTED,
            repeated(datagrams),
        ),
        test("exchange/gates_decide_the_exit_code_and_are_judged_again_from_the_evidence", LAB, gates),
        test("exchange/what_a_configuration_fails_with_is_no_lack_of_the_kernel", THREADS, fails),
        test("exchange/storage_is_read_and_written_for_a_remote_client", LAB, repeated(storage)),
        test("exchange/a_calibration_that_nothing_answers_is_void_and_says_why", LAB, uncalibrated),
        test("exchange/what_would_be_lost_is_not_overwritten", LAB, kept),
    ]
}

fn bench(words: &str) -> Result<Output, Failed> {
    let mut command = Command::new(testkit::programs::netpolicy());
    command.args(["-o", "json", "bench"]).args(words.split(' ')).stdin(Stdio::null());
    Ok(command.output()?)
}

/// Returns the grid that a bench printed. On a busy machine, runs may be void, which the exit code reports.
fn grid(words: &str) -> Result<Grid, Failed> {
    let output = bench(words)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let document: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{words}: {error}; it said: {said}"))?;
    Ok(serde_json::from_value(document["data"].clone()).map_err(|error| format!("{words}: {error}"))?)
}

fn runs<'a>(grid: &'a Grid, label: &str) -> Vec<&'a Evidence> {
    let runs = grid.variants.iter().flat_map(|variant| &variant.results.evidence);
    runs.filter(|run| run.label == label).collect()
}

fn threaded() -> Result<(), Failed> {
    let grid = grid(
        "threaded --matrix --no-storage --size 1 --flows 8 --rate 2K --repeats 2 --seconds 1s --warmup 50ms --background 1",
    )?;
    let polls = |label: &str| {
        let (mut softirq, mut kthread) = (0, 0);
        for delivered in runs(&grid, label).iter().filter_map(|run| run.delivered.as_ref()) {
            softirq += delivered.napis.iter().map(|napi| napi.softirq().polls).sum::<u64>();
            kthread += delivered.napis.iter().map(|napi| napi.kthread.polls).sum::<u64>();
        }
        (softirq, kthread)
    };
    let (softirq, none) = polls("softirq");
    assert!(softirq > 0 && none == 0, "softirq: {softirq} polls in softirq, {none} by kthreads");
    for label in ["threaded", "threaded+pinned"] {
        let (few, kthread) = polls(label);
        assert!(kthread > 10 * few, "{label}: {few} polls in softirq, {kthread} by kthreads");
        assert!(runs(&grid, label).iter().all(|run| run.requests.answered > 0), "{label}");
    }
    let skipped = |label: &str| grid.skipped.iter().find(|skipped| skipped.label == label);
    // Depending on the kernel, each of these configurations is either measured or skipped with a reason.
    for label in ["threaded-busy", "workqueue"] {
        assert_eq!(skipped(label).is_some(), runs(&grid, label).is_empty(), "{label}");
    }
    assert!(
        grid.notes.iter().any(|note| note.contains("1 thread(s) use 50 % of a CPU each")),
        "{:?}",
        grid.notes
    );
    Ok(())
}

/// Does not check the counts of runs, because any run may be void on a busy machine.
fn both_tables() -> Result<(), Failed> {
    let scratch = Scratch::new("tables")?;
    let (json, html) = (scratch.path("evidence.json"), scratch.path("report.html"));
    let printed = grid(&format!(
        "threaded --matrix --size 1 --flows 4 --rate 50 --repeats 1 --seconds 100ms --warmup 10ms --json {} --report {}",
        json.display(),
        html.display()
    ))?;
    let (json, html) = (std::fs::read_to_string(&json)?, std::fs::read_to_string(&html)?);
    assert_eq!(serde_json::from_str::<Grid>(&json)?, printed, "the file has the printed report");
    let names: Vec<&str> = printed.variants.iter().map(|variant| variant.name.as_str()).collect();
    let operations = ["4 KB", "64 KB", "1 MB"].map(|op| format!("operations of {op}, 4 flows"));
    assert_eq!(names, [&["1 B/1 B, 4 flows".to_owned()][..], &operations].concat());
    for variant in &printed.variants {
        let labels = &variant.results.experiment.labels;
        assert!(["softirq", "threaded", "threaded+pinned"].iter().all(|way| labels.iter().any(|l| l == way)));
        assert_eq!(variant.results.evidence.len(), labels.len(), "{}", variant.name);
        assert!(html.contains(&variant.name), "{}", variant.name);
    }
    for outside in ["http", "src=", "url(", "@import", "<link", "<script"] {
        assert!(!html.contains(outside), "{outside}");
    }
    Ok(())
}

fn sizes() -> Result<(), Failed> {
    let words = "tcp-rr --loopback --mode softirq,userbusy --size 1,5K,1M --flows 2 --rate 50 --repeats 1 --seconds 200ms \
                 --warmup 20ms";
    let grid = grid(words)?;
    let names: Vec<&str> = grid.variants.iter().map(|variant| variant.name.as_str()).collect();
    assert_eq!(names, ["1 B/1 B, 2 flows", "5 KB/5 KB, 2 flows", "1 MB/1 MB, 2 flows"]);
    for run in grid.variants.iter().flat_map(|variant| &variant.results.evidence) {
        assert_eq!(run.requests.answered, run.requests.due, "{}: {:?}", run.label, run.requests);
    }
    Ok(())
}

/// No answer of this size arrives within such a short window, so the bench finds no capacity of which the
/// load could be a share.
fn uncalibrated() -> Result<(), Failed> {
    let words = "tcp-rr --loopback --mode softirq --size 16M --flows 4 --rate 40% --repeats 2 --seconds 1ms --warmup 1ms";
    let output = bench(words)?;
    assert_eq!(output.status.code(), Some(1), "no run counts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("No run counts."), "{said}");
    let document: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("{error}: {said}"))?;
    let grid: Grid = serde_json::from_value(document["data"].clone())?;
    let runs = runs(&grid, "softirq");
    assert_eq!((runs.len(), grid.variants[0].borne), (1, None), "no request is offered after the window");
    let why = runs[0].void.as_deref().ok_or("it is void")?;
    assert!(why.contains("answer"), "{why}");
    Ok(())
}

/// Checks a gate that every ratio meets and one that no ratio meets, so that the measured values do not
/// matter.
fn gates() -> Result<(), Failed> {
    let scratch = Scratch::new("gates")?;
    let file = |name: &str, text: &str| {
        let path = scratch.path(name);
        std::fs::write(&path, text).map(|()| path)
    };
    let loose =
        file("loose", "2 userbusy softirq qps >= 0.000001  # anything\n7 userbusy softirq qps >= 1e9\n")?;
    let tight = file("tight", "* userbusy softirq qps >= 1e9\n")?;
    let json = scratch.path("evidence.json");
    let measured = bench(&format!(
        "tcp-rr --loopback --both-sides --mode softirq,userbusy --flows 2 --rate max --repeats 3 --seconds 200ms --warmup 20ms --json {} \
         --gates {}",
        json.display(),
        loose.display()
    ))?;
    let printed = file("printed", &String::from_utf8_lossy(&measured.stdout))?;
    let again = |gates: &std::path::Path| {
        let output =
            bench(&format!("report {} {} --gates {}", json.display(), printed.display(), gates.display()))?;
        let document: Value = serde_json::from_slice(&output.stdout)?;
        let grid: Grid = serde_json::from_value(document["data"].clone())?;
        Ok::<_, Failed>((output.status.code(), grid.gates))
    };
    assert_eq!(measured.status.code(), Some(0), "{}", String::from_utf8_lossy(&measured.stderr));
    let (code, judged) = again(&loose)?;
    // Each of the two files has one experiment with two flows; the gate for seven flows applies to neither.
    assert_eq!((code, judged.len()), (Some(0), 2), "{judged:?}");
    assert!(judged.iter().all(|judged| judged.met == Some(true) && judged.pairs >= 2), "{judged:?}");
    let (code, judged) = again(&tight)?;
    assert_eq!(code, Some(1));
    assert!(judged.iter().all(|judged| judged.met == Some(false)), "{judged:?}");
    Ok(())
}

/// Checks that a bench fails if kernel threads cannot be pinned to the given CPUs.
fn fails() -> Result<(), Failed> {
    let output =
        bench("threaded --mode softirq,threaded+pinned --kthread-cpus 4000 --size 1 --flows 2 --rate 100")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("4000"), "{said}");
    Ok(())
}

fn stream() -> Result<(), Failed> {
    for bench in ["tcp-stream", "tcp-stream --from-server", "udp-stream", "udp-stream --from-server"] {
        let grid =
            grid(&format!("{bench} --mode softirq --flows 2 --repeats 1 --seconds 200ms --warmup 20ms"))?;
        let answered = runs(&grid, "softirq")[0].requests.answered;
        assert!(answered > 0, "no block arrived: {bench}");
    }
    Ok(())
}

/// Checks that at a moderate load nearly every datagram is answered, and that under suspension the server
/// polls in its own waits.
fn datagrams() -> Result<(), Failed> {
    let grid = grid(
        "udp-rr --mode base,suspend200 --size 64/512 --flows 4 --rate 5K --repeats 2 --seconds 500ms --warmup 100ms",
    )?;
    for (label, polls) in [("base", false), ("suspend200", true)] {
        for run in runs(&grid, label) {
            let requests = run.requests;
            assert!(requests.due > 1_000, "{label}: {requests:?}");
            assert!(requests.unanswered * 50 <= requests.due, "{label}: {requests:?}");
            let napis = run.delivered.iter().flat_map(|delivered| &delivered.napis);
            let by_server: u64 = napis.map(|napi| napi.application.packets).sum();
            assert_eq!(by_server > 0, polls, "{label}: {by_server} packets");
        }
    }
    let refused = bench("udp-rr --partners")?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("--partners"), "{said}");
    Ok(())
}

fn storage() -> Result<(), Failed> {
    let grid = grid(
        "storage --mode softirq --op 4K,1M --flows 4 --span 4M --rate 50 --repeats 1 --seconds 400ms --warmup 20ms",
    )?;
    assert_eq!(grid.variants.len(), 2);
    for run in runs(&grid, "softirq") {
        assert!(run.requests.answered > 0);
        assert_eq!(run.requests.errors, 0, "{:?}", run.void);
    }
    Ok(())
}

fn kept() -> Result<(), Failed> {
    let scratch = Scratch::new("kept")?;
    let path = scratch.path("precious");
    std::fs::write(&path, "precious")?;
    let output = bench(&format!("storage --file {} --span 4K --op 4K", path.display()))?;
    let text = std::fs::read_to_string(&path)?;
    assert_eq!((output.status.code(), text.as_str()), (Some(7), "precious"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("would be overwritten") && said.contains("--overwrite"), "{said}");
    Ok(())
}
