//! Tests that were asked for by name: those that the host had to skip, when the program runs in a guest.

use libtest_mimic::Trial;

/// Names of tests with line feeds between them. `cargo xtask guest test` sets it.
const ONLY: &str = "NETPOLICY_TEST_ONLY";

/// The tests that were asked for, or all.
pub(crate) fn only(trials: Vec<Trial>) -> Vec<Trial> {
    match std::env::var(ONLY) {
        Ok(names) => trials.into_iter().filter(|t| names.lines().any(|name| name == t.name())).collect(),
        Err(_) => trials,
    }
}
