//! The daemon: keeps the policy true while links, queues, processes, sockets and files come and go.
//!
//! One thread and one epoll ([`house`]), no async runtime. What it tells others is in [`status`].

pub mod house;
pub mod status;

pub use house::{Door, Guest, House, Ready, Stay, Wishes};
pub use status::{Answer, Request, Shared, Status};
