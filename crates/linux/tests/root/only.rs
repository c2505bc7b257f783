//! Tests that were asked for by name: those of a lane, and in a guest those that the host had to skip.

use std::sync::OnceLock;

use libtest_mimic::Trial;

/// Names of tests with line feeds between them. `cargo xtask test` sets it, and `cargo xtask guest test`.
const ONLY: &str = "NETPOLICY_TEST_ONLY";

/// The tests that were asked for, or all.
pub(crate) fn only(trials: Vec<Trial>) -> Vec<Trial> {
    trials.into_iter().filter(|trial| is_wanted(trial.name())).collect()
}

/// Whether a test was asked for. What the others need is not looked for: that takes a second.
pub(crate) fn is_wanted(name: &str) -> bool {
    static NAMES: OnceLock<Option<String>> = OnceLock::new();
    let names = NAMES.get_or_init(|| std::env::var(ONLY).ok());
    names.as_ref().is_none_or(|names| names.lines().any(|wanted| wanted == name))
}
