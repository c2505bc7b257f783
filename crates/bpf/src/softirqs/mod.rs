//! Measures the time of softirqs that polled certain NAPIs while they interrupted tasks of other processes.

use std::os::fd::AsFd as _;

use libbpf_rs::OpenObject;
use model::{Nanoseconds, NapiId, Pid};
use sys::error::KernelError;

use super::family::ProcessFamily;
use super::in_initial_pid_namespace;
use super::loaded::Loaded;
use super::mirrored::{Mirrored as _, mirrored};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/softirqs.bpf.o"));

/// The key of a map that has only one entry.
const ONLY: [u8; 4] = [0; 4];

/// The value of map entries that only mark a key as present.
const MARKED: [u8; 4] = 1_u32.to_ne_bytes();

/// Counts softirqs from load until drop. While it counts, each softirq on the host takes about 100 ns longer.
/// Needs CAP_BPF and CAP_PERFMON.
#[derive(Debug)]
pub struct SoftirqTime {
    loaded: Loaded,
}

/// The softirqs that were counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftirqsSpent {
    /// The total time of the softirqs.
    pub time: Nanoseconds,
    /// The number of softirqs.
    pub count: u64,
}

impl SoftirqTime {
    /// Counts the softirqs that poll these NAPIs, except those whose time is part of the run time of these
    /// processes.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] without kernel BTF, and outside the initial pid namespace, where pids differ
    /// from the kernel's; otherwise the kernel's error with the verifier's message.
    pub fn of(
        napis: impl IntoIterator<Item = NapiId>,
        processes: impl IntoIterator<Item = Pid>,
    ) -> Result<Self, KernelError> {
        let mut counter = Self::load(napis, |_| Ok(()))?;
        for process in processes {
            counter.loaded.map("processes")?.set(&process.0.to_ne_bytes(), &MARKED)?;
        }
        counter.loaded.attach()?;
        Ok(counter)
    }

    /// Like [`SoftirqTime::of`], for the processes that are members of `family` when a softirq runs.
    ///
    /// # Errors
    /// As for [`SoftirqTime::of`].
    pub fn of_family(
        napis: impl IntoIterator<Item = NapiId>,
        family: &ProcessFamily,
    ) -> Result<Self, KernelError> {
        let members = family.table()?;
        let mut counter = Self::load(napis, |open| {
            for mut map in open.maps_mut().filter(|map| map.name() == "processes") {
                map.reuse_fd(members.map().as_fd())?;
            }
            Ok(())
        })?;
        counter.loaded.attach()?;
        Ok(counter)
    }

    fn load(
        napis: impl IntoIterator<Item = NapiId>,
        prepare: impl FnOnce(&mut OpenObject) -> libbpf_rs::Result<()>,
    ) -> Result<Self, KernelError> {
        if !in_initial_pid_namespace() {
            let needs = "the initial pid namespace";
            return Err(KernelError::absent("count the time of softirqs", needs, None));
        }
        let accounted = softirqs_are_accounted();
        let loaded = Loaded::load("softirqs", OBJECT, |open| {
            configure(open, accounted)?;
            prepare(open)
        })?;
        for napi in napis {
            loaded.map("napis")?.set(&napi.0.to_ne_bytes(), &MARKED)?;
        }
        Ok(Self { loaded })
    }

    /// Detaches the programs, which stops counting until [`SoftirqTime::resume`]. The counts are kept.
    pub fn pause(&mut self) {
        self.loaded.detach();
    }

    /// Resumes counting.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn resume(&mut self) -> Result<(), KernelError> {
        self.loaded.detach();
        // Reset the start of a softirq whose end was not observed; otherwise, the softirq would seem to last
        // until now.
        let spent = self.loaded.map("spent")?;
        let mut of_cpus = spent.get_per_cpu(&ONLY)?;
        for of_cpu in &mut of_cpus {
            of_cpu.iter_mut().take(size_of::<u64>()).for_each(|byte| *byte = 0);
        }
        spent.set_per_cpu(&ONLY, &of_cpus)?;
        self.loaded.attach()
    }

    /// Returns the counts so far.
    ///
    /// # Errors
    /// The kernel's error, which means that the map is gone.
    pub fn spent(&self) -> Result<SoftirqsSpent, KernelError> {
        let mut sum = SoftirqsSpent::default();
        for of_cpu in self.loaded.map("spent")?.get_per_cpu(&ONLY)? {
            let RawTime { ns, count, .. } = RawTime::of(&of_cpu);
            sum.time.0 += ns;
            sum.count += count;
        }
        Ok(sum)
    }
}

/// Writes `struct softirqs_config`.
fn configure(open: &mut OpenObject, accounted: bool) -> libbpf_rs::Result<()> {
    for mut map in open.maps_mut().filter(|map| map.name() == ".rodata.config") {
        map.set_initial_value(&RawConfig { accounted: accounted.into() }.to_bytes())?;
    }
    Ok(())
}

/// Whether the kernel excludes softirqs from the run time of tasks.
///
/// Kernel: 6.18, `kernel/sched/cputime.c` `irqtime_account_irq()`, which exists only with
/// CONFIG_IRQ_TIME_ACCOUNTING.
fn softirqs_are_accounted() -> bool {
    std::fs::read_to_string("/proc/kallsyms")
        .is_ok_and(|symbols| symbols.lines().any(|line| line.ends_with(" irqtime_account_irq")))
}

mirrored! {
    /// `struct softirqs_config`.
    struct RawConfig = "softirqs_config" {
        accounted: u64,
    }

    /// `struct softirq_time`.
    struct RawTime = "softirq_time" {
        since: u64,
        polled: u64,
        ns: u64,
        count: u64,
    }
}

#[cfg(test)]
mod layout {
    use super::*;
    use crate::mirrored::same_as_compiled;

    same_as_compiled!(OBJECT, RawConfig, RawTime);
}
