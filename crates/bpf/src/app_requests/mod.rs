//! `SO_NETPOLICY` and `PR_SET_NETPOLICY`: the policies that applications request for their sockets and
//! themselves.
//!
//! The policy numbers are defined in `include/netpolicy.h`. Their meaning is decided elsewhere.

mod cgroup;
mod reader;
mod store;

pub use cgroup::Cgroup;
pub use reader::RequestReader;
pub use store::{Choice, Enabled, RequestSource, RequestStore, SocketRequest};
