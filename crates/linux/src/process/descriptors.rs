//! Determines the kinds of a process's descriptors from their links.

use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use model::Fd;
use rustix::fs::readlinkat_raw;
use rustix::io::Errno;
use sys::error::Cause;

use super::pinned::{PinnedProcess, unreadable};

/// The maximum number of descriptors of one process that are inspected: four times the default of
/// `fs.nr_open`.
const DESCRIPTORS_MAX: usize = 4 << 20;

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FdKind {
    /// A socket of any family, with its inode.
    Socket(u64),
    /// An epoll.
    Epoll,
    /// An io_uring.
    IoUring,
    /// A dma-buf: memory that devices share.
    Dmabuf,
    /// Anything else.
    Other,
}

impl FdKind {
    /// Parses the text of a link in `/proc/PID/fd`.
    ///
    /// Kernel: 6.18, `net/socket.c` `sockfs_dname()`, `fs/eventpoll.c` `do_epoll_create()`,
    /// `io_uring/io_uring.c` `io_uring_get_file()`. A path begins with `/`, so it cannot look like one of
    /// these texts. Only the link of a dmabuf begins with `/` too: `drivers/dma-buf/dma-buf.c`
    /// `dmabuffs_dname()`.
    fn parse(text: &[u8]) -> Self {
        match text {
            b"anon_inode:[eventpoll]" => Self::Epoll,
            b"anon_inode:[io_uring]" => Self::IoUring,
            _ if text.starts_with(b"/dmabuf:") => Self::Dmabuf,
            _ => socket_inode(text).map_or(Self::Other, Self::Socket),
        }
    }
}

/// Parses the inode of a socket in `socket:[INODE]`.
pub(super) fn socket_inode(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Duplicates a descriptor of a process if it refers to a file of this kind; returns `Gone` if the descriptor
/// now refers to another file.
pub(super) fn duplicate_if(process: &PinnedProcess, fd: Fd, kind: FdKind) -> Result<OwnedFd, Cause> {
    let file = process.duplicate(fd)?;
    // Check our own copy, because the process may reuse the descriptor's number at any time.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = rustix::fs::readlink(path, Vec::new()).map_err(Cause::Errno)?;
    if FdKind::parse(link.as_bytes()) == kind {
        Ok(file)
    } else {
        Err(Cause::Gone(format!("descriptor {fd} now refers to {}", link.to_string_lossy())))
    }
}

/// Lists the descriptors of a process that are sockets, epolls, io_urings or dmabufs, in ascending order. A
/// descriptor that is closed in the meantime is omitted. Threads that do not share the first thread's
/// descriptors are not read.
pub(crate) fn descriptors(process: &PinnedProcess) -> Result<Vec<(Fd, FdKind)>, Cause> {
    let mut found = Vec::new();
    let mut refused = None;
    let mut looked_at = 0;
    process.numbers("fd", |fd| {
        looked_at += 1;
        match link(process, fd) {
            Ok(FdKind::Other) | Err(Errno::NOENT) => {}
            Ok(link) => found.push((Fd(fd), link)),
            Err(errno) => refused = Some(errno),
        }
        refused.is_none() && looked_at < DESCRIPTORS_MAX
    })?;
    if let Some(errno) = refused {
        return Err(unreadable(errno));
    }
    if looked_at == DESCRIPTORS_MAX {
        return Err(Cause::Malformed(format!("more than {DESCRIPTORS_MAX} descriptors")));
    }
    found.sort_unstable_by_key(|(fd, _)| *fd);
    Ok(found)
}

fn link(process: &PinnedProcess, fd: u32) -> Result<FdKind, Errno> {
    /// This length exceeds that of any relevant link: a socket's has `socket:[` and up to 20 digits. A longer
    /// link is cut, and is irrelevant.
    const LINK_BYTES: usize = 64;
    const PATH_BYTES: usize = 16;
    let mut path = [0; PATH_BYTES];
    let mut end = &mut path[..];
    write!(end, "fd/{fd}").map_err(|_| Errno::NAMETOOLONG)?;
    let length = PATH_BYTES - end.len();
    let mut space = [MaybeUninit::uninit(); LINK_BYTES];
    let (text, _) = readlinkat_raw(process.directory(), &path[..length], &mut space)?;
    Ok(FdKind::parse(text))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_link_identifies_the_kind_of_a_descriptor() {
        for (text, link) in [
            ("socket:[35845]", FdKind::Socket(35845)),
            ("anon_inode:[eventpoll]", FdKind::Epoll),
            ("anon_inode:[io_uring]", FdKind::IoUring),
            ("anon_inode:[eventfd]", FdKind::Other),
            ("/dmabuf:gpu0", FdKind::Dmabuf),
            ("pipe:[35845]", FdKind::Other),
            ("/srv/socket:[1]", FdKind::Other),
            ("socket:[]", FdKind::Other),
            ("socket:[99999999999999999999]", FdKind::Other),
        ] {
            assert_eq!(FdKind::parse(text.as_bytes()), link, "{text}");
        }
    }
}
