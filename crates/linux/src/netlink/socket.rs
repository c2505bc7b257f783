//! A netlink socket: one request at a time, and its whole answer.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, send, socket_with,
};

use super::attr::{self, AttrBuf, Malformed};
use super::message::{self, Messages, Refusal, Reply, flag};
use crate::error::{Cause, KernelError};
use crate::netns::Netns;
use crate::sys;

/// How often a dump is begun again because what it lists changed meanwhile.
pub const DUMP_RETRIES_MAX: usize = 16;

/// The longest datagram taken. Kernel: `net/netlink/af_netlink.c` `netlink_dump()` builds at most 32 KiB unless one
/// object needs more, which none does without the flag that asks for virtual functions.
pub const DATAGRAM_BYTES_MAX: usize = 64 * 1024;

/// How many datagrams one answer may have: 32 KiB each, and so more than 100 MB.
pub const DATAGRAMS_MAX: usize = 4096;

/// How many signals and strangers' messages are let pass while an answer is awaited.
pub const DISTURBANCES_MAX: usize = 1024;

/// How long the kernel may take to answer. It works while we send, so an answer that is not there by then is lost.
pub const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Which part of the kernel a socket speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Devices, addresses, routes, queueing disciplines: `NETLINK_ROUTE`.
    Route,
    /// Sockets: `NETLINK_SOCK_DIAG`.
    SockDiag,
    /// Families that are known by name, such as `netdev` and `ethtool`: `NETLINK_GENERIC`.
    Generic,
}

/// Why a request failed, and which of its attributes the kernel pointed at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why.
    pub cause: Cause,
    /// The number of the attribute that was refused, where the kernel says.
    pub attribute: Option<u16>,
}

impl Failure {
    fn malformed(why: impl Into<String>) -> Self {
        Self { cause: Cause::Malformed(why.into()), attribute: None }
    }

    fn errno(errno: Errno) -> Self {
        Self { cause: Cause::Errno(errno), attribute: None }
    }

    fn refused(refusal: Refusal, request: &[u8]) -> Self {
        let Refusal { errno, message, missing, .. } = refusal;
        let attribute =
            refusal.offset.and_then(|offset| attr::number_at(request, usize::try_from(offset).ok()?));
        let cause = match (message, missing) {
            (Some(message), _) => Cause::Extack { errno, message },
            (None, Some(missing)) => {
                Cause::Extack { errno, message: format!("attribute {missing} is missing") }
            }
            (None, None) => Cause::Errno(errno),
        };
        Self { cause, attribute }
    }

    fn about(self, what: &str) -> KernelError {
        KernelError { what: what.to_owned(), cause: self.cause }
    }
}

/// A netlink socket in one network namespace, where it stays whatever its threads do.
#[derive(Debug)]
pub struct NetlinkSocket {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    /// A socket in this namespace.
    ///
    /// # Errors
    /// If the namespace cannot be entered or the kernel has no such protocol.
    pub fn open(protocol: Protocol, netns: &Netns) -> Result<Self, KernelError> {
        netns.run(|| Self::open_here(protocol))?
    }

    /// A socket in the calling thread's namespace.
    ///
    /// # Errors
    /// If the kernel has no such protocol.
    pub fn open_here(protocol: Protocol) -> Result<Self, KernelError> {
        let failed = |errno| KernelError::errno(format!("netlink socket ({protocol:?})"), errno);
        let number = match protocol {
            Protocol::Route => None, // NETLINK_ROUTE is 0
            Protocol::SockDiag => Some(rustix::net::netlink::SOCK_DIAG),
            Protocol::Generic => Some(rustix::net::netlink::GENERIC),
        };
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, number)
            .map_err(failed)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0)).map_err(failed)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WAIT)).map_err(failed)?;
        // All three only improve answers; kernels from before 4.20 lack some and serve us as well without.
        for switch in
            [sys::netlink::Switch::CapAck, sys::netlink::Switch::ExtAck, sys::netlink::Switch::StrictCheck]
        {
            match sys::netlink::turn_on(&socket, switch) {
                Ok(()) | Err(Errno::NOPROTOOPT) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(Self { socket, sequence: 0, buffer: vec![0; DATAGRAM_BYTES_MAX] })
    }

    /// Asks for something to be done and waits until it is. `what` names the request in errors; `flags` are
    /// those beyond `NLM_F_REQUEST | NLM_F_ACK` (such as [`flag::CREATE`]).
    ///
    /// # Errors
    /// The kernel's refusal, in its own words.
    pub fn request(&mut self, what: &str, kind: u16, flags: u16, body: &AttrBuf) -> Result<(), KernelError> {
        self.attempt(kind, flags, body).map_err(|failure| failure.about(what))
    }

    /// As [`NetlinkSocket::request`], for a caller who can tell what the attribute means that was refused.
    ///
    /// # Errors
    /// The kernel's refusal, in its own words.
    pub fn attempt(&mut self, kind: u16, flags: u16, body: &AttrBuf) -> Result<(), Failure> {
        self.exchange(kind, flags | flag::ACK, body, &mut |_| Ok(())).map(|_| ())
    }

    /// Asks for one object. `read` makes a value of the answer's body.
    ///
    /// # Errors
    /// The kernel's refusal, or an answer that `read` does not take or that lacks an object.
    pub fn get<T>(
        &mut self,
        what: &str,
        kind: u16,
        body: &AttrBuf,
        mut read: impl FnMut(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, KernelError> {
        let mut value = None;
        let answered = self.exchange(kind, flag::ACK, body, &mut |object| {
            value = Some(read(object)?);
            Ok(())
        });
        answered.map_err(|failure| failure.about(what))?;
        value.ok_or_else(|| {
            KernelError::malformed(what, "acknowledged, but without the object that was asked for")
        })
    }

    /// Asks for all objects of a kind. `read` makes a value of each object's body; an object that it does not want
    /// becomes `None` and is left out. A dump during which the objects changed is begun again.
    ///
    /// # Errors
    /// The kernel's refusal, an object that `read` does not take, or objects that kept changing
    /// ([`DUMP_RETRIES_MAX`]).
    pub fn dump<T>(
        &mut self,
        what: &str,
        kind: u16,
        body: &AttrBuf,
        mut read: impl FnMut(&[u8]) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, KernelError> {
        for _ in 0..=DUMP_RETRIES_MAX {
            let mut values = Vec::new();
            let answered = self.exchange(kind, flag::DUMP, body, &mut |object| {
                values.extend(read(object)?);
                Ok(())
            });
            if answered.map_err(|failure| failure.about(what))? {
                return Ok(values);
            }
        }
        Err(KernelError::malformed(what, format!("interrupted by changes {DUMP_RETRIES_MAX} times in a row")))
    }

    /// Sends a request and takes its answer to the end. Says whether nothing changed meanwhile.
    fn exchange(
        &mut self,
        kind: u16,
        flags: u16,
        body: &AttrBuf,
        take: &mut dyn FnMut(&[u8]) -> Result<(), Malformed>,
    ) -> Result<bool, Failure> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = message::request(kind, flags, self.sequence, body);
        send(&self.socket, &request, SendFlags::empty()).map_err(Failure::errno)?;
        let mut undisturbed = true;
        let mut malformed = None;
        for _ in 0..DATAGRAMS_MAX {
            let length = self.receive()?;
            for message in Messages::new(&self.buffer[..length]) {
                let message = message.map_err(|m| Failure::malformed(m.0))?;
                if message.sequence != self.sequence {
                    continue; // the end of an answer that an earlier error left unread
                }
                undisturbed &= message.flags & flag::DUMP_INTR == 0;
                match message.reply().map_err(|m| Failure::malformed(m.0))? {
                    Reply::Object(object) => malformed = malformed.or(take(object).err()),
                    Reply::Nothing => {}
                    Reply::Refused(refusal) => return Err(Failure::refused(refusal, &request)),
                    Reply::Done => {
                        return malformed.map_or(Ok(undisturbed), |m| Err(Failure::malformed(m.0)));
                    }
                }
            }
        }
        Err(Failure::malformed(format!("an answer of more than {DATAGRAMS_MAX} datagrams")))
    }

    /// One datagram of the kernel into the buffer; its length.
    fn receive(&mut self) -> Result<usize, Failure> {
        for _ in 0..DISTURBANCES_MAX {
            let (taken, whole, sender) = match recvfrom(&self.socket, &mut self.buffer[..], RecvFlags::TRUNC)
            {
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Err(Failure::errno(Errno::TIMEDOUT)),
                Err(errno) => return Err(Failure::errno(errno)),
            };
            // Other programs may write to our port; only port 0 is the kernel.
            let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
            if sender.is_none_or(|sender| sender.pid() != 0) {
                continue;
            }
            if whole > taken {
                return Err(Failure::malformed(format!("a datagram of {whole} bytes")));
            }
            return Ok(taken);
        }
        Err(Failure::errno(Errno::INTR))
    }
}
