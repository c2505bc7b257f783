//! What a system call answered.

use rustix::io::Errno;

/// Reads the C library's convention: less than zero means that `errno` says why.
pub(crate) fn done(answer: libc::c_long) -> Result<(), Errno> {
    if answer >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
