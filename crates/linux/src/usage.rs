//! Measures the CPU time and context switches of a service, and the CPU time of the softirqs and kernel
//! threads that poll for it.

use std::collections::BTreeSet;

use bpf::family::ProcessFamily;
use bpf::softirqs::SoftirqTime;
use model::{Nanoseconds, NapiId, NetnsId, Pid, ProcessId};
use netlink::netdev::Netdev;
use sys::clock::run_time_of;
use sys::netns::Netns;

use crate::process::kthread;

/// The maximum number of threads of a service whose context switches are counted.
const THREADS_MAX: usize = 4096;

/// The resources that a service used from [`UsageMeter::begin`] to [`UsageMeter::end`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The run time of the service's processes and their descendants, including those that have exited.
    /// Without CONFIG_IRQ_TIME_ACCOUNTING it includes the softirqs that interrupted them.
    pub service: Nanoseconds,
    /// The time of softirqs that polled the service's NAPIs while other tasks were running. `None` in the
    /// first period, when the NAPIs are not known yet, or if that time cannot be counted.
    pub softirq: Option<Nanoseconds>,
    /// The run time of the kernel threads that poll the service's NAPIs; in the first period, when the NAPIs
    /// are not known yet, the run time of the threads of all NAPIs in the namespace.
    pub kthreads: Nanoseconds,
    /// The number of context switches of the service's threads.
    pub switches: u64,
    /// The time that the service's threads were runnable but waited for a CPU. `None` if the service's
    /// processes cannot be followed, as in the pid namespace of a container.
    pub run_delay: Option<Nanoseconds>,
}

/// Measures the resources that a service uses, in periods. Outside a period, the only attached BPF programs
/// are those that follow forks and exits of processes, unless others
/// [stay attached](UsageMeter::stay_attached).
#[derive(Debug)]
pub struct UsageMeter {
    processes: Vec<ProcessId>,
    /// The service's processes and their descendants; `None` if forks cannot be followed, as in the pid
    /// namespace of a container.
    family: Option<ProcessFamily>,
    kthreads: Kthreads,
    napis: BTreeSet<NapiId>,
    softirqs: Option<SoftirqTime>,
    /// Whether the programs that measure softirqs stay attached between periods.
    stays_attached: bool,
    before: Option<Usage>,
}

impl UsageMeter {
    /// Creates a meter for a service with these processes, in a network namespace.
    pub fn new(netns: NetnsId, processes: Vec<ProcessId>) -> Self {
        let family = ProcessFamily::new().ok();
        add_to(family.as_ref(), &processes);
        let kthreads = Kthreads::of(netns);
        let (napis, softirqs) = (BTreeSet::new(), None);
        Self { processes, family, kthreads, napis, softirqs, stays_attached: false, before: None }
    }

    /// Returns the processes of the service.
    pub fn processes(&self) -> &[ProcessId] {
        &self.processes
    }

    /// Sets the processes of the service, from the next period on.
    pub fn set_processes(&mut self, processes: &[ProcessId]) {
        self.processes = processes.to_vec();
        self.before = None;
        add_to(self.family.as_ref(), processes);
        if self.family.is_none() {
            // Count softirqs anew: which softirqs are counted depends on the service's processes.
            self.softirqs = None;
            self.napis.clear();
        }
    }

    /// Finds the kernel threads that poll the service's NAPIs: between periods, a change of settings may
    /// replace the threads. If the threads have changed, returns whether there are any.
    pub fn find_threads(&mut self) -> Option<bool> {
        self.kthreads.find(&self.napis).then_some(!self.kthreads.pids.is_empty())
    }

    /// Keeps the programs that measure softirqs attached between periods, or detaches them. For periods in quick
    /// succession, because attaching may take longer than a period.
    pub fn stay_attached(&mut self, stays: bool) {
        self.stays_attached = stays;
        if !stays && self.before.is_none() {
            self.detach();
        }
    }

    /// Ends the period without a result, if there is one, and detaches the programs until the next period.
    pub fn detach(&mut self) {
        self.before = None;
        if let Some(softirqs) = &mut self.softirqs {
            softirqs.pause(false);
        }
    }

    /// Begins a period. If softirqs cannot be counted, the usage is reported without them.
    pub fn begin(&mut self) {
        if self.softirqs.as_mut().is_some_and(|softirqs| softirqs.resume().is_err()) {
            self.softirqs = None;
        }
        self.before = self.used();
    }

    /// Ends the period, and returns the resources that the service used; `None` if the service no longer has
    /// a process, or no process was given.
    pub fn end(&mut self) -> Option<Usage> {
        let after = self.used();
        if let Some(softirqs) = &mut self.softirqs {
            softirqs.pause(self.stays_attached);
        }
        let (before, after) = self.before.take().zip(after)?;
        let between = |before: Nanoseconds, after: Nanoseconds| Nanoseconds(after.0.saturating_sub(before.0));
        Some(Usage {
            service: between(before.service, after.service),
            softirq: before.softirq.zip(after.softirq).map(|(before, after)| between(before, after)),
            kthreads: between(before.kthreads, after.kthreads),
            switches: after.switches.saturating_sub(before.switches),
            run_delay: before.run_delay.zip(after.run_delay).map(|(before, after)| between(before, after)),
        })
    }

    /// Counts the softirqs of these NAPIs as well, from the next period on. `threaded` says whether kernel
    /// threads poll some of them.
    pub fn track_napis(&mut self, napis: impl IntoIterator<Item = NapiId>, threaded: bool) {
        self.kthreads.poll |= threaded;
        let new: BTreeSet<NapiId> = napis.into_iter().collect();
        if new.is_subset(&self.napis) {
            return;
        }
        self.napis.extend(new);
        if self.softirqs.as_ref().is_some_and(|known| known.add_napis(self.napis.iter().copied()).is_ok()) {
            return;
        }
        let processes = self.processes.iter().map(|process| process.pid);
        let napis = self.napis.iter().copied();
        // If softirqs cannot be counted, the usage is reported without them.
        self.softirqs = match &self.family {
            Some(family) => SoftirqTime::of_family(napis, family),
            None => SoftirqTime::of(napis, processes),
        }
        .ok();
    }

    /// Returns the resources used so far; `None` without a process.
    fn used(&self) -> Option<Usage> {
        let run_time = |pid: &Pid| i32::try_from(pid.0).ok().and_then(run_time_of);
        let (mut service, mut switches, mut run_delay, mut any) = (Nanoseconds::ZERO, 0, None, false);
        if let Some(usage) = self.family.as_ref().and_then(|family| family.usage().ok()) {
            (service, switches, any) = (usage.time, usage.switches, usage.alive > 0);
            run_delay = Some(usage.run_delay);
        } else {
            for process in &self.processes {
                if let Some(of_process) = run_time(&process.pid) {
                    service.0 += of_process.0;
                    switches += switches_of(process.pid);
                    any = true;
                }
            }
        }
        let threads = self.kthreads.pids.iter();
        let kthreads = Nanoseconds(threads.filter_map(run_time).map(|time| time.0).sum());
        let softirq =
            self.softirqs.as_ref().and_then(|softirqs| softirqs.spent().ok()).map(|spent| spent.time);
        any.then_some(Usage { service, softirq, kthreads, switches, run_delay })
    }
}

/// The kernel threads that poll certain NAPIs at present. Each change of the threading setting may create
/// other threads.
#[derive(Debug)]
struct Kthreads {
    /// `None` if the kernel lists no NAPIs; the threads are then found by their names.
    netdev: Option<Netdev>,
    pids: Vec<Pid>,
    /// Whether kernel threads have been seen to poll. Only then are they searched by name, which reads the
    /// name of every process.
    poll: bool,
}

impl Kthreads {
    fn of(netns: NetnsId) -> Self {
        // On an error, the usage is reported without the threads' time.
        let opened = Netns::with_id(netns).and_then(|netns| netns.run(Netdev::open_here)?);
        let lists = |netdev: &mut Netdev| netdev.napis(None).is_ok();
        let netdev = opened.ok().and_then(|mut netdev| lists(&mut netdev).then_some(netdev));
        Self { netdev, pids: Vec::new(), poll: false }
    }

    /// Finds the threads of these NAPIs, or of all NAPIs if none is given. Returns whether the threads have
    /// changed.
    fn find(&mut self, napis: &BTreeSet<NapiId>) -> bool {
        let is_one = |id: u32| napis.is_empty() || napis.contains(&NapiId(id));
        let pids = match &mut self.netdev {
            Some(netdev) => {
                let listed = netdev.napis(None).unwrap_or_default().into_iter();
                listed.filter(|napi| is_one(napi.id)).filter_map(|napi| napi.pid.map(Pid)).collect()
            }
            None if self.poll => kthread::of_napis(napis).unwrap_or_default(),
            None => Vec::new(),
        };
        let are_others = pids != self.pids;
        self.pids = pids;
        are_others
    }
}

/// Adds processes and their descendants to a family. The run time of processes for which the family has no
/// room is not counted.
fn add_to(family: Option<&ProcessFamily>, processes: &[ProcessId]) {
    let Some(family) = family else { return };
    for process in processes {
        let _full = family.add(process.pid);
        // Skip the descendants of process 1, which holds the sockets of services that it starts on demand:
        // all processes are its descendants.
        if process.pid.0 == 1 {
            continue;
        }
        // The children of a member are followed. A descendant may fork before it is added: the second pass
        // finds that child.
        for descendant in (0..2).flat_map(|_| crate::work::family(process.pid)) {
            let _full = family.add(descendant);
        }
    }
}

/// Returns the number of context switches of a process's threads, voluntary and involuntary.
///
/// Kernel: 6.18, `fs/proc/array.c` `task_context_switch_counts()`.
fn switches_of(pid: Pid) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .take(THREADS_MAX)
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok())
        .map(|status| {
            let lines = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
            lines.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum::<u64>()
        })
        .sum()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_switches_of_a_process_that_sleeps_are_counted() {
        let own = Pid(std::process::id());
        let before = switches_of(own);
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(switches_of(own) > before);
    }
}
