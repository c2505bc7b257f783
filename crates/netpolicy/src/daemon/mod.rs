//! The daemon: keeps the policy true while links, queues, processes, sockets and files come and go.
//!
//! One thread and one epoll ([`house`]), no async runtime. Read in this order: [`converge`] (what to do, and when: pure),
//! `keeper` (what the daemon holds, and a turn of its loop), `ears` (what it hears with), `look` (what is known of the
//! host, brought up to date), `placing` (what can be done of what is asked), `wished` (what applications ask for by themselves), `act` (commits,
//! repairs), `put_back` (lets go),
//! `asked` and [`status`] (what others may ask, and read).

mod act;
pub mod args;
mod asked;
pub mod converge;
#[cfg(test)]
mod converge_test;
mod ears;
pub mod house;
mod keeper;
mod look;
mod options;
mod placing;
#[cfg(test)]
mod placing_test;
mod put_back;
mod report;
mod sole;
pub mod status;
mod wants;
mod wished;

pub use house::{Door, Guest, House, Ready, Stay, Wishes};
pub(crate) use keeper::Keeper;
pub(crate) use options::Options;
pub(crate) use report::objects;
pub use status::{Answer, Request, Shared, Status};
