//! Holds a process open, so that reuse of its pid cannot turn it into another process.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use model::{Fd, KernelVersion, Pid, ProcessId, ThreadId, since};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, openat, readlinkat, statat};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use sys::error::{Cause, KernelError};
use sys::netns::Netns;

use super::stat::Stat;

/// The maximum number of bytes that are read of one file of `/proc`: enough for 800 000 lines of an epoll's
/// fdinfo.
const FILE_BYTES_MAX: usize = 64 << 20;
/// The minimum number of bytes that one `read(2)` requests.
const READ_BYTES: usize = 32 << 10;
/// The maximum number of processes in a scan. Kernel: 6.18, `include/linux/threads.h` `PID_MAX_LIMIT`.
const PROCESSES_MAX: usize = 4 << 20;

/// Identifies the process that has this pid now, with its start time and name.
///
/// # Errors
/// [`Cause::Gone`] if there is no such process, [`Cause::Absent`] if it is a kernel thread.
pub fn identify(pid: Pid) -> Result<ProcessId, KernelError> {
    match PinnedProcess::open(pid) {
        Ok(process) if process.kernel_thread => {
            let needs = "a process with descriptors: this is a kernel thread";
            Err(KernelError::absent(process.id.to_string(), needs, None))
        }
        Ok(process) => Ok(process.id),
        Err(cause) => Err(KernelError { what: format!("process {pid}"), cause }),
    }
}

/// Whether exactly this process is running. A zombie does not count as running.
pub fn is_running(id: &ProcessId) -> bool {
    PinnedProcess::reopen(id).is_ok_and(|process| process.confirm_running().is_ok())
}

/// Identifies the kernel thread with this pid, such as one that polls a NAPI.
///
/// # Errors
/// [`Cause::Gone`] if there is no such task, [`Cause::Absent`] if it is an ordinary process.
pub fn identify_kernel_thread(pid: Pid) -> Result<ThreadId, KernelError> {
    match PinnedProcess::open(pid) {
        Ok(thread) if thread.kernel_thread => {
            let ProcessId { started, comm, .. } = thread.id;
            Ok(ThreadId { process: thread.id, tid: pid, started, comm })
        }
        Ok(process) => Err(KernelError::absent(process.id.to_string(), "a kernel thread", None)),
        Err(cause) => Err(KernelError { what: format!("kernel thread {pid}"), cause }),
    }
}

/// A process, held by a pidfd and by its directory in `/proc`. Both keep referring to this process after it
/// has exited; from then on, they report that it is gone.
pub(crate) struct PinnedProcess {
    pub(crate) id: ProcessId,
    /// Whether this is a kernel thread.
    pub(crate) kernel_thread: bool,
    pidfd: OwnedFd,
    directory: OwnedFd,
}

impl fmt::Debug for PinnedProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({})", self.id)
    }
}

impl PinnedProcess {
    /// Opens the process that has this pid now.
    pub(crate) fn open(pid: Pid) -> Result<Self, Cause> {
        crate::attach::begin_with(pid);
        let gone = || Cause::Gone(format!("there is no process {pid}"));
        let number = i32::try_from(pid.0).ok().and_then(rustix::process::Pid::from_raw).ok_or_else(gone)?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => gone(),
            // Kernel: EINVAL until 6.15, ENOENT in later versions; `kernel/pid.c` `pidfd_prepare()`.
            Errno::INVAL | Errno::NOENT => Cause::Gone(format!("{pid} is a thread, not a process")),
            Errno::NOSYS => absent("pidfd_open", since::PIDFD_OPEN),
            other => Cause::Errno(other),
        })?;
        let gone_if_missing = |errno| match errno {
            Errno::NOENT | Errno::SRCH => gone(),
            other => Cause::Errno(other),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty()).map_err(gone_if_missing)?;
        let mut text = Vec::new();
        read_at(directory.as_fd(), "stat", &mut text).map_err(gone_if_missing)?;
        let stat = Stat::parse(&text)
            .ok_or_else(|| Cause::Malformed(String::from_utf8_lossy(&text).into_owned()))?;
        let id = ProcessId { pid, started: stat.started, comm: stat.comm };
        Ok(Self { id, kernel_thread: stat.kernel_thread, pidfd, directory })
    }

    /// Opens exactly this process. The pidfd is opened before the start time is compared: if the start times
    /// agree, the pidfd refers to this process, which may have exited.
    pub(crate) fn reopen(id: &ProcessId) -> Result<Self, Cause> {
        let process = Self::open(id.pid)?;
        if process.id.started == id.started {
            Ok(process)
        } else {
            Err(Cause::Gone(format!(
                "the process has exited, and pid {} now belongs to {}",
                id.pid, process.id.comm
            )))
        }
    }

    /// Duplicates a descriptor of the process. The copy should be closed soon: while it is open, the process
    /// cannot close a connection by closing its own descriptor.
    pub(crate) fn duplicate(&self, fd: Fd) -> Result<OwnedFd, Cause> {
        let closed = || Cause::Gone(format!("descriptor {fd} is closed"));
        let number = i32::try_from(fd.0).map_err(|_| closed())?;
        pidfd_getfd(&self.pidfd, number, PidfdGetfdFlags::empty()).map_err(|errno| match errno {
            Errno::BADF => closed(),
            Errno::SRCH => Cause::Gone("the process has exited".to_owned()),
            Errno::NOSYS => absent("pidfd_getfd", since::PIDFD_GETFD),
            Errno::PERM | Errno::ACCESS => Cause::Denied { errno, needs: ptrace_needs() },
            other => Cause::Errno(other),
        })
    }

    /// Checks that the process is still running: data that was read while it was exiting may be incomplete.
    pub(crate) fn confirm_running(&self) -> Result<(), Cause> {
        let mut ended = [PollFd::new(&self.pidfd, PollFlags::IN)];
        match poll(&mut ended, Some(&Timespec::default())) {
            Ok(0) => Ok(()),
            Ok(_) => Err(Cause::Gone("the process has exited".to_owned())),
            Err(errno) => Err(Cause::Errno(errno)),
        }
    }

    /// Returns the process's directory in `/proc`, which is opened with `O_PATH`.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Reads a whole file of the process in `/proc`, replacing the content of `into`.
    pub(crate) fn read(&self, path: &str, into: &mut Vec<u8>) -> Result<(), Cause> {
        read_at(self.directory.as_fd(), path, into).map_err(unreadable)
    }

    /// Returns the path of the process's executable in its mount namespace. An executable that was replaced
    /// since the process started, as by an upgrade, keeps its former path.
    pub(crate) fn executable(&self) -> Result<String, Cause> {
        let link = readlinkat(self.directory.as_fd(), "exe", Vec::new()).map_err(unreadable)?;
        let path = link.to_string_lossy();
        Ok(path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned())
    }

    /// Opens a file or directory of the process in `/proc` with `O_PATH`, following a link.
    pub(super) fn file(&self, path: &str) -> Result<OwnedFd, Cause> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        openat(self.directory.as_fd(), path, flags, Mode::empty()).map_err(unreadable)
    }

    /// Whether the process is in our user namespace, so that its capabilities are valid here. Returns false
    /// if that is unknown.
    pub(crate) fn is_in_our_user_namespace(&self) -> bool {
        let theirs = statat(self.directory.as_fd(), "ns/user", AtFlags::empty());
        let ours = statat(CWD, "/proc/self/ns/user", AtFlags::empty());
        matches!((theirs, ours), (Ok(theirs), Ok(ours)) if theirs.st_ino == ours.st_ino)
    }

    /// The network namespace.
    pub(crate) fn netns(&self) -> Result<Netns, Cause> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(self.directory.as_fd(), "ns/net", flags, Mode::empty()).map_err(unreadable)?;
        Netns::of_file(file, format!("/proc/{}/ns/net", self.id.pid).into()).map_err(|error| error.cause)
    }

    /// Calls `each` with every numeric name in one of the process's directories in `/proc`, until `each`
    /// returns false.
    pub(crate) fn numbers(&self, path: &str, each: impl FnMut(u32) -> bool) -> Result<(), Cause> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(self.directory.as_fd(), path, flags, Mode::empty())
            .and_then(|directory| numbers(directory.as_fd(), each))
            .map_err(unreadable)
    }
}

/// Lists the pids of all processes in this `/proc`, in no particular order.
///
/// # Errors
/// If `/proc` cannot be listed.
pub fn pids() -> Result<Vec<Pid>, KernelError> {
    let mut pids = Vec::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, "/proc", flags, Mode::empty())
        .and_then(|proc| {
            numbers(proc.as_fd(), |pid| {
                pids.push(Pid(pid));
                pids.len() < PROCESSES_MAX
            })
        })
        .map_err(|errno| KernelError::errno("list the processes in /proc", errno))?;
    Ok(pids)
}

/// Describes the privilege that is required for inspecting another user's process on this host. Some calls
/// report a security module's EACCES as EPERM.
///
/// Kernel: 6.18, `kernel/ptrace.c` `__ptrace_may_access()`, `security/yama/yama_lsm.c`
/// `yama_ptrace_access_check()`, `security/apparmor/lsm.c` `apparmor_ptrace_access_check()`, `kernel/pid.c`
/// `__pidfd_fget()`.
pub(super) fn ptrace_needs() -> String {
    let needs = "CAP_SYS_PTRACE in the process's user namespace";
    let needs = match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
        Ok(scope) => format!("{needs}, and kernel.yama.ptrace_scope below 3 (it is {})", scope.trim()),
        Err(_) => needs.to_owned(),
    };
    sys::lsm::needs_under_confinement(needs)
}

/// Converts the error of reading an entry in a process's `/proc` directory.
pub(super) fn unreadable(errno: Errno) -> Cause {
    match errno {
        Errno::NOENT | Errno::SRCH => Cause::Gone("it has ended".to_owned()),
        Errno::ACCESS | Errno::PERM => Cause::Denied { errno, needs: ptrace_needs() },
        other => Cause::Errno(other),
    }
}

fn absent(call: &str, since: KernelVersion) -> Cause {
    Cause::Absent { needs: call.to_owned(), since: Some(since) }
}

/// Calls `each` with every numeric name in the directory, until `each` returns false.
fn numbers(directory: BorrowedFd<'_>, mut each: impl FnMut(u32) -> bool) -> Result<(), Errno> {
    let mut space = [MaybeUninit::<u8>::uninit(); READ_BYTES];
    let mut entries = RawDir::new(directory, &mut space);
    while let Some(entry) = entries.next() {
        let number = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if number.is_some_and(|number| !each(number)) {
            break;
        }
    }
    Ok(())
}

/// Reads a file as a whole, replacing the content of `into`.
fn read_at(directory: BorrowedFd<'_>, path: &str, into: &mut Vec<u8>) -> Result<(), Errno> {
    let file = openat(directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    into.clear();
    loop {
        if into.len() > FILE_BYTES_MAX {
            return Err(Errno::FBIG);
        }
        into.reserve(READ_BYTES);
        match rustix::io::read(&file, rustix::buffer::spare_capacity(into)) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
