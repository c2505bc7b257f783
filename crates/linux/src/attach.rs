//! Access to other users' processes through the attach service, the only process with `CAP_SYS_PTRACE`. A
//! process without that privilege sets an implementation of [`Attach`] once, when it starts. From then on it
//! uses that implementation to observe and find processes, and to write to their epolls, io_urings and
//! sockets; it does everything else itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use model::host::{Process, Unread};
use model::{EpollId, EpollParams, Fd, Pid, ProcessId, ProcessKnob, Setting};
use sys::error::KernelError;
use sys::netns::Netns;

use crate::selection::{Criteria, FoundProcesses, Processes};

/// The epolls of a process by their descriptors, with their busy-poll parameters; `None` if they cannot be
/// read.
pub type EpollsOf = Vec<(Fd, Option<EpollParams>)>;

/// A privileged process that can access processes of other users.
pub trait Attach: Send + Sync {
    /// Like [`crate::observe::processes`], in the privileged process.
    fn processes(&self, netns: &Netns, which: &Processes) -> (Vec<Process>, Vec<Unread>);

    /// Like [`crate::process::find_each`], in the privileged process.
    ///
    /// # Errors
    /// As for [`crate::process::find_each`]; [`sys::Cause::Malformed`] for a malformed answer.
    fn find_each(&self, all: &[Criteria], only: Option<Pid>) -> Result<Vec<FoundProcesses>, KernelError>;

    /// Like [`crate::process::holders_of_each`], in the privileged process.
    ///
    /// # Errors
    /// As for [`crate::process::holders_of_each`]; [`sys::Cause::Malformed`] for a malformed answer.
    fn holders_of_each(&self, inodes: &BTreeSet<u64>) -> Result<BTreeMap<u64, Vec<Pid>>, KernelError>;

    /// Reads a setting of an epoll, an io_uring or a socket. The busy-poll budget of a socket is not read.
    ///
    /// # Errors
    /// The error of reading the setting; [`sys::Cause::Malformed`] for a malformed answer.
    fn read(&self, like: &Setting) -> Result<Setting, KernelError>;

    /// Writes a setting of an epoll, an io_uring or a socket.
    ///
    /// # Errors
    /// The error of writing the setting; [`sys::Cause::Malformed`] for a malformed answer.
    fn write(&self, setting: &Setting) -> Result<(), KernelError>;

    /// Like [`crate::process::epolls_of`], in the privileged process.
    ///
    /// # Errors
    /// As for [`crate::process::epolls_of`]; [`sys::Cause::Malformed`] for a malformed answer.
    fn epolls(&self, process: &ProcessId) -> Result<EpollsOf, KernelError>;

    /// Like [`crate::process::same_epoll`], in the privileged process.
    fn same_epoll(&self, a: EpollId, b: EpollId) -> bool;

    /// Returns the processes that hold an AF_XDP socket of the namespace with this cookie.
    ///
    /// # Errors
    /// If `/proc` cannot be listed.
    fn holders_of_af_xdp(&self, netns_cookie: Option<u64>) -> Result<Vec<ProcessId>, KernelError>;
}

/// Whether this process lacks the privilege to access processes of other users itself.
pub fn is_needed() -> bool {
    let held = rustix::thread::capabilities(None).map(|sets| sets.effective);
    !held.is_ok_and(|held| held.contains(rustix::thread::CapabilitySet::SYS_PTRACE))
}

static SERVICE: OnceLock<(Box<dyn Attach>, PathBuf)> = OnceLock::new();

/// Makes this process access other processes through this service. `socket` is the path of the service's
/// socket. Only the first call has an effect.
pub fn through(service: Box<dyn Attach>, socket: PathBuf) {
    let _ = SERVICE.set((service, socket));
}

/// Returns the service, if one was set.
pub(crate) fn service() -> Option<&'static dyn Attach> {
    SERVICE.get().map(|(service, _)| service.as_ref())
}

static WORKERS: OnceLock<Box<dyn Attach>> = OnceLock::new();

/// Makes this process inspect other processes in worker processes, unless there is a service: an inspection
/// may block forever, and a worker can be abandoned. Only the first call has an effect.
pub fn by_workers(workers: Box<dyn Attach>) {
    let _ = WORKERS.set(workers);
}

/// Returns the implementation for inspecting untrusted processes: the service, or workers.
pub(crate) fn inspector() -> Option<&'static dyn Attach> {
    service().or_else(|| WORKERS.get().map(AsRef::as_ref))
}

static BEFORE_EACH: OnceLock<fn(Pid)> = OnceLock::new();

/// Sets a function that is called before each process is inspected. Only the first call has an effect.
pub fn before_each_process(say: fn(Pid)) {
    let _ = BEFORE_EACH.set(say);
}

pub(crate) fn begin_with(pid: Pid) {
    if let Some(say) = BEFORE_EACH.get() {
        say(pid);
    }
}

/// Closes all descriptors except standard input, output and error.
pub use sys::child::close_inherited;

/// The socket of the service, if one was set: child processes need it, too.
pub fn socket() -> Option<&'static Path> {
    SERVICE.get().map(|(_, socket)| socket.as_path())
}

/// Whether a setting belongs to an object of a process, so that reading and writing it needs
/// `CAP_SYS_PTRACE`.
pub const fn is_inside_a_process(setting: &Setting) -> bool {
    matches!(
        setting,
        Setting::Process(ProcessKnob::Epoll(..) | ProcessKnob::IoUring(..) | ProcessKnob::Socket(..))
    )
}
