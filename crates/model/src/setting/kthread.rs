//! Knobs of the kernel thread that polls a queue's NAPI.

use super::family::family;
use crate::cpu_set::CpuSet;
use crate::facts::{Facts, Interface, KnobUnit, WritePhase};
use crate::scheduling::{Scheduling, Slice, UtilClamp};
use crate::since;
use crate::units::KernelVersion;

/// When a thread is about to end, its settings are lowered before that.
const KTHREAD: Facts = Facts {
    since: since::NAPI_THREADS,
    phase_down: WritePhase::KthreadLeaves,
    ..Facts::at(Interface::Kthread, WritePhase::Kthread)
};

family! {
    /// A knob of the kernel thread that polls a queue's NAPI, with a value.
    ///
    /// The thread is looked up by the NAPI's `pid` whenever it is read or written, because each reset may
    /// replace it. If there is no thread, the value is the one that a new thread starts with.
    KthreadKnob {
        /// The CPUs that the kernel thread polling the queue may run on.
        ///
        /// Kernel: 5.12 (the thread), 6.8 (netlink `napi-get` names it), `net/core/dev.c` `napi_kthread_create()`;
        /// `kernel/sched/syscalls.c` `sched_setaffinity()`.
        Affinity(CpuSet) = KTHREAD {
            name: "kthread cpus_allowed",
            key: Some("kthread.cpus"),
            asks: Some(
                "Where the kernel threads that poll run: on their interrupts' CPUs, on the sibling hardware threads, on dedicated CPUs, or anywhere.",
            ),
            unit: KnobUnit::Cpus,
        } where {
            irreversible(cpus) if cpus.is_empty() => "an empty set, which sched_setaffinity() rejects";
        },

        /// The scheduling class of the kernel thread polling the queue, with its nice value or priority.
        ///
        /// Kernel: 5.12, `net/core/dev.c` `napi_kthread_create()`; 3.14, `kernel/sched/syscalls.c` `sched_setattr()`.
        Scheduling(Scheduling) = KTHREAD { name: "kthread policy", key: Some("kthread.class"), rank: 2 },

        /// Utilisation clamp of the kernel thread polling the queue, MIN-MAX in 1024ths of a CPU.
        ///
        /// Kernel: 5.12 (the thread), 5.3 with `CONFIG_UCLAMP_TASK`, `kernel/sched/syscalls.c`
        /// `sched_setattr()`, `uclamp_validate()`.
        UtilClamp(UtilClamp) = KTHREAD {
            name: "kthread util-clamp",
            key: Some("kthread.util-clamp"),
            range: Some((0, 1024)),
            rank: 3,
        },

        /// How long the kernel thread polling the queue runs before another waiting thread of its CPU gets
        /// its turn. A thread with a shorter slice than others also runs sooner after it wakes. Only for
        /// classes `other` and `batch`.
        ///
        /// 100 µs to 100 ms, or the scheduler's default for all threads.
        ///
        /// Kernel: 6.12, `kernel/sched/syscalls.c` `__setparam_fair()`, `struct sched_attr` `sched_runtime`.
        Slice(Slice) = KTHREAD {
            name: "kthread slice",
            key: Some("kthread.slice"),
            unit: KnobUnit::Nanoseconds,
            range: Some((Slice::LEAST.0, Slice::MOST.0)),
            since: KernelVersion::since(6, 12),
            // Writing the class resets the slice.
            rank: 4,
        } where {
            tools(Slice::Own(span)) => span.0.to_string();
        },
    }
}

impl KthreadKnob {
    /// Formats the value as policy files and output show it.
    pub fn value(&self) -> String {
        match self {
            Self::Affinity(cpus) => cpus.to_string(),
            Self::Scheduling(scheduling) => scheduling.to_string(),
            Self::UtilClamp(clamp) => clamp.to_string(),
            Self::Slice(slice) => slice.to_string(),
        }
    }
}
