//! Builds the kernel's own selftests of epoll, busy polling and NAPIs from the patched tree.

use std::path::Path;
use std::process::Command;

use crate::files::{self, About as _};
use crate::shell::{self, Result};

/// The scripts and code that select and run the selftests, as a part of a build's key.
pub(super) const RECIPE: &str = concat!(
    include_str!("selftests.sh"),
    include_str!("selftests.rs"),
    include_str!("ethtool-shim.sh"),
    include_str!("udevadm-shim.sh")
);

/// The prefix of the names of kernel selftests.
pub(super) const PREFIX: &str = "kselftest/";

/// The number of tests in each selftest. Any other number is a failure; without a guest, this many tests
/// count as skipped.
pub(super) const TESTS: &[(&str, u64)] = &[
    ("epoll_events_only_test", 18),
    ("epoll_busy_poll", 5),
    ("napi_threaded.py", 3),
    ("napi_id.py", 1),
    ("busy_poll_test.sh", 1),
    ("epoll_wakeup_test", 66),
];

/// The reason for skipping a test that depends on the timing of threads and has failed twice.
pub(super) const LOST_RACE: &str = "needs CPUs that no other task uses: the test lost its race twice";

/// Programs with one source file: its path below `tools/testing/selftests`, and the linker options for its
/// libraries.
const PROGRAMS: &[(&str, &str)] = &[
    ("filesystems/epoll/epoll_events_only_test", "-lpthread"),
    ("filesystems/epoll/epoll_wakeup_test", "-lpthread"),
    ("net/epoll_busy_poll", "-lcap"),
    ("drivers/net/napi_id_helper", "-lpthread"),
];

/// Scripts, and the files that they source.
const SCRIPTS: &[(&str, &str)] = &[
    ("net/busy_poll_test.sh", "busy_poll_test.sh"),
    ("net/lib.sh", "lib.sh"),
    ("net/lib/sh/defer.sh", "lib/sh/defer.sh"),
];

/// The tests in Python with their library and the files that the library needs, from the tree to the layout
/// of the kernel's `make install`.
const PYTHON_TREE: &[(&str, &str)] = &[
    ("tools/testing/selftests/drivers/net/napi_threaded.py", "drivers/net"),
    ("tools/testing/selftests/drivers/net/napi_id.py", "drivers/net"),
    ("tools/testing/selftests/drivers/net/lib", "drivers/net"),
    ("tools/testing/selftests/net/lib/py", "net/lib"),
    ("tools/net/ynl/pyynl", "net/lib/ynl"),
    ("Documentation/netlink/specs", "net/lib"),
];

/// Replacements for programs that a guest or Debian 12 lacks.
const SHIMS: &[(&str, &str)] =
    &[("ethtool", include_str!("ethtool-shim.sh")), ("udevadm", include_str!("udevadm-shim.sh"))];

/// The path of the distribution's Python: another one that comes earlier in `PATH` lacks the distribution's
/// modules.
const PYTHON: &str = "/usr/bin/python3";

/// Builds the selftests from a tree into a directory, and adds the script `run`, which runs all of them.
pub(super) fn build(tree: &Path, into: &Path) -> Result {
    let selftests = tree.join("tools/testing/selftests");
    files::make_directory(&into.join("lib/sh"))?;
    for (test, library) in PROGRAMS {
        let mut compiler = compiler(&into.join(test.rsplit('/').next().unwrap_or(test)));
        compiler.arg("-I").arg(&selftests).arg(selftests.join(format!("{test}.c")));
        shell::run(compiler.arg(library))?;
    }
    for (from, to) in SCRIPTS {
        let from = selftests.join(from);
        std::fs::copy(&from, into.join(to)).about(&from)?;
    }
    for (from, below) in PYTHON_TREE {
        files::make_directory(&into.join(below))?;
        let mut copy = Command::new("cp");
        shell::run(copy.arg("-rL").arg(tree.join(from)).arg(into.join(below)))?;
    }
    let helper = into.join("napi_id_helper");
    std::fs::rename(&helper, into.join("drivers/net/napi_id_helper")).about(&helper)?;
    // This file tells the library of the Python tests that it runs outside the kernel tree.
    files::write(&into.join("kselftest-list.txt"), "")?;
    files::make_directory(&into.join("shims"))?;
    for (name, text) in SHIMS {
        files::write_script(&into.join("shims").join(name), text)?;
    }
    busy_poller(tree, into)?;
    files::write(&into.join("counts"), &counts())?;
    files::write(&into.join("run"), include_str!("selftests.sh"))
}

/// Returns [`TESTS`] in the format that `selftests.sh` reads.
fn counts() -> String {
    TESTS.iter().map(|(name, tests)| format!("{name} {tests}\n")).collect()
}

/// Builds the helper of `busy_poll_test.sh`. Only the netlink code of the family that it uses is generated;
/// generating the code of all families, as the kernel's makefiles do, takes minutes.
fn busy_poller(tree: &Path, into: &Path) -> Result {
    let ynl = tree.join("tools/net/ynl");
    for (kind, file) in [("--header", "netdev-user.h"), ("--source", "netdev-user.c")] {
        // Keep build products out of the tree.
        let mut generator = Command::new(PYTHON);
        generator.env("PYTHONDONTWRITEBYTECODE", "1").arg(ynl.join("pyynl/ynl_gen_c.py"));
        generator.args(["--mode", "user", kind, "--spec"]);
        generator.arg(tree.join("Documentation/netlink/specs/netdev.yaml")).arg("-o").arg(into.join(file));
        shell::run(&mut generator)?;
    }
    let mut compiler = compiler(&into.join("busy_poller"));
    // Use this kernel's header for the family, as tools/net/ynl/Makefile.deps does, and the system's headers
    // for everything else.
    compiler.args(["-D_GNU_SOURCE", "-D_LINUX_NETDEV_H", "-include"]);
    compiler.arg(tree.join("include/uapi/linux/netdev.h"));
    compiler.arg("-I").arg(ynl.join("lib")).arg("-I").arg(into);
    compiler.arg("-idirafter").arg(tree.join("include/uapi"));
    compiler.arg(tree.join("tools/testing/selftests/net/busy_poller.c"));
    shell::run(compiler.arg(into.join("netdev-user.c")).arg(ynl.join("lib/ynl.c")))
}

fn compiler(program: &Path) -> Command {
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=gnu11", "-O2", "-w", "-o"]).arg(program);
    compiler
}

#[cfg(test)]
mod reading {
    use super::*;

    /// Runs `selftests.sh` on fake programs, and returns the lines that it prints. The program `other` prints
    /// `words` or, if `words` is a script, is that script.
    fn lines_of(name: &str, other: &str, words: &str) -> Vec<String> {
        let place = std::env::temp_dir().join(format!("netpolicy-selftests-{name}-{}", std::process::id()));
        files::make_directory(&place.join("drivers/net")).expect("a directory");
        for (program, tests) in TESTS {
            let all: String = (1..=*tests).map(|n| format!("ok {n} a.t{n}\n")).collect();
            let all = format!("1..{tests}\n{all}");
            let words = if *program == other { words } else { &all };
            let (below, script) = match program.strip_suffix(".py") {
                Some(_) => ("drivers/net", format!("print({words:?}, end='')\n")),
                None if words.starts_with("#!") => ("", words.to_owned()),
                None => ("", format!("#!/bin/sh\ncat <<'END'\n{words}END\n")),
            };
            files::write_script(&place.join(below).join(program), &script).expect("written");
        }
        files::write(&place.join("counts"), &counts()).expect("written");
        let mut shell = Command::new("sh");
        let said =
            shell.args(["-c", include_str!("selftests.sh"), "sh"]).arg(&place).output().expect("it runs");
        files::remove(&place).expect("it was there");
        String::from_utf8_lossy(&said.stdout).lines().map(str::to_owned).collect()
    }

    #[test]
    fn every_test_has_a_line() {
        let lines = lines_of("all", "none", "");
        let all: u64 = TESTS.iter().map(|(_, tests)| tests).sum();
        let passed = lines.iter().filter(|line| line.ends_with(" ... ok"));
        assert_eq!(
            (passed.count(), lines.len()),
            (usize::try_from(all).expect("few"), lines.len()),
            "{lines:#?}"
        );
        assert!(lines.contains(&"test kselftest/busy_poll_test.sh ... ok".to_owned()), "{lines:#?}");
    }

    #[test]
    fn on_the_kernel_that_they_are_for_no_test_is_skipped() {
        let skips: String =
            (1..=18).map(|n| format!("ok {n} a.t{n} # SKIP no events-only wait here\n")).collect();
        let lines = lines_of("skips", "epoll_events_only_test", &format!("1..18\n{skips}"));
        let failed: Vec<_> = lines.iter().filter(|line| line.ends_with(" ... FAILED")).collect();
        assert_eq!(failed.len(), 18, "{lines:#?}");
        assert_eq!(failed[0], "test kselftest/epoll_events_only_test/a.t1 ... FAILED");
    }

    #[test]
    fn a_program_that_lost_tests_fails_even_if_it_says_so() {
        for words in ["1..1\nok 1 a\n", "1..3\nok 1 a\nok 2 b\n", ""] {
            let lines = lines_of("fewer", "napi_threaded.py", words);
            let line = "test kselftest/napi_threaded.py/all_of_its_results ... FAILED".to_owned();
            assert!(lines.contains(&line), "{words}: {lines:#?}");
        }
    }

    #[test]
    fn a_race_that_is_lost_twice_is_skipped_for_its_reason_and_no_other_test_is() {
        let verdict = |n| if (57..=59).contains(&n) { "not ok" } else { "ok" };
        let all: String = (1..=66).map(|n| format!("{} {n} global.epoll{n}\n", verdict(n))).collect();
        let again =
            "case $2 in epoll5[79]) echo 'not ok 1 it'; exit 1 ;; epoll58) echo 'ok 1 it'; exit ;; esac";
        let script = format!("#!/bin/sh\n{again}\ncat <<'END'\n1..66\n{all}END\n");
        let lines = lines_of("race", "epoll_wakeup_test", &script);
        for line in [
            "test kselftest/epoll_wakeup_test/global.epoll57 ... FAILED".to_owned(),
            "test kselftest/epoll_wakeup_test/global.epoll58 ... ok".to_owned(),
            format!("test [SKIPPED, {LOST_RACE}] kselftest/epoll_wakeup_test/global.epoll59 ... ignored"),
        ] {
            assert!(lines.contains(&line), "{line}: {lines:#?}");
        }
    }
}
