//! A socket that sends many rules in one call and reads which of them were refused.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rules::attr::AttrBuf;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, bind, recv, sendmsg,
    socket_with,
};
use sys::error::KernelError;
use sys::netns::Netns;

use super::account::Refused;
use super::portion::Piece;
use crate::message::{Messages, Reply, flag};

/// How many bytes of answers the kernel may keep for us, where we may ask for that many. Each refusal takes about a
/// kilobyte there, whatever its length.
pub const RECEIVE_BYTES: usize = 8 * 1024 * 1024;

/// The longest datagram: the kernel answers each message with one of its own.
const DATAGRAM_BYTES_MAX: usize = 64 * 1024;

/// How often a signal may disturb one call.
const SIGNALS_MAX: usize = 1024;

/// Where the numbers of fences begin; the numbers of lines lie below.
const FENCES: u32 = 1 << 31;

/// `NLMSG_NOOP`: the kernel does nothing and says so. As all messages before it are handled by then, it is a fence.
const NOOP: u16 = 1;

/// What became of a piece.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// The commands that the kernel refused.
    pub refused: Vec<Refused>,
    /// Whether answers were lost: what was not refused may have been.
    pub lost: bool,
}

/// A netlink socket for rules.
#[derive(Debug)]
pub struct RuleSocket {
    socket: OwnedFd,
    buffer: Vec<u8>,
    fence: AttrBuf,
    fences: u32,
}

impl RuleSocket {
    /// A socket in this namespace, for which the kernel keeps this many bytes of answers, or as many as we may have.
    ///
    /// # Errors
    /// If the namespace cannot be entered or the kernel has no such protocol.
    pub fn open(netns: &Netns, receive_bytes: usize) -> Result<Self, KernelError> {
        netns.run(|| Self::open_here(receive_bytes))?
    }

    fn open_here(receive_bytes: usize) -> Result<Self, KernelError> {
        let failed = |errno| KernelError::errno("netlink socket for rules", errno);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .map_err(failed)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0)).map_err(failed)?;
        for switch in [sys::netlink::Switch::CapAck, sys::netlink::Switch::ExtAck] {
            sys::netlink::turn_on(&socket, switch).map_err(failed)?;
        }
        // The kernel doubles the value, for its own bookkeeping.
        if set_socket_recv_buffer_size_force(&socket, receive_bytes).is_err() {
            set_socket_recv_buffer_size(&socket, receive_bytes).map_err(failed)?;
        }
        Ok(Self { socket, buffer: vec![0; DATAGRAM_BYTES_MAX], fence: AttrBuf::new(), fences: 0 })
    }

    /// Sends a piece and hears what became of it. The kernel works while we send: when that returns, every answer
    /// is there that ever will be.
    ///
    /// Kernel: 6.18, `net/netlink/af_netlink.c` `netlink_rcv_skb()` goes on after a message that fails.
    ///
    /// # Errors
    /// If the piece could not be sent at all: then none of it was looked at.
    pub fn deliver(&mut self, piece: Piece<'_>) -> Result<Delivered, KernelError> {
        let failed = |errno| KernelError::errno("sending rules", errno);
        self.fences = (self.fences + 1) % FENCES;
        let fence = FENCES | self.fences;
        self.fence.clear();
        self.fence.message(NOOP, flag::REQUEST | flag::ACK, fence, |_| {});
        let both = [IoSlice::new(piece.bytes()), IoSlice::new(self.fence.as_bytes())];
        let mut signals = 0;
        while let Err(errno) =
            sendmsg(&self.socket, &both, &mut SendAncillaryBuffer::default(), SendFlags::empty())
        {
            signals += 1;
            if errno != Errno::INTR || signals > SIGNALS_MAX {
                return Err(failed(errno));
            }
        }
        let mut delivered = Delivered::default();
        loop {
            match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => {
                    if self.hear(length, fence, piece, &mut delivered)? {
                        return Ok(delivered);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => delivered.lost = true,
                // The fence itself is missing: its answer was one of those that were lost.
                Err(Errno::AGAIN) => {
                    delivered.lost = true;
                    return Ok(delivered);
                }
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    /// Takes a datagram; whether it has the answer to the fence.
    fn hear(
        &self,
        length: usize,
        fence: u32,
        piece: Piece<'_>,
        delivered: &mut Delivered,
    ) -> Result<bool, KernelError> {
        let malformed = |why: crate::Malformed| KernelError::malformed("the answer to rules", why.0);
        for message in Messages::new(&self.buffer[..length]) {
            let message = message.map_err(malformed)?;
            match message.reply().map_err(malformed)? {
                Reply::Refused(refusal) if message.sequence < FENCES => {
                    delivered.refused.push(Refused { line: piece.line_of(message.sequence), refusal });
                }
                Reply::Done | Reply::Refused(_) if message.sequence == fence => return Ok(true),
                Reply::Done | Reply::Refused(_) | Reply::Object(_) | Reply::Nothing => {}
            }
        }
        Ok(false)
    }
}
