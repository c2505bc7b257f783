//! Renders an experiment, read as JSON from standard input, as HTML on standard output.
//!
//! ```text
//! cargo run -p netpolicy-runs --example report < results.json > report.html
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example prints to its user")]

use std::process::ExitCode;

fn main() -> ExitCode {
    match serde_json::from_reader::<_, runs::Results>(std::io::stdin().lock()) {
        Ok(results) => {
            print!("{}", runs::html::html_of_results("Packet delivery compared", &results));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("report: {error}");
            ExitCode::FAILURE
        }
    }
}
