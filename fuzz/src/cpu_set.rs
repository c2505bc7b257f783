//! The kernel's two ways to write a set of CPUs: whatever is read is written back to the same set.

use model::CpuSet;

use crate::text_of;

pub(crate) fn run(bytes: &[u8]) {
    let text = text_of(bytes);
    for set in [text.parse::<CpuSet>(), CpuSet::parse_mask(text)].into_iter().flatten() {
        assert_eq!(set.to_string().parse::<CpuSet>().as_ref(), Ok(&set));
    }
}
