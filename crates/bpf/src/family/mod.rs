//! Measures the run time of some processes and of all processes that they fork, including processes that have
//! exited.

use std::os::fd::AsFd as _;

use model::{Nanoseconds, Pid};
use sys::clock::run_time_of;
use sys::error::KernelError;

use super::in_initial_pid_namespace;
use super::iterated;
use super::loaded::{Loaded, Table};
use super::mirrored::{Mirrored as _, mirrored};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/family.bpf.o"));

/// The key of a map that has only one entry.
const ONLY: [u8; 4] = [0; 4];

/// Values of the map of members: `FAMILY_FOLLOWED` and `FAMILY_ALONE` in `family.h`.
const FOLLOWED: u32 = 1;
const ALONE: u32 = 2;

/// The iterator that sums the context switches and run delays of live members.
const ITERATOR: &str = "family_lives";

/// The CPU usage of a family of processes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FamilyUsage {
    /// The run time of live and exited members. For a running thread, the value lags by at most a tick. After
    /// an exited member's parent has waited for it, the last part of its run time may be missing for up to an
    /// RCU grace period.
    pub time: Nanoseconds,
    /// The number of context switches of the members' threads.
    pub switches: u64,
    /// The total time that threads of live members were runnable but waited for a CPU; zero if the kernel
    /// does not record it (`CONFIG_SCHED_INFO`).
    pub run_delay: Nanoseconds,
    /// Live members.
    pub alive: usize,
    /// The number of members that have exited since load.
    pub exits: u64,
    /// The number of members that were forked since load.
    pub forks: u64,
}

/// Follows processes, and their forks and exits, until this value is dropped.
///
/// Three programs run at each fork, exit and release of a thread on the host, and take about 50 ns each.
/// Needs CAP_BPF and CAP_PERFMON.
#[derive(Debug)]
pub struct ProcessFamily {
    loaded: Loaded,
}

impl ProcessFamily {
    /// Loads and attaches the programs. The family has no members yet.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] without kernel BTF, and outside the initial pid namespace, where pids differ
    /// from the kernel's; otherwise the kernel's error with the verifier's message.
    pub fn new() -> Result<Self, KernelError> {
        if !in_initial_pid_namespace() {
            let needs = "the initial pid namespace";
            return Err(KernelError::absent("follow the forks of a service", needs, None));
        }
        let mut loaded = Loaded::load("family", OBJECT, |_| Ok(()))?;
        loaded.attach_if(|name| name != ITERATOR)?;
        Ok(Self { loaded })
    }

    /// Adds a process and its future children to the family. The process's earlier run time is included, so
    /// only differences of two readings are meaningful.
    ///
    /// Of process 1, the ancestor of all processes, only its own time counts; its children are not added.
    ///
    /// # Errors
    /// The kernel's error, for example if there are too many members.
    pub fn add(&self, process: Pid) -> Result<(), KernelError> {
        let how = if process.0 == 1 { ALONE } else { FOLLOWED };
        self.loaded.map("processes")?.set(&process.0.to_ne_bytes(), &how.to_ne_bytes())
    }

    /// Returns the live members.
    ///
    /// # Errors
    /// The kernel's error, which means that the map is gone.
    pub fn members(&self) -> Result<Vec<Pid>, KernelError> {
        let processes = self.loaded.map("processes")?;
        Ok(processes.keys().filter_map(|key| key.try_into().ok()).map(u32::from_ne_bytes).map(Pid).collect())
    }

    /// Returns the map of members, so that other programs can use it.
    pub(super) fn table(&self) -> Result<Table<'_>, KernelError> {
        self.loaded.map("processes")
    }

    /// Returns the usage of all members so far, including exited ones.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn usage(&self) -> Result<FamilyUsage, KernelError> {
        /// A member that exits during a read could be counted twice or not at all, so repeat the read if a
        /// member has exited.
        const TRIES: usize = 8;
        let mut usage = self.read()?;
        for _ in 1..TRIES {
            if self.ended()?.exits == usage.exits {
                break;
            }
            usage = self.read()?;
        }
        Ok(usage)
    }

    fn ended(&self) -> Result<RawTotal, KernelError> {
        Ok(RawTotal::of(&self.loaded.map("ended")?.get(&ONLY)?.unwrap_or_default()))
    }

    fn read(&self) -> Result<FamilyUsage, KernelError> {
        let ended = self.ended()?;
        let mut usage = FamilyUsage {
            time: Nanoseconds(ended.run_ns),
            switches: ended.switches,
            run_delay: Nanoseconds::ZERO,
            alive: 0,
            exits: ended.exits,
            forks: ended.forks,
        };
        for member in self.members()? {
            let time = i32::try_from(member.0).ok().and_then(run_time_of);
            usage.alive += usize::from(time.is_some());
            usage.time.0 += time.unwrap_or_default().0;
        }
        let living = self.living()?;
        usage.switches += living.switches;
        usage.run_delay = Nanoseconds(living.run_delay_ns);
        Ok(usage)
    }

    fn living(&self) -> Result<RawTotal, KernelError> {
        let alive = self.loaded.map("alive")?;
        alive.set(
            &ONLY,
            &RawTotal { run_ns: 0, switches: 0, run_delay_ns: 0, exits: 0, forks: 0 }.to_bytes(),
        )?;
        let program = self.loaded.program(ITERATOR)?;
        let reader = sys::bpf::iterate_all_tasks(program.as_fd())
            .map_err(|errno| KernelError::errno("BPF iterator family_lives", errno))?;
        iterated::bytes(reader, 0)?;
        Ok(RawTotal::of(&alive.get(&ONLY)?.unwrap_or_default()))
    }
}

mirrored! {
    /// `struct family_total`.
    struct RawTotal = "family_total" {
        run_ns: u64,
        switches: u64,
        run_delay_ns: u64,
        exits: u64,
        forks: u64,
    }
}

#[cfg(test)]
mod layout {
    use super::*;
    use crate::mirrored::same_as_compiled;

    same_as_compiled!(OBJECT, RawTotal);
}
