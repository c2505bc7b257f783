//! The epolls and sockets of a process, read in the kernel without touching the process.

mod scanner;

pub(super) use scanner::napi_id_min;
pub use scanner::{EpollFile, EpollScanner, ScannedEpoll, ScannedSocket};
