//! The tests that the running kernel cannot run, in the guests that can.
//!
//! A test names its needs; the same program decides on every kernel which of its tests can run there. So nothing here
//! knows which guest has what: what is skipped on the host is offered to User-Mode Linux, what is skipped there to the
//! emulated machine, and what is skipped there to the same machine with the patched kernel.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::boot::{self, Guest, Order, Stream};
use super::budget;
use super::cache::{self, Cache};
use super::{Kind, ready};
use crate::shell::{self, Result};

/// Names the tests that a test program shall run, with line feeds between them; it leaves out all others.
const ONLY: &str = "NETPOLICY_TEST_ONLY";

/// What the names of the kernel's own tests begin with.
const KERNELS_OWN: &str = "kselftest/";

/// How long all tests of one guest may take together.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// A test program and the directory where cargo would start it.
struct Program {
    executable: PathBuf,
    directory: PathBuf,
}

/// How the tests went that the host had to skip.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    /// Those that passed.
    pub(crate) passed: BTreeSet<String>,
    /// Those that failed.
    pub(crate) failed: BTreeSet<String>,
    /// Those that no guest could run, each with what it needs.
    pub(crate) skipped: Vec<String>,
    /// Why a guest could not be made.
    pub(crate) unmade: Vec<String>,
    /// What became of a guest that was booted and did not do its work.
    pub(crate) broken: Vec<String>,
}

/// What a line of a test program's output says of a test.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// `cargo xtask guest test`.
pub(super) fn run(kind: Option<Kind>, name: Option<&str>) -> Result {
    let guests = run_in(
        kind.map_or(&[Kind::Uml, Kind::Qemu, Kind::Patched][..], |kind| match kind {
            Kind::Uml => &[Kind::Uml],
            Kind::Qemu => &[Kind::Qemu],
            Kind::Patched => &[Kind::Patched],
        }),
        name,
    )?;
    for skipped in &guests.skipped {
        eprintln!("SKIPPED {skipped}");
    }
    for failed in &guests.failed {
        eprintln!("FAILED {failed}");
    }
    println!(
        "in guests: {} passed, {} failed, {} skipped",
        guests.passed.len(),
        guests.failed.len(),
        guests.skipped.len()
    );
    match guests.unmade.iter().chain(&guests.broken).next() {
        Some(why) => Err(why.clone()),
        None if !guests.failed.is_empty() => Err("tests failed in a guest".to_owned()),
        None => Ok(()),
    }
}

/// Every test that the running kernel skips, in the guests.
///
/// Kernels that are not there yet are built first, for so long as tests can wait: see [`budget`].
pub(crate) fn run_skipped() -> Result<Guests> {
    budget::begin();
    run_in(&[Kind::Uml, Kind::Qemu, Kind::Patched], None)
}

fn run_in(kinds: &[Kind], name: Option<&str>) -> Result<Guests> {
    let programs = programs()?;
    let mut guests = Guests::default();
    for program in &programs {
        // Listing runs nothing: it says which tests would be skipped here, and why.
        let mut list = std::process::Command::new(&program.executable);
        list.current_dir(&program.directory).args(["--list", "--ignored"]);
        for line in cache::output(&mut list)?.lines() {
            if let Some(test) = line.strip_suffix(": test")
                && name.is_none_or(|wanted| test.contains(wanted))
            {
                guests.skipped.push(test.to_owned());
            }
        }
    }
    let cache = Cache::open()?;
    for &kind in kinds {
        // The patched kernel has tests of its own.
        if guests.skipped.is_empty() && kind != Kind::Patched {
            continue;
        }
        match ready(&cache, kind, &[]) {
            Err(why) => {
                eprintln!("guest: {kind:?} cannot be made: {why}");
                guests.unmade.push(why);
            }
            Ok(guest) => {
                if let Err(what) = offer(&cache, guest.as_ref(), &programs, &mut guests) {
                    eprintln!("guest: {what}");
                    guests.broken.push(what);
                }
            }
        }
    }
    Ok(guests)
}

/// Boots one guest and runs in it what is still skipped.
fn offer(cache: &Cache, guest: &dyn Guest, programs: &[Program], guests: &mut Guests) -> Result {
    let names: Vec<_> = guests.skipped.iter().map(|skipped| bare_name(skipped)).collect();
    println!("\nin {}: {} tests that cannot run on this kernel", guest.described(), names.len());
    let mut script = String::from("status=0\n");
    for program in programs {
        let (directory, executable) = (program.directory.display(), program.executable.display());
        script += &format!("cd '{directory}' && '{executable}' --test-threads=1 || status=1\n");
    }
    if let Some(selftests) = guest.selftests() {
        script += &format!("sh '{0}/run' '{0}' || status=1\n", selftests.display());
    }
    let order = Order {
        command: vec!["sh".into(), "-c".into(), script + "exit $status\n"],
        environment: vec![
            (ONLY.into(), names.join("\n")),
            ("INSTA_UPDATE".into(), "no".into()),
            ("RUST_BACKTRACE".into(), "1".into()),
        ],
        directory: shell::root(),
        boot_limit: boot::BOOT_LIMIT,
        limit: LIMIT,
    };
    let mut said = Vec::new();
    let ended = boot::execute(cache, guest, &order, &mut |stream, bytes| {
        if stream == Stream::Out {
            said.extend_from_slice(bytes);
        }
        boot::print(stream, bytes);
    });
    let said = String::from_utf8_lossy(&said).into_owned();
    let (mut passed, mut failed) = (0, 0);
    for (verdict, test) in said.lines().filter_map(read_line) {
        let name = bare_name(test).to_owned();
        match verdict {
            Verdict::Passed => {
                passed += 1;
                guests.passed.insert(name.clone())
            }
            Verdict::Failed => {
                failed += 1;
                guests.failed.insert(name.clone())
            }
            // Of the host's tests it is known already that they were skipped; of the kernel's own it is not.
            Verdict::Skipped => {
                if name.starts_with(KERNELS_OWN) {
                    guests.skipped.push(test.to_owned());
                }
                continue;
            }
        };
        guests.skipped.retain(|skipped| bare_name(skipped) != name);
    }
    println!("in {}: {passed} passed, {failed} failed", guest.described());
    let ended = ended?;
    if ended.code != 0 && failed == 0 {
        return Err(format!(
            "{}: the test programs ended with {} and no test failed",
            guest.described(),
            ended.code
        ));
    }
    Ok(())
}

/// Builds the programs that hold tests of the running kernel.
fn programs() -> Result<Vec<Program>> {
    let mut cargo = shell::cargo();
    cargo.args([
        "test",
        "--quiet",
        "--workspace",
        "--no-run",
        "--message-format=json",
        "--test",
        "root",
        "--test",
        "host",
    ]);
    shell::show(&cargo);
    let said = cargo.stderr(std::process::Stdio::inherit()).output();
    let said = said.map_err(|error| format!("cargo: {error}"))?;
    if !said.status.success() {
        return Err(format!("the tests do not build: cargo {}", said.status));
    }
    let said = String::from_utf8_lossy(&said.stdout);
    let programs: Vec<_> = said.lines().filter_map(read_artifact).collect();
    if programs.is_empty() { Err("cargo named no test program".to_owned()) } else { Ok(programs) }
}

/// Reads one of cargo's messages: a test program that was built.
fn read_artifact(message: &str) -> Option<Program> {
    let text = |name: &str| {
        let begin = message.find(&format!("\"{name}\":\""))? + name.len() + 4;
        message[begin..].split('"').next()
    };
    if !message.contains("\"reason\":\"compiler-artifact\"") || !message.contains("\"kind\":[\"test\"]") {
        return None;
    }
    let manifest = Path::new(text("manifest_path")?);
    Some(Program { executable: text("executable")?.into(), directory: manifest.parent()?.into() })
}

/// Reads one line of libtest-mimic's output.
fn read_line(line: &str) -> Option<(Verdict, &str)> {
    let (name, verdict) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let verdict = match verdict.trim() {
        "ok" => Verdict::Passed,
        "FAILED" => Verdict::Failed,
        "ignored" => Verdict::Skipped,
        _ => return None,
    };
    Some((verdict, name.trim()))
}

/// A test's name without the kind that libtest-mimic puts before it.
fn bare_name(test: &str) -> &str {
    match test.strip_prefix('[') {
        Some(rest) => rest.split_once("] ").map_or(test, |(_, name)| name),
        None => test,
    }
}

#[cfg(test)]
mod reading {
    use super::*;

    #[test]
    fn a_test_that_a_guest_ran_is_recognised_by_its_name() {
        assert_eq!(read_line("test knobs/x_is_set     ... ok"), Some((Verdict::Passed, "knobs/x_is_set")));
        assert_eq!(read_line("test a ... FAILED"), Some((Verdict::Failed, "a")));
        let skipped =
            read_line("test [SKIPPED, needs flower] rules/flower ... ignored").expect("it is a test's line");
        assert_eq!((skipped.0, bare_name(skipped.1)), (Verdict::Skipped, "rules/flower"));
        assert_eq!(read_line("test result: ok. 1 passed; 0 failed"), None);
    }

    #[test]
    fn cargo_names_the_program_and_its_directory() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/p/crates/linux/Cargo.toml","target":{"kind":["test"],"name":"root"},"executable":"/p/target/debug/deps/root-1"}"#;
        let program = read_artifact(message).expect("it is a test program");
        assert_eq!(program.executable, Path::new("/p/target/debug/deps/root-1"));
        assert_eq!(program.directory, Path::new("/p/crates/linux"));
        assert!(read_artifact(&message.replace("[\"test\"]", "[\"lib\"]")).is_none());
    }
}
