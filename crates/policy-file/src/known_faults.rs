//! Parses the shipped list of known faults: text → [`KnownFaults`].

use std::sync::{Arc, LazyLock};

use model::known_bad::KnownFaults;

/// The text of the shipped file.
const SHIPPED: &str = include_str!("../nics/known-bad.toml");

static FAULTS: LazyLock<Arc<KnownFaults>> = LazyLock::new(|| {
    #[expect(clippy::expect_used, reason = "a test reads the same text")]
    Arc::new(toml::from_str(SHIPPED).expect("the faults that ship are well-formed"))
});

/// The shipped list.
pub fn known_faults() -> Arc<KnownFaults> {
    Arc::clone(&FAULTS)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_fault_has_a_source_and_a_range_that_ends_after_it_begins() {
        let faults = known_faults();
        assert!(faults.len() >= 4, "{faults:?}");
        for (name, fault) in &*faults {
            assert!(!fault.what.is_empty() && !fault.remedy.is_empty(), "{name}");
            assert!(!fault.sources.is_empty(), "{name}");
            for source in &fault.sources {
                assert!(source.starts_with("https://") || source.starts_with("docs/"), "{name}: {source}");
            }
            assert!(!fault.kernels.is_empty() || !fault.drivers.is_empty(), "{name}: of every host");
            for range in &fault.kernels {
                assert!(range.from < range.before, "{name}: {range:?}");
            }
        }
    }
}
