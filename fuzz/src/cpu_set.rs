//! Fuzzes the kernel's two formats of a CPU set: a set that is parsed is written back unchanged.

use model::CpuSet;

use crate::text_of;

pub(crate) fn run(bytes: &[u8]) {
    let text = text_of(bytes);
    for set in [text.parse::<CpuSet>(), CpuSet::parse_mask(text)].into_iter().flatten() {
        assert_eq!(set.to_string().parse::<CpuSet>().as_ref(), Ok(&set));
    }
}
