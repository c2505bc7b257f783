//! A process that holds `CAP_SYS_PTRACE` so that the daemon need not: it finds processes, inspects those that a request
//! names, and sets the busy-poll parameters of their epolls and io_urings. It opens no file for a client and hands out no
//! descriptor.
//!
//! Its socket accepts root's connections alone, by `SO_PEERCRED`; any other client is rejected and logged. A
//! request and an answer are JSON with a zero byte behind, as on the daemon's own socket.

mod client;
mod server;

use std::collections::BTreeSet;

use linux::process::Criteria;
use model::host::{Process, Unread};
use model::{KernelVersion, NetnsId, Patterns, Pid, ProcessId, Setting};
use serde::{Deserialize, Serialize};

pub use client::{go_through, go_through_once_it_answers};
pub use server::run;

use linux::{Cause, Errno, KernelError};

/// Its socket.
pub const SOCKET: &str = "/run/netpolicy/attach";

/// The longest request. A knob, or the pids that are asked about.
const REQUEST_BYTES_MAX: usize = 256 * 1024;

/// The longest answer: all that 10 000 sockets and their epolls come to, many times over.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    /// What these processes are, or all that use the network of this namespace.
    Processes { netns: u64, only: Option<Vec<Pid>> },
    /// Which processes are like this.
    Find(Wanted),
    /// Whether a process is like this.
    Meets { wanted: Wanted, pid: Pid },
    /// The processes that hold any of these sockets, given by their inodes.
    Holders(BTreeSet<u64>),
    /// The value of a knob like this.
    Read(Setting),
    /// Give a knob this value.
    Write(Setting),
}

/// A reply.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Processes { found: Vec<Process>, unread: Vec<Unread> },
    Found { processes: Vec<ProcessId>, unread: Vec<Unread> },
    Holders(Vec<Pid>),
    Value(Setting),
    Written,
    Failed(Failure),
}

/// What a process must be like, as it goes over the socket: [`Criteria`].
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

/// An error of the kernel room, as it goes over the socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
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

impl From<KernelError> for Failure {
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

impl From<Failure> for KernelError {
    fn from(failure: Failure) -> Self {
        let Failure { what, kind, words, errno, since } = failure;
        // What is no number of the kernel's is no answer of the service's.
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
            let text = serde_json::to_string(&Failure::from(error.clone())).expect("text");
            let back: Failure = serde_json::from_str(&text).expect("a failure");
            assert_eq!(KernelError::from(back), error);
        }
    }
}
