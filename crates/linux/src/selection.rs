//! Selection of processes: by an operator's criteria, or for an observation of the host.

use model::host::Unread;
use model::{NetnsId, Patterns, Pid, ProcessId};

/// The processes that meet a service's criteria, and those for which that could not be determined.
pub type FoundProcesses = (Vec<ProcessId>, Vec<Unread>);

/// Criteria for a process. At least one criterion must be given, and a process must meet all that are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Criteria {
    /// The executable: a path, or a bare file name; also a symbolic link to it, as seen in the process's own
    /// mount namespace.
    pub exe: Option<Patterns>,
    /// The cgroup that contains it, directly or indirectly, as a path from the cgroup root.
    pub cgroup: Option<Patterns>,
    /// The systemd unit that it belongs to; a name without a type is a service.
    pub unit: Option<Patterns>,
    /// The pod: see [`crate::process::Names::is_pod`].
    pub pod: Option<Patterns>,
    /// The container: see [`crate::process::Names::is_container`].
    pub container: Option<Patterns>,
    /// A port that it serves: with a TCP listener, or an unconnected UDP socket.
    pub port: Option<u16>,
    /// The effective user.
    pub uid: Option<u32>,
    /// The network namespace.
    pub netns: Option<NetnsId>,
}

/// Which processes to observe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Processes {
    /// None.
    #[default]
    None,
    /// The processes with these pids.
    Only(Vec<Pid>),
    /// Every process in the namespace that holds an internet socket, or an io_uring with a registered socket.
    Networking,
    /// Like `Networking`, and also these processes, which may be in other namespaces.
    NetworkingAnd(Vec<Pid>),
}
