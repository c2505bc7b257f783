//! The programs that have some of netpolicy's commands: netpolicy starts those next to it, and cargo builds them as any other.

use std::io;
use std::path::{Path, PathBuf};

use cli::programs::TOOLS;

const NETPOLICY: &str = env!("CARGO_BIN_EXE_netpolicy");

/// # Panics
/// If one of them was not built.
pub(crate) fn are_built() {
    for tool in &TOOLS {
        let path = Path::new(NETPOLICY).with_file_name(tool.program);
        assert!(
            path.is_file(),
            "{} is not built: `cargo build` builds all programs, `cargo test -p netpolicy` only its own",
            path.display()
        );
    }
}

/// Copies netpolicy and these programs into a directory that every user may enter, and returns netpolicy's path.
pub(crate) fn copy_all(directory: &Path) -> io::Result<PathBuf> {
    let copy = |name: &str| {
        let to = directory.join(name);
        std::fs::copy(Path::new(NETPOLICY).with_file_name(name), &to).map(|_| to)
    };
    TOOLS.iter().try_for_each(|tool| copy(tool.program).map(drop))?;
    copy("netpolicy")
}
