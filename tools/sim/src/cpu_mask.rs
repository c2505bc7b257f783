//! A set of CPUs in one word. Kernel: `struct cpumask`.

use std::ops::{BitAnd, Not};

use crate::ids::CpuId;
use crate::scenario::CPUS_MAX;

/// A set of CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuMask(u128);

const _: () = assert!(CPUS_MAX <= u128::BITS);

impl CpuMask {
    /// Creates the set that holds one CPU.
    #[inline]
    pub(crate) const fn of(cpu: CpuId) -> Self {
        Self(1 << cpu.index())
    }

    /// Whether the set has no CPU.
    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the set has this CPU.
    #[inline]
    pub(crate) const fn has(self, cpu: CpuId) -> bool {
        self.0 >> cpu.index() & 1 == 1
    }

    /// Adds or removes a CPU.
    #[inline]
    pub(crate) fn put(&mut self, cpu: CpuId, present: bool) {
        self.0 = self.0 & !(1 << cpu.index()) | u128::from(present) << cpu.index();
    }

    /// The CPU with the lowest number.
    #[inline]
    pub(crate) fn first(self) -> Option<CpuId> {
        self.into_iter().next()
    }

    /// The CPUs with higher numbers than this one.
    #[inline]
    pub(crate) const fn after(self, cpu: CpuId) -> Self {
        let bit = 1 << cpu.index();
        Self(self.0 & !(bit | (bit - 1)))
    }
}

impl BitAnd for CpuMask {
    type Output = Self;

    #[inline]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for CpuMask {
    type Output = Self;

    #[inline]
    fn not(self) -> Self {
        Self(!self.0)
    }
}

impl FromIterator<CpuId> for CpuMask {
    fn from_iter<A: IntoIterator<Item = CpuId>>(cpus: A) -> Self {
        Self(cpus.into_iter().fold(0, |mask, cpu| mask | 1 << cpu.index()))
    }
}

impl IntoIterator for CpuMask {
    type Item = CpuId;
    type IntoIter = Cpus;

    #[inline]
    fn into_iter(self) -> Cpus {
        Cpus(self.0)
    }
}

/// The CPUs of a set, in ascending order.
#[derive(Clone, Debug)]
pub(crate) struct Cpus(u128);

impl Iterator for Cpus {
    type Item = CpuId;

    #[inline]
    fn next(&mut self) -> Option<CpuId> {
        let first = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (first < u128::BITS).then_some(CpuId::new(first as usize))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn mask(cpus: &[usize]) -> CpuMask {
        cpus.iter().map(|&cpu| CpuId::new(cpu)).collect()
    }

    #[test]
    fn a_mask_gives_its_cpus_in_order_up_to_the_last() {
        let cpus: Vec<usize> = mask(&[127, 3, 64]).into_iter().map(CpuId::index).collect();
        assert_eq!(cpus, [3, 64, 127]);
        assert_eq!(mask(&[]).first(), None);
    }

    #[test]
    fn the_cpus_after_one_are_those_with_higher_numbers() {
        let all = mask(&[0, 5, 6, 127]);
        assert_eq!(all.after(CpuId::new(5)), mask(&[6, 127]));
        assert_eq!(all.after(CpuId::new(127)), mask(&[]));
    }

    #[test]
    fn a_cpu_is_added_and_removed() {
        let mut cpus = mask(&[1]);
        cpus.put(CpuId::new(127), true);
        cpus.put(CpuId::new(1), false);
        assert!(cpus.has(CpuId::new(127)) && !cpus.has(CpuId::new(1)) && !cpus.is_empty());
    }
}
