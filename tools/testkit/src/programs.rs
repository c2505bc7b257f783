//! Finds the programs that a test starts: netpolicy, and those that netpolicy execs from its own directory.
//! Cargo builds them like all other programs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The programs of the tools, which netpolicy execs.
const TOOLS: [&str; 2] = ["netpolicy-tc", "netpolicy-lab"];

/// Returns the path of the built `netpolicy`. Cargo builds tests into `deps/` below the directory of
/// `netpolicy`.
///
/// # Panics
/// If netpolicy, or a program that it starts, was not built.
pub fn netpolicy() -> &'static str {
    static FOUND: LazyLock<String> = LazyLock::new(|| {
        let test = std::env::current_exe().expect("the path of this program");
        let built = test.ancestors().nth(2).expect("a directory for programs");
        for name in ["netpolicy"].iter().chain(&TOOLS) {
            let path = built.join(name);
            assert!(path.is_file(), "{} is not built: `cargo build` builds all programs", path.display());
        }
        built.join("netpolicy").display().to_string()
    });
    &FOUND
}

/// Copies netpolicy and the programs that it starts into a directory that every user may enter, and returns
/// netpolicy's path.
pub fn copy_all(directory: &Path) -> io::Result<PathBuf> {
    let copy = |name: &str| {
        let to = directory.join(name);
        std::fs::copy(Path::new(netpolicy()).with_file_name(name), &to).map(|_| to)
    };
    TOOLS.iter().try_for_each(|tool| copy(tool).map(drop))?;
    copy("netpolicy")
}
