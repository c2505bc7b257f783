//! What a rule is, in 16 bytes: to compare what a file wants with what the kernel has.

use std::collections::BTreeMap;

use crate::attr::AttrBuf;
use crate::command::{Filter, Group};

/// A rule's own content, without where the kernel may have chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fingerprint(u128);

/// Makes fingerprints, with memory that is used again.
#[derive(Debug, Default)]
pub struct Fingerprinter {
    out: AttrBuf,
}

impl Fingerprinter {
    /// The fingerprint of a rule, and that of the same rule with another handle.
    pub fn of(&mut self, rule: &Filter) -> (Fingerprint, Fingerprint) {
        let mut rule = rule.canonical();
        // Whether a dumped `no_percpu` is in force cannot be seen; what was asked can.
        self.out.clear();
        crate::command::Command::Filter(rule.clone()).encode(0, 0, &mut self.out);
        let whole = digest(self.out.as_bytes());
        rule.handle = 0;
        self.out.clear();
        crate::command::Command::Filter(rule).encode(0, 0, &mut self.out);
        (whole, digest(self.out.as_bytes()))
    }
}

/// Two rounds of FNV-1a over 64 bits, the second one with another beginning: no defence against those who choose the
/// rules, but two rules of one file that differ do not meet by chance.
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

/// What a file wants, to be struck off by what the kernel has.
#[derive(Debug, Default)]
pub struct Wanted {
    exact: BTreeMap<(Group, u32, Fingerprint), Vec<u32>>,
    by_handle: BTreeMap<(Group, u32), u32>,
    anonymous: BTreeMap<(Group, Fingerprint), Vec<u32>>,
    groups: BTreeMap<Group, ()>,
    maker: Fingerprinter,
}

/// What became of a dumped rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The file has it; its line.
    Wanted(u32),
    /// The file has another rule with this handle; its line.
    Different(u32),
    /// The file has no such rule, though it has others of the same priority.
    Extra,
    /// The file is not about this priority at all.
    Unasked,
}

impl Wanted {
    /// Adds a rule of the file.
    pub fn add(&mut self, rule: &Filter, line: u32) {
        let group = rule.group();
        let (whole, content) = self.maker.of(rule);
        let handle = rule.classifier.canonical_handle(rule.handle);
        self.groups.insert(group, ());
        if handle == 0 {
            self.anonymous.entry((group, content)).or_default().push(line);
        } else {
            self.exact.entry((group, handle, whole)).or_default().push(line);
            self.by_handle.insert((group, handle), line);
        }
    }

    /// Strikes off a dumped rule.
    pub fn strike(&mut self, rule: &Filter) -> Found {
        let group = rule.group();
        if !self.groups.contains_key(&group) {
            return Found::Unasked;
        }
        let (whole, content) = self.maker.of(rule);
        let handle = rule.classifier.canonical_handle(rule.handle);
        if let Some(line) = self.exact.get_mut(&(group, handle, whole)).and_then(Vec::pop) {
            self.by_handle.remove(&(group, handle));
            return Found::Wanted(line);
        }
        if let Some(line) = self.anonymous.get_mut(&(group, content)).and_then(Vec::pop) {
            return Found::Wanted(line);
        }
        match self.by_handle.get(&(group, handle)) {
            Some(line) => Found::Different(*line),
            None => Found::Extra,
        }
    }

    /// The lines of the rules that were not struck off, in order.
    pub fn missing(&self) -> Vec<u32> {
        let mut lines: Vec<u32> =
            self.exact.values().chain(self.anonymous.values()).flatten().copied().collect();
        lines.sort_unstable();
        lines
    }

    /// The priorities that the file is about.
    pub fn groups(&self) -> impl Iterator<Item = Group> {
        self.groups.keys().copied()
    }
}
