//! Inspects untrusted processes in worker processes that can be abandoned.
//!
//! To read an object of another process, such as an epoll, a socket or an io_uring, the kernel takes the
//! object's lock. The owner can hold such a lock indefinitely, by making the kernel copy to or from a page
//! whose file system never answers. A process that waits for the lock cannot even be killed. Therefore a
//! worker waits instead: a process that holds no lock of the daemon or the journal. A worker announces which
//! process it is about to inspect. If the worker then neither answers nor runs for [`PATIENCE`], it is killed
//! and abandoned, the inspected process counts as "not readable", and another worker continues.

mod client;
mod worker;

use std::time::Duration;

use linux::attach::EpollsOf;
use linux::process::ProcessOwner;
use model::host::{Process, Unread};
use model::{EpollId, Pid, ProcessId, Setting};
use serde::{Deserialize, Serialize};

pub use client::install;
pub use worker::serve;

use crate::attach_service::SerializedError;

/// The argument that makes this program a worker process; it must be the only one.
pub const WORKER: &str = "inspect-worker";

/// How long a worker may be blocked on one process before it is abandoned.
pub(crate) const PATIENCE: Duration = Duration::from_millis(400);

/// The maximum CPU time of a worker per process, in clock ticks (10 ms).
const LONGEST_TICKS: u64 = 200;

/// How long a worker may take to start.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// The time limit for all processes together once one of them has not answered. Processes of users without
/// such a process are inspected first.
const ALL_TOGETHER: Duration = Duration::from_millis(1200);

/// The maximum number of a user's processes that may block a worker in one search. After that, the user's
/// other processes are skipped.
const STALLS_MAX: usize = 2;

/// The maximum number of workers that may be blocked on one user's processes. At this limit, the user's
/// processes are skipped.
const WAITING_MAX: usize = 4;

/// How long a process is skipped after it did not answer. It is also skipped as long as it blocks a worker.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// The number of users whose processes are inspected in parallel once a process has not answered.
const SIDE_BY_SIDE: usize = 6;

/// The maximum size of a request in bytes: enough for the pids of a busy host.
const REQUEST_BYTES_MAX: usize = 8 << 20;

/// The maximum size of an answer in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// A request to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    /// Inspect these processes: all of them, or with `networking` only those that use the network in this
    /// namespace. The client holds the namespace's file open.
    Processes { netns: String, pids: Vec<Pid>, networking: bool },
    /// Find which of these processes hold an AF_XDP socket of the network namespace with this cookie.
    AfXdp { cookie: Option<u64>, pids: Vec<Pid> },
    /// List the epolls of a process.
    Epolls(ProcessId),
    /// Check whether two identifiers refer to the same epoll.
    Same(EpollId, EpollId),
    /// Read the current value of this setting.
    Read(Setting),
    /// Write this setting.
    Write(Setting),
}

/// A message from a worker. Any number of [`Answer::At`] may precede the actual answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    /// The worker is about to inspect this process.
    At(Pid),
    Processes {
        found: Vec<Process>,
        unread: Vec<Unread>,
    },
    Holders(Vec<ProcessId>),
    Epolls(EpollsOf),
    Same(bool),
    Value(Setting),
    Written,
    Failed(SerializedError),
}

/// The owner whose processes are treated as a group: a user, or all users of other user namespaces together,
/// because one user may have many uids there.
type Group = ProcessOwner;
