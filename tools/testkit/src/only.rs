//! Selects tests by name: cargo-nextest runs one test per process, and a guest runs the tests that the host
//! skipped.

use std::sync::OnceLock;

use libtest_mimic::Trial;

/// Names of tests, separated by line breaks. `cargo xtask guest test` sets it.
const ONLY: &str = "NETPOLICY_TEST_ONLY";

/// Returns the selected tests, or all tests if there is no selection.
pub(crate) fn only(trials: Vec<Trial>) -> Vec<Trial> {
    trials.into_iter().filter(|trial| is_wanted(trial.name())).collect()
}

/// Whether a test was selected. Use this before checking the needs of a test, because that takes longer than
/// most tests.
pub(crate) fn is_wanted(name: &str) -> bool {
    static NAMES: OnceLock<Option<Vec<String>>> = OnceLock::new();
    let names = NAMES.get_or_init(|| match std::env::var(ONLY) {
        Ok(names) => Some(names.lines().map(str::to_owned).collect()),
        Err(_) => exact(std::env::args().skip(1)),
    });
    names.as_ref().is_none_or(|names| names.iter().any(|wanted| wanted == name))
}

/// Returns the names that the command line selects exactly: `--exact NAME…`, without the kind that
/// libtest-mimic prints before a name.
fn exact(arguments: impl Iterator<Item = String>) -> Option<Vec<String>> {
    let arguments: Vec<String> = arguments.collect();
    arguments.iter().any(|argument| argument == "--exact").then(|| {
        let names = arguments.into_iter().filter(|argument| !argument.starts_with('-'));
        names.map(|name| name.rsplit_once("] ").map_or(name.clone(), |(_, name)| name.to_owned())).collect()
    })
}
