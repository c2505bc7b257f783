//! `SO_NETPOLICY` and `PR_SET_NETPOLICY`: what applications ask for their sockets and themselves, by number.
//!
//! The numbers are those of `include/netpolicy.h`; what they mean is decided elsewhere.

mod cgroup;
mod reader;
mod store;

pub use cgroup::Cgroup;
pub use reader::WishReader;
pub use store::{Choice, Enabled, SocketWish, WishSource, WishStore};
