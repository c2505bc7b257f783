//! Operations on a file or a block device, past the page cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use model::StorageWorkload;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::ServeError;
use super::worker::Wants;
use crate::storage::{HEADER_BYTES, Operation, answer};

/// `EIO`: what an operation failed with that failed without a number, such as a read beyond the end.
const EIO: i32 = 5;

/// The file or block device.
#[derive(Debug)]
pub(super) struct Store {
    file: File,
}

impl Store {
    pub(super) fn open(path: &Path, writable: bool) -> Result<Self, ServeError> {
        let flags = OFlags::DIRECT | OFlags::CLOEXEC;
        // The flags are those of the open(2) of this machine; the sign bit is not among them.
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

/// A connection's place in its operation. One at a time: the next is not read before this one is answered.
#[derive(Debug)]
pub(super) struct Storage {
    /// Room for a header and the data behind it, these at an address that direct input and output take.
    room: Box<[u8]>,
    /// Where the data begin in `room`; the header is right before.
    data: usize,
    /// Bytes of the request that have come.
    come: usize,
    /// The operation, once its header has come.
    operation: Option<Operation>,
    /// Where in `room` the rest of an answer begins and ends.
    rest: Option<(usize, usize)>,
}

impl Storage {
    pub(super) fn new() -> Self {
        let alignment = StorageWorkload::ALIGNMENT as usize;
        // Pages that no operation uses are never touched, and cost nothing.
        let room = vec![0_u8; StorageWorkload::BYTES_MAX as usize + 2 * alignment].into_boxed_slice();
        let first = room.as_ptr().align_offset(alignment);
        let data = if first >= HEADER_BYTES { first } else { first + alignment };
        Self { room, data, come: 0, operation: None, rest: None }
    }

    /// Reads what has come, performs an operation that is complete, and answers it.
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

    /// The operation whose request is complete; nothing to be done with the connection on `Err`.
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
