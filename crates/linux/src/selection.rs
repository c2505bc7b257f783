//! Selects processes: by an operator's criteria, or for an observation of the host.

use model::host::Unread;
use model::{NetnsId, Patterns, Pid, ProcessId};

/// The processes that meet a service's criteria, and the processes for which the criteria could not be
/// checked.
pub type FoundProcesses = (Vec<ProcessId>, Vec<Unread>);

/// Criteria for a process. At least one criterion must be given, and a process must meet all that are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Criteria {
    /// The process's executable: a path, a bare file name, or a symbolic link to the executable, as seen in
    /// the process's own mount namespace.
    pub exe: Option<Patterns>,
    /// The cgroup that contains the process, directly or indirectly, as a path from the cgroup root.
    pub cgroup: Option<Patterns>,
    /// The systemd unit to which the process belongs; a name without a type is a service.
    pub unit: Option<Patterns>,
    /// The pod of the process: see [`crate::process::Names::is_pod`].
    pub pod: Option<Patterns>,
    /// The container of the process: see [`crate::process::Names::is_container`].
    pub container: Option<Patterns>,
    /// A port that the process serves, with a TCP listener or an unconnected UDP socket.
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
    /// The processes of `Networking`, and these processes, which may be in other namespaces.
    NetworkingAnd(Vec<Pid>),
}
