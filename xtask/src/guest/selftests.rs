//! The kernel's own tests of epoll and of busy polling, built from the patched tree.

use std::path::Path;
use std::process::Command;

use super::cache;
use crate::shell::{self, Result};

/// How they are run, and which: part of what a build is known by.
pub(super) const RECIPE: &str = concat!(include_str!("selftests.sh"), include_str!("selftests.rs"));

/// Programs of one source: where it is below `tools/testing/selftests`, and what it links with.
const PROGRAMS: &[(&str, &str)] = &[
    ("filesystems/epoll/epoll_events_only_test", "-lpthread"),
    ("filesystems/epoll/epoll_wakeup_test", "-lpthread"),
    ("net/epoll_busy_poll", "-lcap"),
];

/// Scripts, and what they read.
const SCRIPTS: &[(&str, &str)] = &[
    ("net/busy_poll_test.sh", "busy_poll_test.sh"),
    ("net/lib.sh", "lib.sh"),
    ("net/lib/sh/defer.sh", "lib/sh/defer.sh"),
];

/// The distribution's: another one that comes first in `PATH` does not have the distribution's modules.
const PYTHON: &str = "/usr/bin/python3";

/// What building them needs: what shows it, and the package.
const NEEDS: &[(&str, &str)] = &[
    ("/usr/include/sys/capability.h", "libcap-dev"),
    (PYTHON, "python3"),
    ("/usr/lib/python3/dist-packages/yaml", "python3-yaml"),
    ("/usr/lib/python3/dist-packages/jsonschema", "python3-jsonschema"),
];

/// Refuses to begin without what builds them.
pub(super) fn need() -> Result {
    match NEEDS.iter().find(|(shown_by, _)| !Path::new(shown_by).exists()) {
        Some((_, package)) => {
            Err(format!("the kernel's own tests need package {package}: `cargo xtask setup` installs it"))
        }
        None => Ok(()),
    }
}

/// Builds them from a tree into a directory, with `run`, which runs them all.
pub(super) fn build(tree: &Path, into: &Path) -> Result {
    let selftests = tree.join("tools/testing/selftests");
    cache::make_directory(&into.join("lib/sh"))?;
    for (test, library) in PROGRAMS {
        let mut compiler = compiler(&into.join(test.rsplit('/').next().unwrap_or(test)));
        compiler.arg("-I").arg(&selftests).arg(selftests.join(format!("{test}.c")));
        shell::run(compiler.arg(library))?;
    }
    for (from, to) in SCRIPTS {
        let from = selftests.join(from);
        std::fs::copy(&from, into.join(to)).map_err(|error| format!("{}: {error}", from.display()))?;
    }
    busy_poller(tree, into)?;
    cache::write(&into.join("run"), include_str!("selftests.sh"))
}

/// What `busy_poll_test.sh` starts. It speaks netlink by code that the kernel's generator makes of the description of one
/// family; of all of them, as the kernel's makefiles would, takes minutes.
fn busy_poller(tree: &Path, into: &Path) -> Result {
    let ynl = tree.join("tools/net/ynl");
    for (kind, file) in [("--header", "netdev-user.h"), ("--source", "netdev-user.c")] {
        // Nothing but sources belongs into the tree.
        let mut generator = Command::new(PYTHON);
        generator.env("PYTHONDONTWRITEBYTECODE", "1").arg(ynl.join("pyynl/ynl_gen_c.py"));
        generator.args(["--mode", "user", kind, "--spec"]);
        generator.arg(tree.join("Documentation/netlink/specs/netdev.yaml")).arg("-o").arg(into.join(file));
        shell::run(&mut generator)?;
    }
    let mut compiler = compiler(&into.join("busy_poller"));
    // The family's header is this kernel's, as tools/net/ynl/Makefile.deps has it; all others are the system's, if it has
    // them.
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
