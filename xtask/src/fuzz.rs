//! Builds and runs the fuzz targets, which cover every parser of foreign bytes. The stable compiler builds
//! them: coverage counters are an LLVM pass, and libFuzzer comes with its crate. There is no address
//! sanitizer, because the parsers are safe Rust.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files;
use crate::options::Options;
use crate::release;
use crate::shell::{self, Result};

/// The `rustc` flags for coverage counters in libFuzzer's format.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-sanitizer-coverage-stack-depth";

/// The default duration of each target, in seconds.
const SECONDS: u64 = 60;

const USAGE: &str = "usage: cargo xtask fuzz [--seconds N] [--runs N] [TARGET...]";

/// The environment variable that selects the fuzzer's target (`fuzz::TARGET_VARIABLE`).
const TARGET_VARIABLE: &str = "NETPOLICY_FUZZ_TARGET";

/// The largest input, in bytes.
const INPUT_BYTES_MAX: u32 = 65_536;

/// Runs each target for some seconds (`--seconds N`) or a number of inputs (`--runs N`), whichever ends
/// first. A crash is an error; the input that caused it is kept in `target/fuzz/TARGET/`. The tests of
/// `fuzz/` replay known inputs.
pub(crate) fn run(arguments: &[String]) -> Result {
    let options = Options::read(arguments, &[], &["--seconds", "--runs"], USAGE)?;
    let only = &options.words;
    let runs = options.value("--runs").map(|_| options.number("--runs", 0)).transpose()?;
    // libFuzzer treats 0 seconds as no limit.
    let seconds = options.number("--seconds", if runs.is_some() { 0 } else { SECONDS })?;
    let mut limits = vec![format!("-max_total_time={seconds}")];
    limits.extend(runs.map(|runs| format!("-runs={runs}")));
    let targets = targets()?;
    if let Some(unknown) = only.iter().find(|name| !targets.contains(name)) {
        return Err(format!("no fuzz target `{unknown}`: expected {}", targets.join(", ")));
    }
    let folder = shell::root().join("target/fuzz");
    // Because of `--target`, cargo builds build scripts and procedural macros without coverage.
    let triple = release::host_target()?;
    let mut build = shell::cargo();
    build.args(["build", "--quiet", "--profile", "fuzz", "-p", "netpolicy-fuzz", "--features", "libfuzzer"]);
    build.args(["--bins", "--target", &triple, "--target-dir"]).arg(folder.join("build"));
    shell::run(build.env("RUSTFLAGS", COVERAGE))?;
    let program = folder.join("build").join(triple).join("fuzz/fuzz");
    for target in targets.iter().filter(|name| only.is_empty() || only.contains(name)) {
        fuzz(target, &folder, &program, &limits)?;
    }
    Ok(())
}

/// Runs one target: first each regression once, then new inputs derived from the corpus.
fn fuzz(target: &str, folder: &Path, program: &Path, limits: &[String]) -> Result {
    let work = folder.join(target);
    let found = work.join("corpus");
    files::make_directory(&found)?;
    let fuzzer = || {
        let mut command = Command::new(program);
        command.env(TARGET_VARIABLE, target);
        command
    };
    let regressions = shell::root().join("fuzz/regressions").join(target);
    if regressions.is_dir() {
        shell::run(fuzzer().arg(&regressions).arg("-runs=0"))?;
    }
    let mut command = fuzzer();
    command.arg(&found).arg(shell::root().join("fuzz/corpus").join(target));
    command.args(limits).arg(format!("-max_len={INPUT_BYTES_MAX}"));
    command
        .arg(format!("-artifact_prefix={}/", work.display()))
        .args(["-print_final_stats=1", "-verbosity=0"]);
    shell::show(&command);
    let output = command.output().map_err(|error| format!("fuzz target {target}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let input = work.display();
        return Err(format!("fuzz target {target}: {}; the input is in {input}\n{said}", output.status));
    }
    let executed = said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    eprintln!("fuzz {target}: no failures in {} inputs", executed.map_or("an unknown number of", str::trim));
    Ok(())
}

/// Returns the names of the targets, each of which has a folder of initial inputs.
fn targets() -> Result<Vec<String>> {
    let folder = shell::root().join("fuzz/corpus");
    let name = |path: &PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
    Ok(files::entries(&folder)?.iter().filter_map(name).collect())
}
