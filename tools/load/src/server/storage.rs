//! Operations on a file or a block device with `O_DIRECT`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use model::StorageWorkload;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::exchange::Wants;
use super::options::ServeError;

use crate::storage::{HEADER_BYTES, Operation, answer};

/// `EIO`: reported for an operation that failed without an error number, such as a read past the
/// end.
const EIO: i32 = 5;

/// The file or block device.
#[derive(Debug)]
pub(super) struct Store {
    file: File,
}

impl Store {
    pub(super) fn open(path: &Path, writable: bool) -> Result<Self, ServeError> {
        let flags = OFlags::DIRECT | OFlags::CLOEXEC;
        // The bits of open(2) on this machine fit in an i32: the sign bit is not used.
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        let file = OpenOptions::new().read(true).write(writable).custom_flags(flags).open(path);
        file.map(|file| Self { file }).map_err(|cause| ServeError::Open { path: path.to_owned(), cause })
    }

    fn perform(&self, operation: Operation, data: &mut [u8]) -> io::Result<()> {
        if operation.writes {
            self.file.write_all_at(data, operation.offset)
        } else {
            self.file.read_exact_at(data, operation.offset)
        }
    }
}

/// A connection's current operation. The next request is read only after this one is answered.
#[derive(Debug)]
pub(super) struct Storage {
    /// Space for a header followed by the data, which are aligned for direct I/O.
    room: Box<[u8]>,
    /// Where the data begin in `room`; the header is directly before them.
    data: usize,
    /// Bytes of the request that have arrived.
    come: usize,
    /// The operation, once its header has arrived.
    operation: Option<Operation>,
    /// The start and end in `room` of the unwritten part of an answer.
    rest: Option<(usize, usize)>,
}

impl Storage {
    pub(super) fn new() -> Self {
        let alignment = StorageWorkload::ALIGNMENT as usize;
        // Pages that no operation uses are never touched and cost no memory.
        let room = vec![0_u8; StorageWorkload::BYTES_MAX as usize + 2 * alignment].into_boxed_slice();
        let first = room.as_ptr().align_offset(alignment);
        let data = if first >= HEADER_BYTES { first } else { first + alignment };
        Self { room, data, come: 0, operation: None, rest: None }
    }

    /// Reads the available bytes, performs the operation if its request is complete, and answers
    /// it.
    pub(super) fn turn(&mut self, socket: &OwnedFd, store: &Store) -> Wants {
        if self.rest.is_none() {
            match self.hear(socket) {
                Ok(Some(operation)) => self.perform(operation, store),
                Ok(None) => return Wants::Read,
                Err(()) => return Wants::End,
            }
        }
        while let Some((begin, end)) = self.rest {
            match send(socket, &self.room[begin..end], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(bytes) if begin + bytes == end => self.rest = None,
                Ok(bytes) => self.rest = Some((begin + bytes, end)),
                Err(Errno::AGAIN | Errno::INTR) => return Wants::Write,
                Err(_) => return Wants::End,
            }
        }
        Wants::Read
    }

    /// Reads from the socket. Returns the operation once its request is complete; on `Err` the
    /// connection must be closed.
    fn hear(&mut self, socket: &OwnedFd) -> Result<Option<Operation>, ()> {
        loop {
            let wanted = HEADER_BYTES + self.operation.map_or(0, |o| o.request_data_bytes() as usize);
            let begin = self.data - HEADER_BYTES;
            if self.come < wanted {
                match recv(socket, &mut self.room[begin + self.come..begin + wanted], RecvFlags::DONTWAIT) {
                    Ok((0, _)) => return Err(()),
                    Ok((bytes, _)) => self.come += bytes,
                    Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                    Err(_) => return Err(()),
                }
                continue;
            }
            match self.operation {
                Some(operation) => {
                    (self.operation, self.come) = (None, 0);
                    return Ok(Some(operation));
                }
                None => {
                    let header = self.room[begin..self.data].first_chunk().ok_or(())?;
                    self.operation = Some(Operation::decode(header).map_err(|_| ())?);
                }
            }
        }
    }

    fn perform(&mut self, operation: Operation, store: &Store) {
        let data = self.data..self.data + operation.bytes as usize;
        let done = store.perform(operation, &mut self.room[data]);
        let errno = done.err().map(|error| error.raw_os_error().unwrap_or(EIO));
        let begin = self.data - HEADER_BYTES;
        self.room[begin..self.data].copy_from_slice(&answer(errno));
        self.rest = Some((begin, begin + operation.answer_bytes() as usize));
    }
}
