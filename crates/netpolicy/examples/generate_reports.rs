//! Writes reports of many hosts, derived from a real one, with which to measure `audit`: `cargo run -p
//! netpolicy --example generate_reports -- REPORT COUNT DIRECTORY`. Every tenth host has drift, every
//! twentieth has another kernel, every hundredth has a conflict, and every thousandth report is cut off.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

/// The maximum number of hosts.
const COUNT_MAX: usize = 100_000;

#[expect(clippy::print_stderr, reason = "example: a separate program, which may print")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [report, count, directory] = &arguments[..] else {
        eprintln!("usage: generate_reports REPORT COUNT DIRECTORY");
        return ExitCode::from(2);
    };
    match generate(Path::new(report), count, Path::new(directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("generate_reports: {why}");
            ExitCode::FAILURE
        }
    }
}

fn generate(report: &Path, count: &str, directory: &Path) -> Result<(), String> {
    let count: usize = count.parse().ok().filter(|count| *count <= COUNT_MAX).ok_or("COUNT is too large")?;
    let text = std::fs::read_to_string(report).map_err(|error| error.to_string())?;
    let real: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    std::fs::create_dir_all(directory).map_err(|error| error.to_string())?;
    for at in 0..count {
        let mut host = real.clone();
        let data = &mut host["data"];
        data["host"] = json!(format!("node-{at:05}"));
        if at % 10 == 0 {
            let knob = if at % 20 == 0 { "gro-flush-timeout" } else { "affinity" };
            data["drifted"] = json!([{ "object": "eth0 rx-0", "knob": knob, "note": "drifted" }]);
        }
        if at % 20 == 1 {
            data["release"] = json!(format!("6.12.{}", at % 7));
        }
        if at % 100 == 2 {
            data["findings"] = json!([{ "rule": "irqbalance-moves-placed", "family": "others",
                "severity": "warning", "object": "irqbalance", "summary": "it moves placed interrupts" }]);
        }
        let mut text = host.to_string();
        if at % 1000 == 999 {
            text.truncate(text.len() / 2);
        }
        std::fs::write(directory.join(format!("node-{at:05}.json")), text)
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}
