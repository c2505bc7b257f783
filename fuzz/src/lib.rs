//! The fuzz targets: every parser of foreign bytes, and the properties that must hold for any input. A test
//! replays known inputs (`tests/replay.rs`), and libFuzzer searches for new ones (`cargo xtask fuzz`).

mod api;
mod batch;
mod control;
mod cpu_set;
mod journal;
mod memcached_replies;
mod netlink;
mod other_tools;
mod policy_file;
mod recording;
mod rule_dump;
mod words;

/// Runs a parser on bytes; panics if a property does not hold.
pub type Target = fn(&[u8]);

/// All targets, named like the directories of their inputs in `corpus/` and `regressions/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("api", api::run),
    ("batch", batch::run),
    ("control", control::run),
    ("cpu_set", cpu_set::run),
    ("journal", journal::run),
    ("memcached_replies", memcached_replies::run),
    ("netlink", netlink::run),
    ("other_tools", other_tools::run),
    ("policy_file", policy_file::run),
    ("recording", recording::run),
    ("rule_dump", rule_dump::run),
    ("words", words::run),
];

/// The environment variable that selects the fuzzer's target.
pub const TARGET_VARIABLE: &str = "NETPOLICY_FUZZ_TARGET";

/// Returns the target with this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}

/// Returns the longest prefix of the bytes that is valid text.
fn text_of(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    }
}
