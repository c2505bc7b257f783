//! A 16-byte digest of a rule, to compare the rules of a file with those in the kernel.

use netlink::attr::AttrBuf;

use crate::command::{Filter, Group};

/// The digest of a rule's content, without values that the kernel may have chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fingerprint(u128);

impl Fingerprint {
    pub(crate) const fn bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// The fingerprint with these bytes.
    pub(crate) const fn of_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(bytes))
    }

    /// Combines the fingerprint of a rule's content with this handle.
    pub(crate) fn with_handle(self, handle: u32) -> Self {
        Self(self.0 ^ u128::from(handle).wrapping_add(1).wrapping_mul(HANDLES_APART))
    }
}

/// Computes fingerprints, reusing its memory.
#[derive(Debug, Default)]
pub struct Fingerprinter {
    rule: Filter,
    out: AttrBuf,
}

impl Fingerprinter {
    /// Returns the fingerprints of a rule in this group, with and without its handle. If the rule is
    /// `of_table`, the protocol is omitted, because u32 hash tables and their rules belong to priorities of
    /// several protocols.
    pub fn of(&mut self, rule: &Filter, group: Group, of_table: bool) -> (Fingerprint, Fingerprint) {
        self.rule.assign(rule);
        (self.rule.hook, self.rule.chain, self.rule.priority) =
            (group.hook, Some(group.chain), group.priority);
        if of_table {
            self.rule.protocol = 0;
        }
        self.rule.canonicalize();
        let handle = std::mem::take(&mut self.rule.handle);
        // A dump does not show whether `no_percpu` is in force, only whether it was requested.
        self.out.clear();
        self.rule.encode(0, 0, &mut self.out);
        let content = digest(self.out.as_bytes());
        (content.with_handle(handle), content)
    }
}

/// The factor that spreads the bits of a handle. The factor is odd, so that different handles stay different.
const HANDLES_APART: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// Combines two 64-bit hashes like FNV-1a with different initial values. They do not protect against an
/// attacker who chooses the rules, but different rules of a file do not collide by chance.
fn digest(bytes: &[u8]) -> Fingerprint {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let (mut first, mut second) = (0xcbf2_9ce4_8422_2325_u64, 0x9e37_79b9_7f4a_7c15_u64);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in
        words.iter().map(|word| u64::from_le_bytes(*word)).chain(rest.iter().map(|byte| u64::from(*byte)))
    {
        first = (first ^ word).wrapping_mul(PRIME).rotate_left(29);
        second = (second ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31);
    }
    Fingerprint(u128::from(first) << 64 | u128::from(second))
}
