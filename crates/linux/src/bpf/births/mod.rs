//! Births and deaths of processes and of listening sockets, and births of epolls where the kernel lets them be heard.

mod listener;

pub use listener::{Birth, Births, NAMES_MAX, Told, Waited};
