//! How long softirqs took that polled some NAPIs, on the time of other tasks than some processes.

use std::os::fd::AsFd as _;

use libbpf_rs::OpenObject;
use model::{Nanoseconds, NapiId, Pid};
use sys::error::KernelError;

use super::family::Family;
use super::in_initial_pid_namespace;
use super::loaded::Loaded;
use super::mirrored::{Mirrored as _, mirrored};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/softirqs.bpf.o"));

/// The only key of a map with one entry.
const ONLY: [u8; 4] = [0; 4];

/// The value of an entry that is there to be found.
const MARKED: [u8; 4] = 1_u32.to_ne_bytes();

/// Counts from its loading until it is dropped. Needs CAP_BPF and CAP_PERFMON. Each softirq of the machine takes some 100 ns
/// longer meanwhile.
#[derive(Debug)]
pub struct SoftirqTime {
    loaded: Loaded,
}

/// What was counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// How long the softirqs took together.
    pub time: Nanoseconds,
    /// How many they were.
    pub count: u64,
}

impl SoftirqTime {
    /// Counts the softirqs that poll these NAPIs, but for those whose time is in the run time of these processes.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] without kernel BTF and outside of the initial pid namespace, where processes have other
    /// numbers than in the kernel; else the kernel's refusal with the verifier's words.
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

    /// The same for the processes of a family, whoever they are at each moment.
    ///
    /// # Errors
    /// As [`SoftirqTime::of`].
    pub fn of_family(napis: impl IntoIterator<Item = NapiId>, family: &Family) -> Result<Self, KernelError> {
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

    /// Stops counting until [`SoftirqTime::resume`]; what was counted stays, and nothing is attached.
    pub fn pause(&mut self) {
        self.loaded.detach();
    }

    /// Goes on counting.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn resume(&mut self) -> Result<(), KernelError> {
        self.loaded.detach();
        // A softirq whose end was not seen has not lasted until now.
        let spent = self.loaded.map("spent")?;
        let mut of_cpus = spent.get_per_cpu(&ONLY)?;
        for of_cpu in &mut of_cpus {
            of_cpu.iter_mut().take(size_of::<u64>()).for_each(|byte| *byte = 0);
        }
        spent.set_per_cpu(&ONLY, &of_cpus)?;
        self.loaded.attach()
    }

    /// What was counted so far.
    ///
    /// # Errors
    /// The kernel's, which means that the table is gone.
    pub fn spent(&self) -> Result<Spent, KernelError> {
        let mut sum = Spent::default();
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

/// Whether the kernel leaves softirqs out of the run time of tasks.
///
/// Kernel: 6.18, `kernel/sched/cputime.c` `irqtime_account_irq()`, which is there with CONFIG_IRQ_TIME_ACCOUNTING alone.
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
