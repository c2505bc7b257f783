//! How long kernels may be built while tests wait for them.

use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::shell::{self, Result};

/// How long all kernels together may be built before tests. The two take about ten minutes each on two quiet CPUs; what
/// does not fit is skipped in the open, and built by hand.
const FOR_TESTS: Duration = Duration::from_secs(25 * 60);

/// When building ends; never, if nobody waits.
static END: OnceLock<Instant> = OnceLock::new();

/// From now on [`FOR_TESTS`] is left.
pub(super) fn begin() {
    END.get_or_init(|| Instant::now() + FOR_TESTS);
}

/// What is left until then; `None` if nobody waits.
fn left() -> Option<Duration> {
    END.get().map(|end| end.saturating_duration_since(Instant::now()))
}

/// `make`, which is ended when the time is up.
pub(super) fn make() -> Command {
    limited_make(left())
}

fn limited_make(left: Option<Duration>) -> Command {
    let Some(left) = left else { return Command::new("make") };
    let mut command = Command::new("timeout");
    // At least a second: 0 is no limit.
    command.args(["--foreground", "--kill-after=10", &left.as_secs().max(1).to_string(), "make"]);
    command
}

/// Runs what [`make`] began; `option` is what builds this kernel by hand.
pub(super) fn run(command: &mut Command, option: &str) -> Result {
    shell::run(command)
        .map_err(|failed| if left() == Some(Duration::ZERO) { too_late(option) } else { failed })
}

fn too_late(option: &str) -> String {
    format!(
        "the kernel was not built within the {} minutes that tests wait for all of them: `cargo xtask guest build {option}` goes on with \
         what is there",
        FOR_TESTS.as_secs() / 60
    )
}

#[cfg(test)]
mod limits {
    use super::*;

    #[test]
    fn a_make_that_takes_too_long_is_ended() {
        let makefile = std::env::temp_dir().join(format!("netpolicy-budget-{}", std::process::id()));
        std::fs::write(&makefile, "all:\n\t@sleep 60\n").expect("a makefile");
        let begun = Instant::now();
        let status = limited_make(Some(Duration::ZERO)).arg("-f").arg(&makefile).status().expect("it runs");
        std::fs::remove_file(&makefile).expect("it was there");
        assert_eq!(status.code(), Some(124), "what `timeout` says of a command that it ended");
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert!(too_late("--uml").contains("cargo xtask guest build --uml"));
    }

    #[test]
    fn nobody_waits_unless_they_say_so() {
        assert_eq!(limited_make(None).get_program(), "make");
    }
}
