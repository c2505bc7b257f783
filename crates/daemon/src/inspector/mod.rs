//! Looks into processes that are not trusted, in processes that can be given up.
//!
//! A read of another process's object takes that process's own locks: an epoll's, a socket's, an io_uring's. Its owner holds such
//! a lock for as long as it likes, if the kernel copies to or from a page whose file system never answers, and who waits for the
//! lock cannot even be killed. So a worker waits instead: a process that holds no lock of the daemon's or the journal's.
//! It says which process it is about to look at; if it then neither answers nor runs for [`PATIENCE`], it is killed and
//! left behind, that process is "not readable", and another worker goes on with the others.

mod client;
mod worker;

use std::time::Duration;

use linux::attach::EpollsOf;
use linux::process::Owner;
use model::host::{Process, Unread};
use model::{EpollId, Pid, ProcessId, Setting};
use serde::{Deserialize, Serialize};

pub use client::install;
pub use worker::serve;

use crate::attach_service::Failure;

/// The argument that makes a program a worker, instead of all others.
pub const WORKER: &str = "inspect-worker";

/// How long a worker may be with one process without running.
pub(crate) const PATIENCE: Duration = Duration::from_millis(400);

/// How much CPU time of a worker one process may take, in clock ticks (10 ms).
const LONGEST_TICKS: u64 = 200;

/// How long a worker may take to start.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// How long all processes together may take, once one of them did not answer. Those of other users come first.
const ALL_TOGETHER: Duration = Duration::from_millis(1200);

/// How many processes of one user may keep a worker waiting in one search; the others of this user are then not looked at.
const STALLS_MAX: usize = 2;

/// How long a process that did not answer is not asked again, and for as long as a worker still waits for it.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// How many users' processes are looked at side by side, once a process did not answer.
const SIDE_BY_SIDE: usize = 6;

/// The longest request: the pids of a busy host.
const REQUEST_BYTES_MAX: usize = 8 << 20;

/// The longest answer.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// A request to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    /// What these processes are: all, or those that use the network of this namespace, whose file the client holds open.
    Processes { netns: String, pids: Vec<Pid>, networking: bool },
    /// Which of these processes hold an AF_XDP socket of the namespace with this cookie.
    AfXdp { cookie: Option<u64>, pids: Vec<Pid> },
    /// The epolls of a process.
    Epolls(ProcessId),
    /// Whether two names are of one epoll.
    Same(EpollId, EpollId),
    /// The value of a knob like this.
    Read(Setting),
    /// Give a knob this value.
    Write(Setting),
}

/// What a worker says. Any number of [`Answer::At`] come before the answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    /// The worker is about to look at this process.
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
    Failed(Failure),
}

/// Whose processes are looked at together: those of a user, or those of user namespaces other than ours, in which one user may
/// have many numbers.
type Group = Owner;
