//! Finds the kernel sources that `cargo xtask guest build` has unpacked.

use std::path::PathBuf;

/// The built-in facts about NIC drivers.
pub const DRIVER_FACTS: &str = include_str!("../../../crates/policy-file/nics/drivers.toml");

/// The directory of the unpacked kernel sources.
fn sources() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("netpolicy/guest/source"))
}

/// Returns the kernel's tests of tc, from the newest source that has them.
pub fn tc_tests() -> Option<PathBuf> {
    const TESTS: &str = "tools/testing/selftests/tc-testing/tc-tests";
    let sources = std::fs::read_dir(sources()?).ok()?;
    sources.filter_map(|entry| Some(entry.ok()?.path().join(TESTS))).filter(|tests| tests.is_dir()).max()
}

/// Returns the source of the kernel release to which the facts about NIC drivers refer.
pub fn of_driver_facts() -> Option<PathBuf> {
    let kernel = DRIVER_FACTS.lines().find_map(|line| line.strip_prefix("kernel = \"")?.strip_suffix('"'))?;
    let sources = std::fs::read_dir(sources()?).ok()?;
    let of_release = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix("linux-")
            .and_then(|rest| rest.strip_prefix(kernel))
            .is_some_and(|rest| rest.starts_with('-'))
    };
    sources.filter_map(|entry| Some(entry.ok()?.path())).find(of_release)
}
