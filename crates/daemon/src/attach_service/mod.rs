//! The attach service: a process that holds `CAP_SYS_PTRACE`, so that the daemon does not need it. The
//! service finds processes, inspects those that a request names, and sets the busy-poll parameters of their
//! epolls and io_urings. It opens no file for a client and passes on no descriptor.
//!
//! Its socket accepts only connections from root (`SO_PEERCRED`); other clients are rejected and logged.
//! Requests and answers are JSON followed by a zero byte, as on the daemon's own socket.

mod client;
mod server;

use std::collections::{BTreeMap, BTreeSet};

use linux::process::{Criteria, FoundProcesses};
use model::host::{Process, Unread};
use model::{KernelVersion, NetnsId, Patterns, Pid, Setting};
use serde::{Deserialize, Serialize};

pub use client::{check, go_through, go_through_once_it_answers};
pub use server::run;

use linux::{Cause, Errno, KernelError};

/// The default path of the service's socket.
pub const SOCKET: &str = "/run/netpolicy/attach";

/// The maximum size of a request in bytes. A request holds a setting or a list of pids.
const REQUEST_BYTES_MAX: usize = 256 * 1024;

/// The maximum number of criteria in a request. For each request, all processes are read only once.
const CRITERIA_MAX: usize = 512;

/// The maximum size of an answer in bytes: many times what 10 000 sockets and their epolls need.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    /// Inspect these processes, or all processes that use the network in this namespace.
    Processes { netns: u64, only: Option<Vec<Pid>> },
    /// For each of these criteria, find the matching processes, either among all processes or only this one.
    Find { wanted: Vec<Wanted>, only: Option<Pid> },
    /// For each of these sockets, given by inode, find the processes that hold it.
    Holders(BTreeSet<u64>),
    /// Read the current value of this setting.
    Read(Setting),
    /// Write this setting.
    Write(Setting),
}

/// A reply.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Processes { found: Vec<Process>, unread: Vec<Unread> },
    Found(Vec<FoundProcesses>),
    Holders(BTreeMap<u64, Vec<Pid>>),
    Value(Setting),
    Written,
    Failed(SerializedError),
}

/// [`Criteria`] for processes, in serialised form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    exe: Option<Patterns>,
    cgroup: Option<Patterns>,
    unit: Option<Patterns>,
    #[serde(default)]
    pod: Option<Patterns>,
    #[serde(default)]
    container: Option<Patterns>,
    port: Option<u16>,
    uid: Option<u32>,
    netns: Option<NetnsId>,
}

impl From<&Criteria> for Wanted {
    fn from(criteria: &Criteria) -> Self {
        let Criteria { exe, cgroup, unit, pod, container, port, uid, netns } = criteria.clone();
        Self { exe, cgroup, unit, pod, container, port, uid, netns }
    }
}

impl From<Wanted> for Criteria {
    fn from(wanted: Wanted) -> Self {
        let Wanted { exe, cgroup, unit, pod, container, port, uid, netns } = wanted;
        Self { exe, cgroup, unit, pod, container, port, uid, netns }
    }
}

/// An error of the kernel layer, in serialised form.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SerializedError {
    what: String,
    kind: Kind,
    words: String,
    errno: i32,
    since: Option<KernelVersion>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Errno,
    Denied,
    Absent,
    Gone,
    Away,
    Malformed,
}

impl From<KernelError> for SerializedError {
    fn from(error: KernelError) -> Self {
        let errno = error.number().map_or(0, Errno::raw_os_error);
        let (kind, words, since) = match error.cause {
            Cause::Errno(_) => (Kind::Errno, String::new(), None),
            Cause::Extack { message, .. } => (Kind::Denied, message, None),
            Cause::Denied { needs, .. } => (Kind::Denied, needs, None),
            Cause::Absent { needs, since } => (Kind::Absent, needs, since),
            Cause::Gone(words) => (Kind::Gone, words, None),
            Cause::Away(words) => (Kind::Away, words, None),
            Cause::Malformed(words) => (Kind::Malformed, words, None),
            cause @ Cause::ReadBack { .. } => (Kind::Malformed, cause.to_string(), None),
        };
        Self { what: error.what, kind, words, errno, since }
    }
}

impl From<SerializedError> for KernelError {
    fn from(failure: SerializedError) -> Self {
        let SerializedError { what, kind, words, errno, since } = failure;
        // This service never sends a number that is not an errno; treat such a number as EIO.
        let errno = if (1..4096).contains(&errno) { Errno::from_raw_os_error(errno) } else { Errno::IO };
        let cause = match kind {
            Kind::Errno => Cause::Errno(errno),
            Kind::Denied => Cause::Denied { errno, needs: words },
            Kind::Absent => Cause::Absent { needs: words, since },
            Kind::Gone => Cause::Gone(words),
            Kind::Away => Cause::Away(words),
            Kind::Malformed => Cause::Malformed(words),
        };
        Self { what, cause }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_error_says_the_same_at_the_other_end() {
        for cause in [
            Cause::Errno(Errno::PERM),
            Cause::Denied { errno: Errno::PERM, needs: "CAP_NET_ADMIN".to_owned() },
            Cause::Absent { needs: "EPIOCSPARAMS".to_owned(), since: Some(model::since::EPOLL_PARAMS) },
            Cause::Gone("the process has ended".to_owned()),
            Cause::Away("its device has fewer queues now".to_owned()),
            Cause::Malformed("x".to_owned()),
        ] {
            let error = KernelError { what: "memcached[812] epoll 5".to_owned(), cause };
            let text = serde_json::to_string(&SerializedError::from(error.clone())).expect("text");
            let back: SerializedError = serde_json::from_str(&text).expect("a failure");
            assert_eq!(KernelError::from(back), error);
        }
    }
}
