//! Files that are what they should be: who may write into the journal's directory could put a pipe in a file's place, and
//! opening that would wait for ever.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Neither waits for the other end of a pipe nor makes a terminal ours.
const AT_ONCE: i32 = OFlags::NONBLOCK.union(OFlags::NOCTTY).bits().cast_signed();

/// Opens a file, and refuses whatever is none.
///
/// # Errors
/// The kernel's refusal, or what stands in the file's place.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = match options.custom_flags(AT_ONCE).open(path) {
        // A pipe that nobody reads, or a socket.
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
