//! The fuzzer's program: libFuzzer searches for inputs of one target.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<fuzz::Target> = LazyLock::new(|| {
    let name = std::env::var(fuzz::TARGET_VARIABLE).unwrap_or_default();
    fuzz::target(&name).unwrap_or_else(|| panic!("{} names no target: `{name}`", fuzz::TARGET_VARIABLE))
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
