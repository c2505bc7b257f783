//! Selection of processes: by an operator's criteria, or for an observation of the host.

use model::{NetnsId, Patterns, Pid};

/// What a process must be like. Every condition that is given must hold; at least one must be given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Criteria {
    /// Its executable: a path, or a bare file name; also a symbolic link to it, as the process's own file system has it.
    pub exe: Option<Patterns>,
    /// The cgroup that it is in or below, as a path from the cgroup root.
    pub cgroup: Option<Patterns>,
    /// The systemd unit that it belongs to; without a type, a service.
    pub unit: Option<Patterns>,
    /// Its pod: see [`crate::process::Names::is_pod`].
    pub pod: Option<Patterns>,
    /// Its container: see [`crate::process::Names::is_container`].
    pub container: Option<Patterns>,
    /// A port that it serves: with a TCP listener, or a UDP socket that is not connected.
    pub port: Option<u16>,
    /// Its effective user.
    pub uid: Option<u32>,
    /// The network namespace that it lives in.
    pub netns: Option<NetnsId>,
}

/// Which processes to observe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Processes {
    /// None at all.
    #[default]
    None,
    /// These.
    Only(Vec<Pid>),
    /// Every process in the namespace that holds an internet socket, or an io_uring with a registered one.
    Networking,
    /// As `Networking`, and these, which may be in other namespaces.
    NetworkingAnd(Vec<Pid>),
}
