//! How long kernels may be built while tests wait for them.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::shell::{self, Result};

/// How long kernels may be built before tests. It takes about six minutes of two quiet CPUs; a machine that needs more than
/// this does other work, and a guest that is not ready then fails the run.
const FOR_TESTS: Duration = Duration::from_secs(45 * 60);

/// When building ends; `None` for no limit.
static END: OnceLock<Instant> = OnceLock::new();

/// From now on [`FOR_TESTS`] is left.
pub(super) fn begin() {
    END.get_or_init(|| Instant::now() + FOR_TESTS);
}

/// What is left until then; `None` for no limit.
fn left() -> Option<Duration> {
    END.get().map(|end| end.saturating_duration_since(Instant::now()))
}

/// What a `make` above us passes to those below it: they would take its options, and wait for its jobs.
const OF_ANOTHER_MAKE: [&str; 3] = ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"];

/// `make` for a directory of objects. It is ended when the time is up, and when we are, however we end; and it begins when
/// no other one works on these objects any more, also not one whose owner was killed a moment ago.
pub(super) fn make(objects: &Path) -> Command {
    limited_make(objects, left())
}

fn limited_make(objects: &Path, left: Option<Duration>) -> Command {
    let mut lock = objects.as_os_str().to_owned();
    lock.push(".lock");
    let mut command = shell::tied("flock");
    // The lock's descriptor goes to `make` and to all that it starts.
    command.arg("--no-fork").arg(lock);
    if let Some(left) = left {
        // It gets what the tests, and what they compile, leave of the CPUs. At least a second: 0 is not a limit.
        command.args(shell::IN_IDLE_TIME);
        command.args(["timeout", "--foreground", "--kill-after=10", &left.as_secs().max(1).to_string()]);
    }
    command.arg("make");
    for name in OF_ANOTHER_MAKE {
        command.env_remove(name);
    }
    command
}

/// Runs what [`make`] began; `option` is what builds this kernel by hand.
pub(super) fn run(command: &mut Command, option: &str) -> Result {
    shell::run(command).map_err(|failed| {
        if left() == Some(Duration::ZERO) { too_late(option) } else { failed.replacen("flock", "make", 1) }
    })
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
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_build_dies_with_the_process_that_began_it_and_frees_the_objects() {
        let place = Place::with("orphan", "all:\n\t@echo begun; exec sleep 60\n");
        // A shell begins it, as an xtask would, and is killed while it waits.
        let words: Vec<_> = std::iter::once(place.make(None).get_program().to_owned())
            .chain(place.make(None).get_args().map(ToOwned::to_owned))
            .collect();
        let mut owner = Command::new("sh");
        for name in OF_ANOTHER_MAKE {
            owner.env_remove(name);
        }
        let mut owner = owner
            .args(["-c", "\"$@\"; :", "sh"])
            .args(words)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut said = String::new();
        let output = owner.stdout.take().expect("asked for");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut said).expect("it says so");
        assert_eq!(said, "begun\n");
        let locked = || {
            let tried = Command::new("flock").arg("--nonblock").arg(place.lock()).arg("true").status();
            !tried.expect("flock runs").success()
        };
        assert!(locked(), "no other process builds meanwhile");
        owner.kill().expect("it runs");
        owner.wait().expect("it ends");
        let killed = Instant::now();
        while locked() {
            assert!(killed.elapsed() < Duration::from_secs(20), "it goes on without its owner");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A makefile in a place of its own.
    struct Place(PathBuf);

    impl Place {
        fn with(name: &str, makefile: &str) -> Self {
            let place = std::env::temp_dir().join(format!("netpolicy-budget-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&place).expect("a directory");
            std::fs::write(place.join("makefile"), makefile).expect("a makefile");
            Self(place)
        }

        fn make(&self, left: Option<Duration>) -> Command {
            let mut command = limited_make(&self.0.join("objects"), left);
            command.arg("-f").arg(self.0.join("makefile"));
            command
        }

        fn lock(&self) -> PathBuf {
            self.0.join("objects.lock")
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).expect("it was there");
        }
    }
}
