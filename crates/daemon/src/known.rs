//! What is known of the host, and what of it is due to be looked at again.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use linux::observe::Observer;
use linux::{KernelError, Netns, Processes};
use model::host::{AppRequest, Socket};
use model::{Host, HostKnob, IfIndex, IrqKnob, Nanoseconds, Object, Pid, Setting};

use crate::reconciler::Scope;

/// Looking at all processes takes at most one part in so many of a CPU, and is not done more often than this.
const LOOK_SHARE: u64 = 2_000;
pub(crate) const LOOK_AT_ALL_EVERY: Nanoseconds = Nanoseconds::from_millis(60_000);

/// How many objects other than NAPIs and epolls are compared at one tick; the next ones at the next.
const COMPARED_MAX: usize = 64;

/// The host as it was observed.
pub(crate) struct Known {
    observer: Observer,
    host: Host,
    /// When all processes are looked at again, because there is no event for their sockets.
    look_at_all: Nanoseconds,
    /// The object that was compared last at a tick.
    compared: Option<Object>,
    /// What the last commit set, until it was looked at.
    set_lately: Vec<Setting>,
}

impl Known {
    /// The host of a network namespace without its processes, which are all due to be looked at.
    ///
    /// # Errors
    /// If it cannot be observed.
    pub(crate) fn open(netns: Netns, now: Nanoseconds) -> Result<Self, KernelError> {
        let mut observer = Observer::open(netns)?;
        let host = observer.whole(&Processes::None)?;
        Ok(Self { observer, host, look_at_all: now, compared: None, set_lately: Vec::new() })
    }

    /// The host.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Where it is.
    pub(crate) fn netns(&self) -> &Netns {
        self.observer.netns()
    }

    /// Whether other CPUs are isolated than is known.
    pub(crate) fn isolation_changed(&self) -> bool {
        self.observer.isolation_changed(&self.host)
    }

    /// Looks at the routes again: which devices the default route goes by, and what tunnels stand on. Says whether that
    /// changed.
    pub(crate) fn routes(&mut self) -> bool {
        self.observer.routes(&mut self.host)
    }

    /// Looks at the CPUs again.
    pub(crate) fn cpus(&mut self) {
        self.observer.cpus(&mut self.host);
    }

    /// Looks at a device again.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn device(&mut self, index: IfIndex) -> Result<(), KernelError> {
        self.observer.device(&mut self.host, index).map(|_| ())
    }

    /// Looks at the NAPIs of a device again.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn napis(&mut self, index: IfIndex) -> Result<(), KernelError> {
        self.observer.napis(&mut self.host, index)
    }

    /// Looks at a process again, as deep as it takes; false if it is not there.
    pub(crate) fn process(&mut self, pid: Pid, scope: Scope) -> bool {
        // A process without receiving sockets may have opened one, for which there is no event but a listener's.
        let known = self.host.process(pid);
        let receives = known.is_some_and(|process| process.sockets.iter().any(Socket::can_receive));
        match scope {
            Scope::Epolls if receives => self.observer.epolls(&mut self.host, pid),
            Scope::Epolls | Scope::Whole => self.observer.process(&mut self.host, pid),
        }
    }

    /// A process, looked at if it is not known; false if it is not there.
    pub(crate) fn has_process(&mut self, pid: Pid) -> bool {
        self.host.process(pid).is_some() || self.observer.process(&mut self.host, pid)
    }

    /// Forgets a process.
    pub(crate) fn forget_process(&mut self, pid: Pid) {
        self.host.processes.retain(|process| process.id.pid != pid);
    }

    /// Looks at everything again, but for what applications request.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn everything(&mut self, which: &Processes) -> Result<(), KernelError> {
        let host = self.observer.whole(which)?;
        let before = std::mem::replace(&mut self.host, host);
        self.host.app_requests = before.app_requests;
        Ok(())
    }

    /// All processes were looked at, which began at this time.
    pub(crate) fn looked_at_all(&mut self, begun: Nanoseconds, now: Nanoseconds) {
        let took = now.0.saturating_sub(begun.0);
        let pause = LOOK_AT_ALL_EVERY.0.max(took.saturating_mul(LOOK_SHARE));
        self.look_at_all = Nanoseconds(now.0.saturating_add(pause));
    }

    /// Whether all processes are due.
    pub(crate) fn are_all_due(&self, now: Nanoseconds) -> bool {
        now >= self.look_at_all
    }

    /// Notes what applications request.
    pub(crate) fn note_app_requests(&mut self, requests: Vec<AppRequest>) {
        self.host.app_requests = requests;
    }

    /// A value that was read or written by itself, of an object that is not looked at otherwise.
    pub(crate) fn take_in(&mut self, setting: &Setting) {
        match setting {
            Setting::Irq(number, knob) => match knob {
                IrqKnob::Affinity(cpus) => {
                    for irq in self.host.irqs.iter_mut().filter(|irq| irq.number == *number) {
                        irq.affinity.clone_from(cpus);
                    }
                }
                // No observation has it: irqbalance is asked for it when it is compared.
                IrqKnob::Ban(_) => {}
            },
            Setting::Host(HostKnob::Sysctl(sysctl, value)) => drop(self.host.sysctls.insert(*sysctl, *value)),
            // Devices and processes are looked at otherwise.
            Setting::Napi(..)
            | Setting::DeviceNapis(..)
            | Setting::Kthread(..)
            | Setting::Nic(..)
            | Setting::RxQueue(..)
            | Setting::TxQueue(..)
            | Setting::Process(_) => {}
        }
    }

    /// The last commit set these: they are due to be looked at.
    pub(crate) fn note_set(&mut self, settings: Vec<Setting>) {
        self.set_lately = settings;
    }

    /// What the last commit set, once.
    pub(crate) fn take_set(&mut self) -> Vec<Setting> {
        std::mem::take(&mut self.set_lately)
    }

    /// Those of these objects whose turn it is to be compared, at most [`COMPARED_MAX`]: behind the one that was compared last.
    pub(crate) fn due_to_compare(&self, objects: &BTreeMap<Object, Vec<Setting>>) -> Vec<Object> {
        let after = self.compared.and_then(|last| objects.range((Excluded(last), Unbounded)).next());
        let Some(begin) = after.or_else(|| objects.first_key_value()).map(|(object, _)| *object) else {
            return Vec::new();
        };
        objects.range(begin..).take(COMPARED_MAX).map(|(object, _)| *object).collect()
    }

    /// An object is being compared.
    pub(crate) fn compared(&mut self, object: Object) {
        self.compared = Some(object);
    }
}

/// Whether it belongs to a process that has ended. One that is not looked at any more may live all the same.
pub(crate) fn has_ended(object: &Object, host: &Host) -> bool {
    let process = match object {
        Object::Epoll(epoll) => epoll.process,
        Object::Ring(ring) => ring.process,
        Object::Socket(socket) => socket.process,
        Object::Thread(thread) => thread.process,
        _ => return false,
    };
    host.process(process.pid).is_none_or(|known| known.id.started != process.started)
        && match linux::process::identify(process.pid) {
            Ok(now) => now.started != process.started,
            Err(error) => matches!(error.cause, linux::Cause::Gone(_)),
        }
}
