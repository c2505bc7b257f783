//! Opens regular files only. A user who can write to the journal's directory could put a pipe in a file's place, and
//! opening a pipe blocks.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Does not block on a pipe, and does not make a terminal the controlling one.
const WITHOUT_BLOCKING: i32 = OFlags::NONBLOCK.union(OFlags::NOCTTY).bits().cast_signed();

/// Opens a regular file, and refuses anything else.
///
/// # Errors
/// The kernel's refusal, or what stands in the file's place.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = match options.custom_flags(WITHOUT_BLOCKING).open(path) {
        // A pipe without a reader, or a socket.
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
            return Err(no_file(std::fs::metadata(path)?.file_type()));
        }
        file => file?,
    };
    let kind = file.metadata()?.file_type();
    if kind.is_file() { Ok(file) } else { Err(no_file(kind)) }
}

/// Opens a file to read it.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().read(true))
}

fn no_file(kind: FileType) -> io::Error {
    let what = if kind.is_fifo() {
        "a pipe"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}, and should be a file"))
}
