//! A running service, measured from outside in windows: its response times, and their cost.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use bpf::family::Family;
use bpf::live::{AnswerHook, LiveMeter, LiveTarget};
use bpf::softirqs::SoftirqTime;
use model::host::SocketState;
use model::live::LiveWindow;
use model::{Nanoseconds, NapiId, NetnsId, Pid, ProcessId};
use netlink::netdev::Netdev;
use netlink::sock_diag::InetSockets;
use sys::clock::run_time_of;
use sys::error::{Cause, KernelError};
use sys::netns::Netns;

use crate::process::{Pinned, kthread, ports_of};

/// Maximum number of threads of a service whose context switches are counted.
pub const THREADS_MAX: usize = 4096;

/// Where processes receive requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listening {
    /// The ports of their TCP listeners.
    pub tcp: BTreeSet<u16>,
    /// The ports of their UDP sockets without a peer.
    pub udp: BTreeSet<u16>,
}

/// Returns where these processes of a namespace receive requests; nothing for those that have exited.
///
/// # Errors
/// If the kernel does not list the sockets, or a process may not be inspected.
pub fn listening(processes: &[Pid], netns: &Netns) -> Result<Listening, KernelError> {
    let sockets = InetSockets::of(netns)?;
    let mut found = Listening::default();
    for pid in processes {
        let held = match ports_of(*pid, &sockets) {
            Err(KernelError { cause: Cause::Gone(_), .. }) => continue,
            held => held?,
        };
        for (state, port) in held {
            match state {
                SocketState::TcpListen => drop(found.tcp.insert(port)),
                SocketState::Udp => drop(found.udp.insert(port)),
                SocketState::TcpEstablished | SocketState::TcpOther | SocketState::Other => {}
            }
        }
    }
    Ok(found)
}

/// The number of TCP connections at these ports of a namespace that a process has open.
///
/// # Errors
/// If the kernel does not list the sockets.
pub fn connections(netns: &Netns, ports: &[u16]) -> Result<usize, KernelError> {
    let is_one = |state: SocketState| match state {
        SocketState::TcpEstablished | SocketState::TcpOther => true,
        SocketState::TcpListen | SocketState::Udp | SocketState::Other => false,
    };
    let sockets = InetSockets::of(netns)?;
    let of_ports = |local: Option<SocketAddr>| local.is_some_and(|local| ports.contains(&local.port()));
    Ok(sockets.iter().filter(|socket| is_one(socket.state) && of_ports(socket.local)).count())
}

/// The resources that a service used in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The run time of its processes and their descendants, including those that have exited. Without
    /// CONFIG_IRQ_TIME_ACCOUNTING it includes the softirqs that interrupted them.
    pub service: Nanoseconds,
    /// The time of softirqs that polled its NAPIs at the expense of others. `None` in the first window, when
    /// the NAPIs are not known yet, and if it cannot be counted.
    pub softirq: Option<Nanoseconds>,
    /// The run time of the kernel threads that poll its NAPIs; in the first window, when these are not known
    /// yet, of all NAPIs of the namespace.
    pub kthreads: Nanoseconds,
    /// The context switches of its threads.
    pub switches: u64,
}

/// The result of one window.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Response times.
    pub window: LiveWindow,
    /// Their cost; `None` if the service no longer has a process, or none was given.
    pub usage: Option<Usage>,
}

/// A service under measurement. Nothing is attached between [`ServiceWatch::end`] and the next
/// [`ServiceWatch::begin`].
#[derive(Debug)]
pub struct ServiceWatch {
    meter: LiveMeter,
    processes: Vec<ProcessId>,
    /// The processes and their descendants; `None` if forks cannot be followed, as in the pid namespace of a
    /// container.
    family: Option<Family>,
    kthreads: Kthreads,
    napis: BTreeSet<NapiId>,
    softirqs: Option<SoftirqTime>,
    before: Option<Usage>,
    windows: u32,
}

impl ServiceWatch {
    /// One window in this many also measures the time in the network stack.
    const STACK_EVERY: u32 = 16;

    /// Loads the programs that measure these ports of a namespace, for a service with these processes.
    ///
    /// # Errors
    /// Those of [`LiveMeter::load`].
    pub fn load(target: &LiveTarget, processes: Vec<ProcessId>) -> Result<Self, KernelError> {
        let meter = LiveMeter::load(target)?;
        let kthreads = Kthreads::of(target.netns);
        let family = Family::new().ok();
        add_to(family.as_ref(), &processes);
        Ok(Self {
            meter,
            processes,
            family,
            kthreads,
            napis: BTreeSet::new(),
            softirqs: None,
            before: None,
            windows: 0,
        })
    }

    /// The hook at which answers are recorded.
    pub const fn hook(&self) -> AnswerHook {
        self.meter.hook()
    }

    /// The meter, for [`LiveMeter::suppose`].
    pub const fn meter(&mut self) -> &mut LiveMeter {
        &mut self.meter
    }

    /// Sets the processes that serve, from the next window on.
    pub fn is_served_by(&mut self, processes: &[ProcessId]) {
        self.processes = processes.to_vec();
        self.before = None;
        add_to(self.family.as_ref(), processes);
        if self.family.is_none() {
            // The processes that serve determine at whose expense softirqs run.
            self.softirqs = None;
            self.napis.clear();
        }
    }

    /// The processes that still run. A zombie counts as exited, although its parent has not waited for it
    /// yet.
    pub fn running(&self) -> impl Iterator<Item = &ProcessId> {
        self.processes.iter().filter(|process| {
            let now = Pinned::open(process.pid);
            now.is_ok_and(|now| now.id.started == process.started && now.confirm_running().is_ok())
        })
    }

    /// Whether all of the processes run.
    pub fn all_run(&self) -> bool {
        self.running().count() == self.processes.len()
    }

    /// Begins a window.
    ///
    /// # Errors
    /// The kernel's error; then nothing is attached.
    pub fn begin(&mut self) -> Result<(), KernelError> {
        if let Some(softirqs) = &mut self.softirqs {
            softirqs.resume()?;
        }
        // Settings change between windows, and the threads with them.
        if self.kthreads.find(&self.napis) {
            self.meter.is_polled_by_threads(!self.kthreads.pids.is_empty());
        }
        self.before = self.used();
        let sees_stack = self.windows.is_multiple_of(Self::STACK_EVERY);
        self.windows = self.windows.wrapping_add(1);
        if sees_stack { self.meter.begin_with_stack() } else { self.meter.begin() }
    }

    /// Ends the window, and returns what was measured.
    ///
    /// # Errors
    /// The kernel's error. Nevertheless nothing stays attached.
    ///
    /// # Panics
    /// If no window was begun, which is a mistake of the caller.
    pub fn end(&mut self) -> Result<Sample, KernelError> {
        let window = self.meter.end();
        let after = self.used();
        if let Some(softirqs) = &mut self.softirqs {
            softirqs.pause();
        }
        let window = window?;
        self.kthreads.poll |= window.counts.threaded > 0;
        let usage = self.before.zip(after).map(|(before, after)| Usage {
            service: Nanoseconds(after.service.0.saturating_sub(before.service.0)),
            softirq: after
                .softirq
                .zip(before.softirq)
                .map(|(after, before)| Nanoseconds(after.0.saturating_sub(before.0))),
            kthreads: Nanoseconds(after.kthreads.0.saturating_sub(before.kthreads.0)),
            switches: after.switches.saturating_sub(before.switches),
        });
        self.know(&window);
        Ok(Sample { window, usage })
    }

    /// Counts the softirqs of the NAPIs through which requests arrived, from the next window on.
    fn know(&mut self, window: &LiveWindow) {
        let new: BTreeSet<NapiId> = window.napis.iter().map(|(napi, _)| *napi).collect();
        if new.is_subset(&self.napis) {
            return;
        }
        self.napis.extend(new);
        let processes = self.processes.iter().map(|process| process.pid);
        let napis = self.napis.iter().copied();
        // If they cannot be counted, the cost is reported without them.
        self.softirqs = match &self.family {
            Some(family) => SoftirqTime::of_family(napis, family),
            None => SoftirqTime::of(napis, processes),
        }
        .ok();
        if let Some(softirqs) = &mut self.softirqs {
            softirqs.pause();
        }
    }

    /// Returns what was used so far; `None` without a process.
    fn used(&self) -> Option<Usage> {
        let run_time = |pid: &Pid| i32::try_from(pid.0).ok().and_then(run_time_of);
        let (mut service, mut switches, mut any) = (Nanoseconds::ZERO, 0, false);
        if let Some(usage) = self.family.as_ref().and_then(|family| family.usage().ok()) {
            (service, switches, any) = (usage.time, usage.switches, usage.alive > 0);
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
        any.then_some(Usage { service, softirq, kthreads, switches })
    }
}

/// The kernel threads that poll certain NAPIs at present. Each change of the setting may create other threads.
#[derive(Debug)]
struct Kthreads {
    /// `None` if the kernel lists no NAPIs: then they are found by their names.
    netdev: Option<Netdev>,
    pids: Vec<Pid>,
    /// Whether a window has shown that threads poll: only then are they looked for by name, because that
    /// reads the name of each process.
    poll: bool,
}

impl Kthreads {
    fn of(netns: NetnsId) -> Self {
        // Without them, the cost is reported without the time of threads.
        let opened = Netns::with_id(netns).and_then(|netns| netns.run(Netdev::open_here)?);
        let lists = |netdev: &mut Netdev| netdev.napis(None).is_ok();
        let netdev = opened.ok().and_then(|mut netdev| lists(&mut netdev).then_some(netdev));
        Self { netdev, pids: Vec::new(), poll: false }
    }

    /// Finds the threads of these NAPIs, or of all if none is given. Returns whether they are others than
    /// before.
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

/// Adds processes and their descendants to a family. The run time of those that do not fit is not counted.
fn add_to(family: Option<&Family>, processes: &[ProcessId]) {
    let Some(family) = family else { return };
    for process in processes {
        let _full = family.add(process.pid);
        // Everything is a descendant of process 1, which holds the sockets of services that it starts on
        // demand.
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

/// The run time so far of the threads of these processes; `None` if none of the processes exists.
pub fn run_time(processes: &[Pid]) -> Option<Nanoseconds> {
    let times = processes.iter().filter_map(|pid| run_time_of(i32::try_from(pid.0).ok()?));
    times.reduce(|sum, time| Nanoseconds(sum.0 + time.0))
}

/// The number of context switches of the threads of a process, voluntary and involuntary.
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
    fn a_process_that_listens_is_found_by_its_port_and_its_switches_are_counted() {
        let own = Pid(std::process::id());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let found = listening(&[own], &Netns::own().expect("ours")).expect("listed");
        assert!(found.tcp.contains(&port) && !found.udp.contains(&port), "{found:?}");
        let before = switches_of(own);
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(switches_of(own) > before);
    }
}
