//! Opens regular files only. A user with write access to the journal's directory could replace a file by a
//! pipe, and opening a pipe can block.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Flags for `open(2)`: a pipe does not block, and a terminal does not become the controlling terminal.
const WITHOUT_BLOCKING: i32 = OFlags::NONBLOCK.union(OFlags::NOCTTY).bits().cast_signed();

/// Opens a regular file, and rejects anything else.
///
/// # Errors
/// The kernel's error, or an error that names the type of the file.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = match options.custom_flags(WITHOUT_BLOCKING).open(path) {
        // ENXIO: the file is a pipe without a reader, or a socket.
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
            return Err(no_file(std::fs::metadata(path)?.file_type()));
        }
        file => file?,
    };
    let kind = file.metadata()?.file_type();
    if kind.is_file() { Ok(file) } else { Err(no_file(kind)) }
}

/// Opens a file for reading.
///
/// # Errors
/// As for [`open`].
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
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}, expected a file"))
}
