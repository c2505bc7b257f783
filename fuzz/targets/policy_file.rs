//! A policy file: any text gives a policy or mistakes that stand within the text.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(mistakes) = policy_file::parse("fuzz.toml", text) {
        assert!(!mistakes.to_string().is_empty());
    }
});
