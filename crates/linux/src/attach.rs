//! Access to processes of other users through a privileged process: `CAP_SYS_PTRACE` in a process of its own.
//!
//! A process without that privilege sets an implementation once, at its start. From then on, observing processes, finding
//! them and writing to their epolls, io_urings and sockets go through it; the process does everything else itself.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use model::host::{Process, Unread};
use model::{EpollId, EpollParams, Fd, Pid, ProcessId, ProcessKnob, Setting};
use sys::error::KernelError;
use sys::netns::Netns;

use crate::selection::{Criteria, Processes};

/// The epolls of a process by their descriptors, with how they busy-poll where that can be read.
pub type EpollsOf = Vec<(Fd, Option<EpollParams>)>;

/// A privileged process that can access processes of other users.
pub trait Attach: Send + Sync {
    /// As [`crate::observe::processes`].
    fn processes(&self, netns: &Netns, which: &Processes) -> (Vec<Process>, Vec<Unread>);

    /// As [`crate::process::find`]: the processes, and what could not be judged.
    ///
    /// # Errors
    /// As looking oneself; as [`Attach::read`].
    fn find(&self, criteria: &Criteria) -> Result<(Vec<ProcessId>, Vec<Unread>), KernelError>;

    /// As [`crate::process::meets`].
    ///
    /// # Errors
    /// As judging it oneself; as [`Attach::read`].
    fn meets(&self, criteria: &Criteria, pid: Pid) -> Result<Option<ProcessId>, KernelError>;

    /// As [`crate::process::holders_of_sockets`].
    ///
    /// # Errors
    /// As looking oneself; as [`Attach::read`].
    fn holders_of_sockets(&self, inodes: &BTreeSet<u64>) -> Result<Vec<Pid>, KernelError>;

    /// The value that a knob of an epoll, an io_uring or a socket has; of a socket without its budget.
    ///
    /// # Errors
    /// As reading it oneself; [`sys::Cause::Malformed`] for an answer that is none.
    fn read(&self, like: &Setting) -> Result<Setting, KernelError>;

    /// Writes a knob of an epoll, an io_uring or a socket.
    ///
    /// # Errors
    /// As writing it oneself; as [`Attach::read`].
    fn write(&self, setting: &Setting) -> Result<(), KernelError>;

    /// As [`crate::process::epolls_of`].
    ///
    /// # Errors
    /// As reading them oneself; as [`Attach::read`].
    fn epolls(&self, process: &ProcessId) -> Result<EpollsOf, KernelError>;

    /// As [`crate::process::same_epoll`].
    fn same_epoll(&self, a: EpollId, b: EpollId) -> bool;

    /// The processes that hold an AF_XDP socket of the namespace with this cookie.
    ///
    /// # Errors
    /// If `/proc` cannot be listed.
    fn holders_of_af_xdp(&self, netns_cookie: Option<u64>) -> Result<Vec<ProcessId>, KernelError>;
}

/// Whether this process cannot access those of other users itself.
pub fn is_needed() -> bool {
    let held = rustix::thread::capabilities(None).map(|sets| sets.effective);
    !held.is_ok_and(|held| held.contains(rustix::thread::CapabilitySet::SYS_PTRACE))
}

static SERVICE: OnceLock<(Box<dyn Attach>, PathBuf)> = OnceLock::new();

/// From here on, this process accesses others through this service, which answers at a socket. The first one that is set stays.
pub fn through(service: Box<dyn Attach>, socket: PathBuf) {
    let _ = SERVICE.set((service, socket));
}

/// The service, if one was set.
pub(crate) fn service() -> Option<&'static dyn Attach> {
    SERVICE.get().map(|(service, _)| service.as_ref())
}

static WORKERS: OnceLock<Box<dyn Attach>> = OnceLock::new();

/// From here on, this process looks into others by way of processes that it can give up, unless it does so through a service: what
/// they look at may keep them waiting for ever. The first one that is set stays.
pub fn by_workers(workers: Box<dyn Attach>) {
    let _ = WORKERS.set(workers);
}

/// What looks into processes that this process does not trust: the service, or workers.
pub(crate) fn inspector() -> Option<&'static dyn Attach> {
    service().or_else(|| WORKERS.get().map(AsRef::as_ref))
}

static BEFORE_EACH: OnceLock<fn(Pid)> = OnceLock::new();

/// From here on, this process calls a function before it looks at a process. The first one that is set stays.
pub fn before_each_process(say: fn(Pid)) {
    let _ = BEFORE_EACH.set(say);
}

pub(crate) fn begin_with(pid: Pid) {
    if let Some(say) = BEFORE_EACH.get() {
        say(pid);
    }
}

/// Closes all descriptors but standard input, output and error.
pub use sys::child::close_inherited;

/// Where the service answers, if one was set: a process that is started for this one needs it, too.
pub fn socket() -> Option<&'static Path> {
    SERVICE.get().map(|(_, socket)| socket.as_path())
}

/// Whether a knob lies inside a process, so that reading and writing it needs `CAP_SYS_PTRACE`.
pub const fn is_inside_a_process(setting: &Setting) -> bool {
    matches!(
        setting,
        Setting::Process(ProcessKnob::Epoll(..) | ProcessKnob::IoUring(..) | ProcessKnob::Socket(..))
    )
}
