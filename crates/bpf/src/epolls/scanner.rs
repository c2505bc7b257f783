//! Scans a process's files with a BPF iterator.

use std::os::fd::AsFd;

use model::{EpollParams, Fd, NapiId, Pid};
use sys::error::KernelError;

use crate::iterated;
use crate::loaded::Loaded;
use crate::mirrored::{Mirrored as _, mirrored};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/epolls.bpf.o"));

/// The maximum output of a scan in bytes: 4 million records, four times the default of `fs.nr_open` (Linux
/// 6.18).
const SCAN_BYTES_MAX: u64 = 4 * (1 << 20) * RECORD_BYTES as u64;
/// `sizeof(struct epoll_record)` and `sizeof(struct socket_record)`.
const RECORD_BYTES: usize = 24;
/// Flags, as in `epolls.h`.
const EPOLL_HAS_PARAMS: u8 = 1;
const EPOLL_EVENTS_ONLY: u8 = 2;

/// Identifies an epoll while it exists, by the address of its `struct eventpoll`, which all of its
/// descriptors share. A later epoll may get the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpollFile(u64);

/// A descriptor of a process that refers to an epoll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedEpoll {
    /// The descriptor.
    pub fd: Fd,
    /// The epoll to which the descriptor refers.
    pub file: EpollFile,
    /// The NAPI that the epoll busy-polls, which is the NAPI of the socket with the latest event.
    pub napi: Option<NapiId>,
    /// The busy-poll parameters; `None` before Linux 6.9, which introduced them.
    pub params: Option<EpollParams>,
}

/// A descriptor of a process that refers to an internet socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedSocket {
    /// The descriptor.
    pub fd: Fd,
    /// The socket's inode.
    pub inode: u64,
    /// The NAPI that delivered the socket's last packet.
    pub napi: Option<NapiId>,
    /// The maximum number of packets per busy poll; 0 means the kernel's default of 8.
    pub busy_poll_budget: u16,
}

/// Finds the epolls and internet sockets of processes.
///
/// A scan reads the process's file table in the kernel: it opens no descriptors and needs no permission for
/// the process. Like `/proc/PID/fd`, it uses the file table of the main thread. Needs CAP_BPF and
/// CAP_PERFMON.
#[derive(Debug)]
pub struct EpollScanner {
    loaded: Loaded,
    napi_id_min: u32,
}

impl EpollScanner {
    /// Loads the iterators. They run only during scans.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] without kernel BTF; otherwise the kernel's error with the verifier's message.
    pub fn load() -> Result<Self, KernelError> {
        Ok(Self { loaded: Loaded::load("epolls", OBJECT, |_| Ok(()))?, napi_id_min: napi_id_min() })
    }

    /// Returns the epolls of a process, ordered by descriptor; empty if the process has exited.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn epolls(&self, process: Pid) -> Result<Vec<ScannedEpoll>, KernelError> {
        let bytes = self.scan("epolls_of", process)?;
        Ok(bytes.chunks_exact(RECORD_BYTES).map(|record| self.epoll(record)).collect())
    }

    /// Returns the internet sockets of a process, ordered by descriptor; empty if the process has exited.
    ///
    /// # Errors
    /// As for [`EpollScanner::epolls`].
    pub fn sockets(&self, process: Pid) -> Result<Vec<ScannedSocket>, KernelError> {
        let bytes = self.scan("sockets_of", process)?;
        Ok(bytes.chunks_exact(RECORD_BYTES).filter_map(|record| self.socket(record)).collect())
    }

    fn scan(&self, program: &str, process: Pid) -> Result<Vec<u8>, KernelError> {
        let what = || format!("files of process {process}");
        let iterator = sys::bpf::iterate_files_of(self.loaded.program(program)?.as_fd(), process.0);
        iterated::bytes(iterator.map_err(|errno| KernelError::errno(what(), errno))?, SCAN_BYTES_MAX)
            .map_err(|error| KernelError { what: what(), ..error })
    }

    /// Reads `struct epoll_record`.
    fn epoll(&self, record: &[u8]) -> ScannedEpoll {
        let record = EpollRecord::of(record);
        let params = EpollParams {
            busy_poll_usecs: record.busy_poll_usecs,
            busy_poll_budget: record.busy_poll_budget,
            prefer_busy_poll: record.prefer_busy_poll != 0,
            events_only: record.known & EPOLL_EVENTS_ONLY != 0,
        };
        ScannedEpoll {
            fd: Fd(record.fd),
            file: EpollFile(record.eventpoll),
            napi: self.napi(record.napi_id),
            params: (record.known & EPOLL_HAS_PARAMS != 0).then_some(params),
        }
    }

    /// Parses a `struct socket_record`. Returns `None` for a socket of another address family.
    fn socket(&self, record: &[u8]) -> Option<ScannedSocket> {
        /// `include/linux/socket.h` `AF_INET`, `AF_INET6`.
        const INTERNET: [u16; 2] = [2, 10];
        let SocketRecord { inode, fd, napi_id, family, busy_poll_budget, .. } = SocketRecord::of(record);
        INTERNET.contains(&family).then_some(ScannedSocket {
            fd: Fd(fd),
            inode,
            napi: self.napi(napi_id),
            busy_poll_budget,
        })
    }

    /// Returns the NAPI with this id. Small ids are not NAPIs but CPU numbers; packets of loopback and of the
    /// backlog have them.
    fn napi(&self, id: u32) -> Option<NapiId> {
        (id >= self.napi_id_min).then_some(NapiId(id))
    }
}

mirrored! {
    /// `struct epoll_record`.
    struct EpollRecord = "epoll_record" {
        eventpoll: u64,
        fd: u32,
        napi_id: u32,
        busy_poll_usecs: u32,
        busy_poll_budget: u16,
        prefer_busy_poll: u8,
        known: u8,
    }

    /// `struct socket_record`.
    struct SocketRecord = "socket_record" {
        inode: u64,
        fd: u32,
        napi_id: u32,
        family: u16,
        busy_poll_budget: u16,
        pad: [u8; 4],
    }
}

/// Both kinds of records have the same size.
const _: () = assert!(EpollRecord::BYTES == RECORD_BYTES && SocketRecord::BYTES == RECORD_BYTES);

/// Returns the smallest NAPI id, which is one more than the number of CPUs that the kernel supports.
///
/// Kernel: 6.18, `include/net/busy_poll.h` `MIN_NAPI_ID`, `NR_CPUS + 1`; `NR_CPUS` is the value of
/// `/sys/devices/system/cpu/kernel_max` plus one. If the file cannot be read, only id 0 counts as no NAPI.
pub(crate) fn napi_id_min() -> u32 {
    let last = std::fs::read_to_string("/sys/devices/system/cpu/kernel_max").ok();
    last.and_then(|text| text.trim().parse::<u32>().ok()).map_or(1, |last| last.saturating_add(2))
}

#[cfg(test)]
mod layout {
    use super::*;
    use crate::mirrored::same_as_compiled;

    same_as_compiled!(OBJECT, EpollRecord, SocketRecord);
}
