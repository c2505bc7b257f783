//! Sets of CPUs in the kernel's formats.

use std::fmt;
use std::str::FromStr;

use crate::ids::Cpu;

/// A set of logical CPUs. Displayed and parsed in the kernel's cpulist format, `0-3,8`; the empty set is the
/// empty string.
///
/// Kernel: 6.18, `lib/bitmap-str.c` `bitmap_parselist()`; its `N-M:used/group` form, which the kernel never
/// prints, is not supported.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet {
    /// Bit `n % 64` of word `n / 64` is CPU `n`; the last word is never zero, so equal sets have equal words.
    words: Vec<u64>,
}

impl CpuSet {
    /// One more than the highest CPU number. Kernel: `CONFIG_NR_CPUS` is at most 8192 on x86.
    pub const CPUS_MAX: u32 = 8192;

    /// An empty set.
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Adds a CPU.
    ///
    /// # Panics
    /// If the number is [`Self::CPUS_MAX`] or more: no kernel has such a CPU.
    pub fn insert(&mut self, cpu: Cpu) {
        assert!(cpu.0 < Self::CPUS_MAX, "CPU {} is beyond {}", cpu.0, Self::CPUS_MAX);
        let (word, bit) = (cpu.0 as usize / 64, cpu.0 % 64);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << bit;
    }

    /// Whether the set contains this CPU.
    pub fn contains(&self, cpu: Cpu) -> bool {
        self.words.get(cpu.0 as usize / 64).is_some_and(|w| w >> (cpu.0 % 64) & 1 == 1)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Iterates over the CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Cpu> + '_ {
        self.words.iter().zip(0_u32..).flat_map(|(&word, index)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| Cpu(index * 64 + bit))
        })
    }

    /// Returns the CPUs that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self::from_words(self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect())
    }

    /// Returns the CPUs that are in this set but not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let theirs = other.words.iter().copied().chain(std::iter::repeat(0));
        Self::from_words(self.words.iter().zip(theirs).map(|(a, b)| a & !b).collect())
    }

    /// Whether the other set contains every CPU of this set.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// Creates a set from 64-bit words; CPU 0 is the lowest bit of the first word.
    pub fn from_words(mut words: Vec<u64>) -> Self {
        while words.last() == Some(&0) {
            words.pop();
        }
        Self { words }
    }

    /// Returns the set as 64-bit words without trailing zero words; CPU 0 is the lowest bit of the first
    /// word.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Parses the kernel's mask format, as in `rps_cpus`: 32-bit hexadecimal words, highest first, separated
    /// by commas.
    ///
    /// # Errors
    /// [`NotACpuList`] if a word is not hexadecimal or the mask is longer than [`Self::CPUS_MAX`].
    pub fn parse_mask(text: &str) -> Result<Self, NotACpuList> {
        let wrong = || NotACpuList(text.trim().to_owned());
        let mut set = Self::new();
        for (word, index) in text.trim().rsplit(',').zip(0_u32..) {
            let word = u32::from_str_radix(word, 16).map_err(|_| wrong())?;
            for bit in (0..32).filter(|bit| word >> bit & 1 == 1) {
                let cpu = index * 32 + bit;
                if cpu >= Self::CPUS_MAX {
                    return Err(wrong());
                }
                set.insert(Cpu(cpu));
            }
        }
        Ok(set)
    }

    /// Formats the set as the kernel's mask, without leading zeros: the kernel rejects a mask that is wider
    /// than its number of CPUs.
    pub fn to_mask(&self) -> String {
        let halves = self.words.iter().rev().flat_map(|word| [word >> 32, word & 0xffff_ffff]);
        let mut words = halves.skip_while(|&half| half == 0);
        let mut mask = format!("{:x}", words.next().unwrap_or(0));
        for word in words {
            mask.push_str(&format!(",{word:08x}"));
        }
        mask
    }
}

impl FromIterator<Cpu> for CpuSet {
    fn from_iter<I: IntoIterator<Item = Cpu>>(cpus: I) -> Self {
        let mut set = Self::new();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let mut cpus = self.iter().map(|c| c.0).peekable();
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(&first.to_string());
            if last > first {
                text.push('-');
                text.push_str(&last.to_string());
            }
        }
        f.pad(&text)
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

/// The error for text that is not a set of CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotACpuList(pub String);

impl fmt::Display for NotACpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a list of CPUs: write it in the kernel's format, as in 0-3,8", self.0)
    }
}

impl std::error::Error for NotACpuList {}

impl FromStr for CpuSet {
    type Err = NotACpuList;

    fn from_str(text: &str) -> Result<Self, NotACpuList> {
        let wrong = || NotACpuList(text.trim().to_owned());
        let number = |s: &str| match s.parse::<u32>() {
            Ok(n) if n < Self::CPUS_MAX && s.bytes().all(|b| b.is_ascii_digit()) => Ok(n),
            _ => Err(wrong()),
        };
        let mut set = Self::new();
        let text = text.trim();
        if text.is_empty() {
            return Ok(set);
        }
        if let Some(mask) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            return Self::parse_mask(&in_words(mask)).map_err(|_| wrong());
        }
        for range in text.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            for cpu in first..=last {
                set.insert(Cpu(cpu));
            }
        }
        Ok(set)
    }
}

/// Splits a mask without commas, as other tools write it, into the kernel's 32-bit words.
fn in_words(mask: &str) -> String {
    const DIGITS: usize = 8;
    if mask.contains(',') || mask.len() <= DIGITS || !mask.is_ascii() {
        return mask.to_owned();
    }
    let (first, rest) = mask.split_at(mask.len() % DIGITS);
    let words = rest.as_bytes().chunks(DIGITS).filter_map(|word| str::from_utf8(word).ok());
    let all: Vec<&str> = [first].into_iter().filter(|word| !word.is_empty()).chain(words).collect();
    all.join(",")
}

crate::as_text! { CpuSet: "CPUs in the kernel's format: 0-3,8; or as a mask: 0x10f" }

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_survives_being_written_and_read(cpus in proptest::collection::vec(0_u32..300, 0..40)) {
            let set: CpuSet = cpus.iter().copied().map(Cpu).collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>(), Ok(set.clone()));
            prop_assert_eq!(CpuSet::parse_mask(&set.to_mask()), Ok(set.clone()));
            prop_assert_eq!(set.len(), set.iter().count());
        }

        #[test]
        fn what_is_taken_and_what_is_left_make_the_whole(a in proptest::collection::vec(0_u32..200, 0..40), b in proptest::collection::vec(0_u32..200, 0..40)) {
            let (a, b): (CpuSet, CpuSet) = (a.into_iter().map(Cpu).collect(), b.into_iter().map(Cpu).collect());
            let rebuilt: CpuSet = a.intersection(&b).iter().chain(a.difference(&b).iter()).collect();
            prop_assert_eq!(rebuilt, a);
        }
    }

    #[test]
    fn the_kernels_forms_are_read() {
        let set = |s: &str| s.parse::<CpuSet>().expect(s);
        assert_eq!(set("0-3,8\n").to_string(), "0-3,8");
        assert_eq!(CpuSet::parse_mask("00000001,00000003\n").expect("mask").to_string(), "0-1,32");
        assert_eq!(CpuSet::parse_mask("0").expect("mask"), CpuSet::new());
        for (mask, list) in [
            ("0x3", "0-1"),
            ("0X10f", "0-3,8"),
            ("0x1,00000003", "0-1,32"),
            ("0x100000003", "0-1,32"),
            ("0x0", ""),
            ("0x800000000000000000", "71"),
        ] {
            let set: CpuSet = list.parse().expect("a list");
            assert_eq!(mask.parse(), Ok(set), "{mask}");
        }
        for wrong in ["0x", "0xg", "0x3-4", "0x-1", "x3", "3x"] {
            assert!(wrong.parse::<CpuSet>().is_err(), "{wrong}");
        }
        assert_eq!((set("0-1,32").to_mask(), set("").to_mask()), ("1,00000003".to_owned(), "0".to_owned()));
    }

    #[test]
    fn what_is_no_cpulist_is_refused() {
        for text in ["a", "3-1", "1,,2", "0-", "-1", "9999", "+1", "0-4294967295"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text}");
        }
    }
}
