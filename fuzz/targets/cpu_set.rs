//! The kernel's two ways to write a set of CPUs: whatever is read is written back to the same set.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::CpuSet;

fuzz_target!(|text: &str| {
    for set in [text.parse::<CpuSet>(), CpuSet::parse_mask(text)].into_iter().flatten() {
        assert_eq!(set.to_string().parse::<CpuSet>().as_ref(), Ok(&set));
    }
});
