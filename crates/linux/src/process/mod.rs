//! Identifies and accesses running processes, and changes settings of theirs that can be changed from
//! outside.
//!
//! A process is held by a pidfd, which never refers to another process, and its start time is compared with
//! the observed start time. Its files are accessed by `pidfd_getfd`, which works for any program, user and
//! namespace, but requires `CAP_SYS_PTRACE`.

mod affinity;
mod cgroup;
pub mod container;
mod cpu_wait;
mod cpuset;
mod descriptors;
mod epoll;
mod executable;
mod find;
pub(crate) mod kthread;
mod owner;
mod pinned;
mod place;
mod ports;
pub mod preload;
mod prompt;
mod reuseport;
mod ring;
mod same_epoll;
mod socket;
mod stat;
mod thread;
mod waiting;

pub use crate::selection::{Criteria, FoundProcesses};
pub use affinity::{cpus_of_this_thread, pin_this_thread, read_thread_affinity, write_thread_affinity};
pub use cpu_wait::CpuWaits;
pub use epoll::{epolls_of, read_epoll, write_epoll};
pub use executable::started_as;
pub use find::{find, find_each, holders_of_af_xdp_among, holders_of_each, holders_of_sockets, meets};
pub(crate) use find::{holders_of_af_xdp, holders_of_kind};
pub use kthread::by_name as napi_threads_named;
pub use owner::{ProcessOwner, cpu_ticks, is_runnable, owner};
pub use pinned::{identify, identify_kernel_thread, is_running, pids};
pub use place::{cgroup_of, service_of};
pub use ports::{ListeningPorts, connections, listening};
pub use prompt::PromptThread;
pub use ring::{read_ring_napi, write_ring_napi};
pub use same_epoll::{is_same_epoll, same_epoll};
pub use socket::{read_socket, read_socket_budget, write_socket};
pub use thread::{path_of_our, thread_name, threads_of};

pub(crate) use container::{Names, container_of};
pub(crate) use cpuset::{Cpusets, isolated_partitions};
pub(crate) use descriptors::{FdKind, descriptors};
pub(crate) use epoll::{EPOLLS_MAX, WatchedFiles, inspected_epolls, params_if_any};
pub(crate) use pinned::PinnedProcess;
pub(crate) use reuseport::{read_spread, shared_listeners, write_spread};
pub(crate) use ring::observed as observed_ring;
pub(crate) use socket::polling as socket_polling;
pub(crate) use stat::{Stat, TaskStatus};
pub(crate) use waiting::epoll_waited_on;
