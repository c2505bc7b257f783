//! Sockets with a path: listens without damaging existing files, and connects.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use session::{Exit, Fault, trusted_path};

/// The directory of the default sockets. No other directory is created if it is missing.
const USUAL_DIRECTORY: &str = "/run/netpolicy";

/// The maximum length of a path that fits into a socket address. Kernel: `include/uapi/linux/un.h` `sun_path`
/// minus the terminating zero.
const ADDRESS_BYTES_MAX: usize = 107;

/// The maximum backlog of connections. `net.core.somaxconn` limits it, too.
const QUEUED_MAX: i32 = 4096;

/// How long to wait for an answer from a process that may be listening at the path.
const TAKEN_PATIENCE: Duration = Duration::from_secs(2);

/// Why the daemon cannot listen at a path. Nothing at the path was changed.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process is listening at the path, or may be.
    #[error("{0}: another process already serves it")]
    Taken(PathBuf),
    /// The existing file at the path is not a socket, so it must not be removed.
    #[error("{0}: a file that is not a socket exists there, and is left as it is")]
    NoSocket(PathBuf),
    /// The kernel refused.
    #[error("{path}: {error}")]
    Refused {
        /// The path that could not be opened.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
}

/// Returns the path of the daemon's separate socket for root, derived from the path of the socket for all
/// users. Other users cannot exhaust the backlog of root's socket.
pub(crate) fn roots(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".root");
    name.into()
}

/// Listens at a path at which no other process listens. Removes a socket without a listener, which an earlier
/// daemon has left, but no other files or symbolic links. Refuses a directory to which another user can
/// write, because that user could replace the socket.
pub(crate) fn listen(path: &Path, mode: u32) -> Result<UnixListener, ListenError> {
    let refused = |error| ListenError::Refused { path: path.to_owned(), error };
    let found = fs::symlink_metadata(path);
    if found.as_ref().is_ok_and(|found| !found.file_type().is_socket()) {
        return Err(ListenError::NoSocket(path.to_owned()));
    }
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    trusted_path::check(directory.unwrap_or_else(|| Path::new("."))).map_err(refused)?;
    match found {
        Ok(_) => match connect(path, TAKEN_PATIENCE) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(refused)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Connecting succeeded, or failed for another reason, so a process may be listening at the path.
            Ok(_) | Err(_) => return Err(ListenError::Taken(path.to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(error)),
    }
    if path.parent() == Some(Path::new(USUAL_DIRECTORY)) {
        fs::create_dir_all(USUAL_DIRECTORY).map_err(refused)?;
    }
    let (_held, address) = addressed(path).map_err(refused)?;
    let listener = UnixListener::bind(address).map_err(refused)?;
    // Use a large backlog: a user who connects repeatedly could exhaust the default backlog of 128 between
    // two turns of the daemon.
    rustix::net::listen(&listener, QUEUED_MAX).map_err(|errno| refused(errno.into()))?;
    set_mode(path, mode).map_err(refused)?;
    Ok(listener)
}

/// Sets the mode of a socket, but never the mode of a file that has replaced the socket.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let socket = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&socket)?.st_mode) != FileType::Socket {
        return Err(io::Error::other("another file has replaced the socket"));
    }
    // fchmod(2) refuses descriptors opened with O_PATH, so use their path in /proc.
    let itself = format!("/proc/self/fd/{}", socket.as_raw_fd());
    fs::set_permissions(itself, fs::Permissions::from_mode(mode))
}

/// Connects to a listening process. The connection attempt, each read and each write may take at most
/// `patience`.
pub(crate) fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let (_held, address) = addressed(path)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // SO_SNDTIMEO also limits connect(2), which blocks while the listener's backlog is full.
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(&address)?)?;
    Ok(UnixStream::from(socket))
}

/// If a path is too long for a socket address, returns a shorter one that uses a descriptor of its directory.
/// The descriptor must stay open while the address is used.
fn addressed(path: &Path) -> io::Result<(Option<OwnedFd>, PathBuf)> {
    if path.as_os_str().as_bytes().len() <= ADDRESS_BYTES_MAX {
        return Ok((None, path.to_owned()));
    }
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = rustix::fs::open(directory, flags, Mode::empty())?;
    let address = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd())).join(name);
    Ok((Some(held), address))
}

impl From<ListenError> for Fault {
    fn from(error: ListenError) -> Self {
        let exit = match error {
            ListenError::NoSocket(_) => Exit::Usage,
            ListenError::Taken(_) | ListenError::Refused { .. } => Exit::Failed,
        };
        Self::new(exit, error)
    }
}

#[cfg(test)]
mod test {
    use std::io::{Read, Write};

    use tempfile::TempDir;

    use super::*;

    fn directory() -> TempDir {
        TempDir::with_prefix("netpolicy-socket-").expect("a directory")
    }

    #[test]
    fn a_file_a_link_and_a_directory_are_left_as_they_are() {
        let scratch = directory();
        let file = scratch.path().join("precious");
        fs::write(&file, "precious").expect("written");
        let (link, dangling) = (scratch.path().join("link"), scratch.path().join("dangling"));
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        std::os::unix::fs::symlink("nowhere", &dangling).expect("a link");
        for path in [&*file, &link, &dangling, scratch.path()] {
            let refused = listen(path, 0o600).expect_err("no socket can be created here");
            assert!(matches!(&refused, ListenError::NoSocket(at) if at == path), "{refused}");
        }
        assert_eq!(fs::read_to_string(&link).expect("still there"), "precious");
        assert_eq!(fs::read_link(&dangling).expect("still there"), Path::new("nowhere"));
    }

    #[test]
    fn no_directory_is_made_for_a_socket_with_a_given_path() {
        let scratch = directory();
        let path = scratch.path().join("not there/socket");
        assert!(matches!(listen(&path, 0o600), Err(ListenError::Refused { .. })));
        assert!(!scratch.path().join("not there").exists());
    }

    #[test]
    fn a_socket_is_taken_over_when_no_process_answers_there_any_more() {
        let scratch = directory();
        let path = scratch.path().join("socket");
        let first = listen(&path, 0o600).expect("a place");
        assert!(matches!(listen(&path, 0o600), Err(ListenError::Taken(_))));
        drop(first);
        assert!(path.exists());
        listen(&path, 0o660).expect("it is free");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o660);
    }

    #[test]
    fn a_path_that_is_too_long_for_an_address_is_reached_by_its_directory() {
        let scratch = directory();
        let directory = scratch.path().join("d".repeat(200));
        fs::create_dir_all(&directory).expect("made");
        let path = directory.join("socket");
        let listener = listen(&path, 0o600).expect("a place");
        assert!(matches!(listen(&path, 0o600), Err(ListenError::Taken(_))));
        let mut ours = connect(&path, TAKEN_PATIENCE).expect("a connection");
        ours.write_all(b"hallo").expect("said");
        drop(ours);
        // `listen` has made the first connection, to check whether another process listens.
        let mut received = String::new();
        for _ in 0..2 {
            listener.accept().expect("a connection").0.read_to_string(&mut received).expect("received");
        }
        assert_eq!(received, "hallo");
    }

    #[test]
    fn who_does_not_accept_is_not_waited_for_without_end() {
        let scratch = directory();
        let path = scratch.path().join("socket");
        let deaf = listen(&path, 0o600).expect("a place");
        rustix::net::listen(&deaf, 0).expect("room for one");
        let patience = Duration::from_millis(50);
        let _waiting = connect(&path, patience).expect("one waits");
        let refused = connect(&path, patience).expect_err("no more room");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "{refused}");
    }
}
