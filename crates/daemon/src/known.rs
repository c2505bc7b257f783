//! The known state of the host, and when its parts are due to be observed again.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use linux::observe::Observer;
use linux::{KernelError, Netns, Processes};
use model::host::{AppRequest, Socket};
use model::{Host, HostKnob, IfIndex, IrqKnob, Nanoseconds, Object, Pid, Setting};

use crate::reconciler::Scope;

/// The reciprocal of the maximum share of a CPU that observing all processes may take. All processes are
/// observed at most once per [`LOOK_AT_ALL_EVERY`].
const LOOK_SHARE: u64 = 2_000;
pub(crate) const LOOK_AT_ALL_EVERY: Nanoseconds = Nanoseconds::from_millis(60_000);

/// The maximum number of objects other than NAPIs and epolls that are compared in one tick. Later ticks
/// continue with the rest.
const COMPARED_MAX: usize = 64;

/// The observed host.
pub(crate) struct HostView {
    observer: Observer,
    host: Host,
    /// When to observe all processes again. This is necessary because changes of sockets cause no events.
    look_at_all: Nanoseconds,
    /// The object that was compared last. The next tick continues after it.
    compared: Option<Object>,
    /// The settings that the last commit wrote, until they have been observed.
    set_lately: Vec<Setting>,
}

impl HostView {
    /// Observes a network namespace without its processes, all of which are then due to be observed.
    ///
    /// # Errors
    /// If the namespace cannot be observed.
    pub(crate) fn open(netns: Netns, now: Nanoseconds) -> Result<Self, KernelError> {
        let mut observer = Observer::open(netns)?;
        let host = observer.whole(&Processes::None)?;
        Ok(Self { observer, host, look_at_all: now, compared: None, set_lately: Vec::new() })
    }

    /// The host.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// The network namespace.
    pub(crate) fn netns(&self) -> &Netns {
        self.observer.netns()
    }

    /// Whether the set of isolated CPUs has changed.
    pub(crate) fn isolation_changed(&self) -> bool {
        self.observer.isolation_changed(&self.host)
    }

    /// Observes the routes again: the devices of the default route, and the lower devices of tunnels. Returns
    /// whether any of these have changed.
    pub(crate) fn routes(&mut self) -> bool {
        self.observer.routes(&mut self.host)
    }

    /// Observes the CPUs again.
    pub(crate) fn cpus(&mut self) {
        self.observer.cpus(&mut self.host);
    }

    /// Observes a device again.
    ///
    /// # Errors
    /// The kernel's errors.
    pub(crate) fn device(&mut self, index: IfIndex) -> Result<(), KernelError> {
        self.observer.device(&mut self.host, index).map(|_| ())
    }

    /// Observes the NAPIs of a device again.
    ///
    /// # Errors
    /// The kernel's errors.
    pub(crate) fn napis(&mut self, index: IfIndex) -> Result<(), KernelError> {
        self.observer.napis(&mut self.host, index)
    }

    /// Observes a process again, within `scope`. Returns false if the process does not exist.
    pub(crate) fn process(&mut self, pid: Pid, scope: Scope) -> bool {
        // If a process had no receiving sockets, it may have opened one since: no event reports that unless
        // the socket listens.
        let known = self.host.process(pid);
        let receives = known.is_some_and(|process| process.sockets.iter().any(Socket::can_receive));
        match scope {
            Scope::Epolls if receives => self.observer.epolls(&mut self.host, pid),
            Scope::Epolls | Scope::Whole => self.observer.process(&mut self.host, pid),
        }
    }

    /// Observes a process unless it is already known. Returns false if the process does not exist.
    pub(crate) fn has_process(&mut self, pid: Pid) -> bool {
        self.host.process(pid).is_some() || self.observer.process(&mut self.host, pid)
    }

    /// Forgets a process.
    pub(crate) fn forget_process(&mut self, pid: Pid) {
        self.host.processes.retain(|process| process.id.pid != pid);
    }

    /// Observes everything again, except the requests of applications.
    ///
    /// # Errors
    /// The kernel's errors.
    pub(crate) fn everything(&mut self, which: &Processes) -> Result<(), KernelError> {
        let host = self.observer.whole(which)?;
        let before = std::mem::replace(&mut self.host, host);
        self.host.app_requests = before.app_requests;
        Ok(())
    }

    /// Records that all processes were observed between `begun` and `now`.
    pub(crate) fn looked_at_all(&mut self, begun: Nanoseconds, now: Nanoseconds) {
        let took = now.0.saturating_sub(begun.0);
        let pause = LOOK_AT_ALL_EVERY.0.max(took.saturating_mul(LOOK_SHARE));
        self.look_at_all = Nanoseconds(now.0.saturating_add(pause));
    }

    /// Whether all processes are due to be observed.
    pub(crate) fn are_all_due(&self, now: Nanoseconds) -> bool {
        now >= self.look_at_all
    }

    /// Stores the requests of applications.
    pub(crate) fn note_app_requests(&mut self, requests: Vec<AppRequest>) {
        self.host.app_requests = requests;
    }

    /// Stores a value that was read or written individually. Needed for objects that are not observed
    /// otherwise.
    pub(crate) fn take_in(&mut self, setting: &Setting) {
        match setting {
            Setting::Irq(number, knob) => match knob {
                IrqKnob::Affinity(cpus) => {
                    for irq in self.host.irqs.iter_mut().filter(|irq| irq.number == *number) {
                        irq.affinity.clone_from(cpus);
                    }
                }
                // Whether an interrupt is banned is not observed: irqbalance is queried when the setting is
                // compared.
                IrqKnob::Ban(_) => {}
            },
            Setting::Host(HostKnob::Sysctl(sysctl, value)) => drop(self.host.sysctls.insert(*sysctl, *value)),
            // Devices and processes are observed as a whole, and these settings with them.
            Setting::Napi(..)
            | Setting::DeviceNapis(..)
            | Setting::Kthread(..)
            | Setting::Nic(..)
            | Setting::RxQueue(..)
            | Setting::TxQueue(..)
            | Setting::Process(_) => {}
        }
    }

    /// Records the settings that the last commit wrote, which are observed next.
    pub(crate) fn note_set(&mut self, settings: Vec<Setting>) {
        self.set_lately = settings;
    }

    /// Takes the settings that the last commit wrote.
    pub(crate) fn take_set(&mut self) -> Vec<Setting> {
        std::mem::take(&mut self.set_lately)
    }

    /// Returns the objects to compare next, at most [`COMPARED_MAX`], beginning after the object that was
    /// compared last.
    pub(crate) fn due_to_compare(&self, objects: &BTreeMap<Object, Vec<Setting>>) -> Vec<Object> {
        let after = self.compared.and_then(|last| objects.range((Excluded(last), Unbounded)).next());
        let Some(begin) = after.or_else(|| objects.first_key_value()).map(|(object, _)| *object) else {
            return Vec::new();
        };
        objects.range(begin..).take(COMPARED_MAX).map(|(object, _)| *object).collect()
    }

    /// Records which object was compared last.
    pub(crate) fn compared(&mut self, object: Object) {
        self.compared = Some(object);
    }
}

/// Whether the object belongs to a process that has exited. A process that is no longer observed may still be
/// running.
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
