//! Reads the epolls and sockets of a process in the kernel, without disturbing the process.

mod scanner;

pub(super) use scanner::napi_id_min;
pub use scanner::{EpollFile, EpollScanner, ScannedEpoll, ScannedSocket};
