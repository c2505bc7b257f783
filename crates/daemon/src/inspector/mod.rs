//! Inspects untrusted processes in worker processes that can be abandoned.
//!
//! Reading an object of another process takes that process's locks: an epoll's, a socket's, an io_uring's.
//! Its owner can hold such a lock indefinitely, by making the kernel copy to or from a page whose file system
//! never answers. A process that waits for the lock cannot even be killed. Therefore a worker waits instead:
//! a process that holds no lock of the daemon or the journal. A worker announces which process it is about to
//! inspect. If it then neither answers nor runs for [`PATIENCE`], it is killed and abandoned, the inspected
//! process counts as "not readable", and another worker continues.

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

/// The only argument of a worker process.
pub const WORKER: &str = "inspect-worker";

/// How long a worker may be blocked on one process.
pub(crate) const PATIENCE: Duration = Duration::from_millis(400);

/// Maximum CPU time of a worker per process, in clock ticks (10 ms).
const LONGEST_TICKS: u64 = 200;

/// How long a worker may take to start.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// Time limit for all processes together, once one of them has not answered. Processes of users without such
/// a process are inspected first.
const ALL_TOGETHER: Duration = Duration::from_millis(1200);

/// How many processes of one user may block a worker in one search. After that, the user's other processes
/// are skipped.
const STALLS_MAX: usize = 2;

/// How many workers may be blocked on one user's processes. At this limit, the user's processes are skipped.
const WAITING_MAX: usize = 4;

/// How long a process is skipped after it did not answer, and at least as long as it blocks a worker.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// How many users' processes are inspected in parallel, once a process has not answered.
const SIDE_BY_SIDE: usize = 6;

/// The maximum size of a request: enough for the pids of a busy host.
const REQUEST_BYTES_MAX: usize = 8 << 20;

/// The maximum size of an answer.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// A request to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    /// Inspect these processes: all, or those that use the network in this namespace, whose file the client
    /// holds open.
    Processes { netns: String, pids: Vec<Pid>, networking: bool },
    /// Find which of these processes hold an AF_XDP socket of the namespace with this cookie.
    AfXdp { cookie: Option<u64>, pids: Vec<Pid> },
    /// List the epolls of a process.
    Epolls(ProcessId),
    /// Check whether two names refer to the same epoll.
    Same(EpollId, EpollId),
    /// Read the current value of this setting.
    Read(Setting),
    /// Write this setting.
    Write(Setting),
}

/// A message of a worker. [`Answer::At`] may be sent any number of times before the actual answer.
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

/// The owner whose processes are inspected together: a user, or all foreign user namespaces, where one user
/// may have many uids.
type Group = ProcessOwner;
