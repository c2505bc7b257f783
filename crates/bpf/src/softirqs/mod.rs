//! Measures the time of softirqs that polled certain NAPIs while they interrupted tasks of other processes.

use std::os::fd::AsFd as _;

use libbpf_rs::OpenObject;
use model::{Nanoseconds, NapiId, Pid};
use sys::clock::monotonic;
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

/// Counts softirqs from [`SoftirqTime::resume`] to [`SoftirqTime::pause`]. While it counts, each softirq on the
/// host takes about 100 ns longer. Needs CAP_BPF and CAP_PERFMON.
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
    /// Loads a counter of the softirqs that poll these NAPIs, except those whose time is part of the run time
    /// of these processes. Nothing is counted before [`SoftirqTime::resume`].
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] without kernel BTF, and outside the initial pid namespace, where pids differ
    /// from the kernel's; otherwise the kernel's error with the verifier's message.
    pub fn of(
        napis: impl IntoIterator<Item = NapiId>,
        processes: impl IntoIterator<Item = Pid>,
    ) -> Result<Self, KernelError> {
        let counter = Self::load(|_| Ok(()))?;
        for process in processes {
            counter.loaded.map("processes")?.set(&process.0.to_ne_bytes(), &MARKED)?;
        }
        counter.add_napis(napis)?;
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
        let counter = Self::load(|open| {
            for mut map in open.maps_mut().filter(|map| map.name() == "processes") {
                map.reuse_fd(members.map().as_fd())?;
            }
            Ok(())
        })?;
        counter.add_napis(napis)?;
        Ok(counter)
    }

    fn load(prepare: impl FnOnce(&mut OpenObject) -> libbpf_rs::Result<()>) -> Result<Self, KernelError> {
        if !in_initial_pid_namespace() {
            let needs = "the initial pid namespace";
            return Err(KernelError::absent("count the time of softirqs", needs, None));
        }
        let accounted = softirqs_are_accounted();
        let loaded = Loaded::load("softirqs", OBJECT, |open| {
            configure(open, accounted)?;
            prepare(open)
        })?;
        Ok(Self { loaded })
    }

    /// Counts the softirqs of these NAPIs as well.
    ///
    /// # Errors
    /// The kernel's error, which means that there are too many NAPIs.
    pub fn add_napis(&self, napis: impl IntoIterator<Item = NapiId>) -> Result<(), KernelError> {
        let map = self.loaded.map("napis")?;
        napis.into_iter().try_for_each(|napi| map.set(&napi.0.to_ne_bytes(), &MARKED))
    }

    /// Stops counting until [`SoftirqTime::resume`]. The counts are kept. Detaches the programs unless they are
    /// to stay attached. They should stay during short pauses: the kernel waits for an RCU grace period before
    /// it attaches a program that was detached a moment ago.
    pub fn pause(&mut self, stays_attached: bool) {
        let closed = self.set_gate(0);
        if !stays_attached || closed.is_err() {
            self.loaded.detach();
        }
    }

    /// Counts the softirqs that begin from now on.
    ///
    /// # Errors
    /// The kernel's error. The programs are detached then.
    pub fn resume(&mut self) -> Result<(), KernelError> {
        let attached = match self.loaded.is_attached("softirq_ends") {
            true => Ok(()),
            false => self.loaded.attach(),
        };
        let resumed = attached.and_then(|()| self.set_gate(monotonic().0));
        if resumed.is_err() {
            self.loaded.detach();
        }
        resumed
    }

    fn set_gate(&self, opens: u64) -> Result<(), KernelError> {
        self.loaded.map(".data.gate")?.set(&ONLY, &RawGate { opens }.to_bytes())
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

    /// `struct softirqs_gate`.
    struct RawGate = "softirqs_gate" {
        opens: u64,
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

    same_as_compiled!(OBJECT, RawConfig, RawGate, RawTime);
}
