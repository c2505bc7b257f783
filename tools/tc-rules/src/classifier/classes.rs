//! The classes that a rule assigns packets to.

use netlink::attr::AttrBuf;

/// Encodes the classes of a rule that precede its actions or, with `behind`, those that follow them.
pub(super) fn encode_classes(number: u16, classes: &[(u32, bool)], behind: bool, out: &mut AttrBuf) {
    for (class, _) in classes.iter().filter(|class| class.1 == behind) {
        out.u32(number, *class);
    }
}

/// Returns the effective class, as the kernel dumps it.
pub(super) fn canonical_class(classes: &[(u32, bool)]) -> Vec<(u32, bool)> {
    classes.last().map(|(class, _)| (*class, false)).into_iter().collect()
}
