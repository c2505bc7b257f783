//! The epolls and sockets of a process, read in the kernel without touching the process.

mod scanner;

pub use scanner::{EpollFile, EpollScanner, ScannedEpoll, ScannedSocket};
