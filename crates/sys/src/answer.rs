//! Converts the return values of system calls.

use rustix::io::Errno;

/// Converts a return value of the C library: if it is negative, `errno` has the error.
pub(crate) fn done(answer: libc::c_long) -> Result<(), Errno> {
    if answer >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
