//! The sockets that receive kernel notifications.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use model::{IfIndex, KernelVersion, since};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, Protocol as Number, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with,
    sockopt,
};
use sys::error::KernelError;
use sys::netns::Netns;

use super::{Notice, uevent};
use crate::attr::{Attrs, Malformed};
use crate::genl::{self, GenlFamily};
use crate::message::Messages;
use crate::{NetlinkProtocol, NetlinkSocket};

/// The maximum size of a notification, in bytes. A link with all its attributes but without virtual functions
/// takes less than two kilobytes.
const DATAGRAM_BYTES_MAX: usize = 64 * 1024;

/// The size of the receive buffer, in bytes: it holds several thousand notifications.
const BUFFERED_BYTES: usize = 1 << 20;

/// The maximum number of datagrams that one call of [`Notices::take`] reads from each socket. The next call
/// reads the rest.
const TURN_MAX: usize = 1024;

/// `RTMGRP_LINK`, as a bit of the socket address, and the messages that this group receives.
const GROUP_LINK: u32 = 1;
const NEW_LINK: u16 = 16;
const DEL_LINK: u16 = 17;
/// The size of `struct ifinfomsg`, and the offset of the device's index.
const LINK_HEADER_BYTES: usize = 16;
const LINK_INDEX_AT: usize = 4;

/// The multicast group of the kernel's own uevents; group 2 is udev's. Kernel: `lib/kobject_uevent.c`.
const GROUP_KERNEL: u32 = 1;

/// `NETDEV_A_DEV_IFINDEX`.
const NETDEV_IFINDEX: u16 = 1;
/// The header attribute of every ethtool message, and the attribute `ETHTOOL_A_HEADER_DEV_INDEX` in it.
const ETHTOOL_HEADER: u16 = 1;
const ETHTOOL_INDEX: u16 = 1;

/// Receives the kernel's notifications in one network namespace.
#[derive(Debug)]
pub struct Notices {
    sockets: Vec<NoticeSocket>,
    missing: Vec<KernelError>,
}

#[derive(Debug)]
struct NoticeSocket {
    family: NoticeFamily,
    socket: OwnedFd,
}

/// The kind of notifications that a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoticeFamily {
    Links,
    Netdev(u16),
    Ethtool(u16),
    Uevents,
}

impl Notices {
    /// Opens the sockets in a namespace. [`Notices::missing`] lists notifications that this kernel does not
    /// support.
    ///
    /// # Errors
    /// If the namespace cannot be entered, or the kernel sends no link notifications.
    pub fn of(netns: &Netns) -> Result<Self, KernelError> {
        netns.run(Self::here)?
    }

    fn here() -> Result<Self, KernelError> {
        let mut sockets =
            vec![NoticeSocket { family: NoticeFamily::Links, socket: socket(None, GROUP_LINK)? }];
        let mut missing = Vec::new();
        for socket in [netdev(), ethtool(), uevents()] {
            match socket {
                Ok(socket) => sockets.push(socket),
                Err(error) => missing.push(error),
            }
        }
        Ok(Self { sockets, missing })
    }

    /// Returns why some notifications are unavailable, one error for each kind.
    pub fn missing(&self) -> &[KernelError] {
        &self.missing
    }

    /// Returns the descriptors that become readable when there is a notification.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(|socket| socket.socket.as_fd())
    }

    /// Returns the notifications since the last call, without duplicates. Does not block.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn take(&self) -> Result<BTreeSet<Notice>, KernelError> {
        let mut notices = BTreeSet::new();
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        for socket in &self.sockets {
            socket.take(&mut buffer, &mut notices)?;
        }
        Ok(notices)
    }
}

impl NoticeSocket {
    fn take(&self, buffer: &mut [u8], notices: &mut BTreeSet<Notice>) -> Result<(), KernelError> {
        for _ in 0..TURN_MAX {
            let (taken, whole, sender) = match recvfrom(&self.socket, &mut *buffer, RecvFlags::TRUNC) {
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::NOBUFS) => {
                    notices.insert(Notice::Lost);
                    continue;
                }
                Err(errno) => return Err(KernelError::errno(format!("notices ({:?})", self.family), errno)),
            };
            // Other programs may send to this socket; a message from the kernel has port 0.
            let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
            if sender.is_none_or(|sender| sender.pid() != 0) {
                continue;
            }
            if whole > taken || self.read(&buffer[..taken], notices).is_err() {
                // A notification that cannot be parsed may be about any object.
                notices.insert(Notice::Lost);
            }
        }
        Ok(())
    }

    fn read(&self, datagram: &[u8], notices: &mut BTreeSet<Notice>) -> Result<(), Malformed> {
        if self.family == NoticeFamily::Uevents {
            notices.extend(uevent::notice(datagram));
            return Ok(());
        }
        for message in Messages::new(datagram) {
            let message = message?;
            let notice = match self.family {
                NoticeFamily::Links if matches!(message.kind, NEW_LINK | DEL_LINK) => {
                    Some(Notice::Link(link_index(message.body)?))
                }
                NoticeFamily::Netdev(family) if message.kind == family => {
                    let index = genl::attrs(message.body)?.find(NETDEV_IFINDEX)?;
                    index.map(|index| index.u32().map(|index| Notice::Link(IfIndex(index)))).transpose()?
                }
                NoticeFamily::Ethtool(family) if message.kind == family => {
                    let header = genl::attrs(message.body)?.find(ETHTOOL_HEADER)?;
                    let index =
                        header.map(|header| header.nested().find(ETHTOOL_INDEX)).transpose()?.flatten();
                    index.map(|index| index.u32().map(|index| Notice::Ethtool(IfIndex(index)))).transpose()?
                }
                NoticeFamily::Links
                | NoticeFamily::Netdev(_)
                | NoticeFamily::Ethtool(_)
                | NoticeFamily::Uevents => None,
            };
            notices.extend(notice);
        }
        Ok(())
    }
}

fn link_index(body: &[u8]) -> Result<IfIndex, Malformed> {
    Attrs::after(LINK_HEADER_BYTES, body)?;
    let index = body.get(LINK_INDEX_AT..).and_then(|bytes| bytes.first_chunk());
    index.map(|bytes| IfIndex(u32::from_ne_bytes(*bytes))).ok_or(Malformed("a link without an index"))
}

/// Opens a non-blocking socket that is subscribed to these groups.
fn socket(protocol: Option<Number>, groups: u32) -> Result<OwnedFd, KernelError> {
    let failed = |errno| KernelError::errno("a socket for the kernel's notifications", errno);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).map_err(failed)?;
    // A buffer larger than `net.core.rmem_max` needs CAP_NET_ADMIN. Without that capability, the kernel
    // limits the buffer to `net.core.rmem_max`.
    if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFERED_BYTES).is_err() {
        let _less = sockopt::set_socket_recv_buffer_size(&socket, BUFFERED_BYTES);
    }
    bind(&socket, &SocketAddrNetlink::new(0, groups)).map_err(failed)?;
    Ok(socket)
}

fn of_family(
    name: &str,
    group: &str,
    since: KernelVersion,
    notices: impl Fn(u16) -> NoticeFamily,
) -> Result<NoticeSocket, KernelError> {
    let family = GenlFamily::resolve(&mut NetlinkSocket::open_here(NetlinkProtocol::Generic)?, name, since)?;
    let what = || format!("notices of {name} `{group}`");
    let number = family.group(group).ok_or_else(|| KernelError::absent(what(), "the group", Some(since)))?;
    let socket = socket(Some(netlink::GENERIC), 0)?;
    sys::netlink::join(&socket, number).map_err(|errno| KernelError::errno(what(), errno))?;
    Ok(NoticeSocket { family: notices(family.id()), socket })
}

fn netdev() -> Result<NoticeSocket, KernelError> {
    of_family("netdev", "mgmt", since::NETDEV, NoticeFamily::Netdev)
}

fn ethtool() -> Result<NoticeSocket, KernelError> {
    of_family("ethtool", "monitor", since::ETHTOOL_NETLINK, NoticeFamily::Ethtool)
}

fn uevents() -> Result<NoticeSocket, KernelError> {
    Ok(NoticeSocket {
        family: NoticeFamily::Uevents,
        socket: socket(Some(netlink::KOBJECT_UEVENT), GROUP_KERNEL)?,
    })
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::attr::AttrBuf;
    use crate::message;
    use proptest::prelude::*;

    fn notice_socket(family: NoticeFamily) -> NoticeSocket {
        let (socket, _) = rustix::pipe::pipe().expect("a pipe");
        NoticeSocket { family, socket }
    }

    fn read(family: NoticeFamily, datagram: &[u8]) -> Result<BTreeSet<Notice>, Malformed> {
        let mut notices = BTreeSet::new();
        notice_socket(family).read(datagram, &mut notices)?;
        Ok(notices)
    }

    #[test]
    fn a_link_is_identified_by_its_index() {
        let mut header = [0; LINK_HEADER_BYTES];
        header[4..8].copy_from_slice(&7_u32.to_ne_bytes());
        let datagram = message::request(NEW_LINK, 0, 0, &AttrBuf::after(&header));
        assert_eq!(read(NoticeFamily::Links, &datagram), Ok([Notice::Link(IfIndex(7))].into()));
        let address = message::request(20, 0, 0, &AttrBuf::after(&header));
        assert_eq!(
            read(NoticeFamily::Links, &address),
            Ok(BTreeSet::new()),
            "an address notification is not a link notification"
        );
        assert!(read(NoticeFamily::Links, &message::request(DEL_LINK, 0, 0, &AttrBuf::new())).is_err());
    }

    #[test]
    fn a_notice_of_ethtool_has_its_device_in_the_header() {
        let mut body = AttrBuf::after(&[20, 1, 0, 0]);
        body.nested(ETHTOOL_HEADER, |header| {
            header.u32(ETHTOOL_INDEX, 9).text(2, "eth0");
        });
        let datagram = message::request(0x1d, 0, 0, &body);
        assert_eq!(read(NoticeFamily::Ethtool(0x1d), &datagram), Ok([Notice::Ethtool(IfIndex(9))].into()));
        assert_eq!(read(NoticeFamily::Ethtool(0x1e), &datagram), Ok(BTreeSet::new()), "of another family");
    }

    proptest! {
        #[test]
        fn no_bytes_upset_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for family in [NoticeFamily::Links, NoticeFamily::Netdev(0x1d), NoticeFamily::Ethtool(0x1d), NoticeFamily::Uevents] {
                let _answer = read(family, &bytes);
            }
        }
    }
}
