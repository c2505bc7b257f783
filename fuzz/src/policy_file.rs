//! Fuzzes a policy file: any text gives a policy, or mistakes with positions inside the text.

use crate::text_of;

pub(crate) fn run(bytes: &[u8]) {
    let text = text_of(bytes);
    if let Err(mistakes) = policy_file::parse("fuzz.toml", text) {
        assert!(!mistakes.to_string().is_empty());
    }
}
