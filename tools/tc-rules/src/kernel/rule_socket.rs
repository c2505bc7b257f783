//! A socket that sends many rules in one call and reads which of them were refused.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::os::fd::OwnedFd;

use crate::verify::{self, Altered};
use netlink::attr::AttrBuf;
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
use netlink::attr::padded;
use netlink::message::{HEADER_BYTES, KernelRefusal, Message, Messages, NetlinkReply, flag};

/// Requested size of the receive buffer, in bytes; the kernel may permit less. Each refusal takes about a
/// kilobyte of the buffer, whatever its length.
pub const RECEIVE_BYTES: usize = 8 * 1024 * 1024;

/// Maximum size of a datagram: the kernel answers each message with a separate one.
const DATAGRAM_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of times that signals may interrupt a call.
const SIGNALS_MAX: usize = 1024;

/// The first sequence number of fences; line numbers are below.
const FENCES: u32 = 1 << 31;

/// `NLMSG_NOOP`: a message that the kernel only acknowledges, after it has processed all earlier messages, so
/// that it serves as a fence.
const NOOP: u16 = 1;

/// Number of messages without the requested echo after which netpolicy concludes that the kernel sends none.
const ECHOES_MISSED_MAX: u32 = 8;

/// The result of a piece.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// The commands that the kernel refused, and those that it altered, which were removed again.
    pub refused: Vec<Refused>,
    /// Whether answers were lost: some commands without a refusal may have been refused.
    pub lost: bool,
    /// The lines that were not sent after an altered one.
    pub unsent: Vec<u32>,
}

/// A netlink socket for rules.
#[derive(Debug)]
pub struct RuleSocket {
    socket: OwnedFd,
    buffer: Vec<u8>,
    fence: AttrBuf,
    fences: u32,
    verified: Verified,
}

/// The message shapes ([`verify::shape()`]) whose echo was compared.
#[derive(Debug, Default)]
struct Verified {
    /// The shapes that the kernel installs as sent.
    same: BTreeSet<u64>,
    /// The shape of the last lookup.
    last: Option<u64>,
    /// The shapes that the kernel alters, with the reason.
    altered: BTreeMap<u64, String>,
    /// How many messages had no echo.
    missed: u32,
}

impl Verified {
    fn has(&mut self, shape: u64) -> bool {
        if self.last == Some(shape) {
            return true;
        }
        let known = self.same.contains(&shape);
        if known {
            self.last = Some(shape);
        }
        known
    }
}

/// The answers to messages.
#[derive(Debug, Default)]
struct Answers {
    refused: Vec<(u32, KernelRefusal)>,
    lost: bool,
    /// The body of the echo of a single message, if requested.
    echo: Option<Vec<u8>>,
}

impl RuleSocket {
    /// Creates a socket in this namespace, with a receive buffer of this size, or the largest permitted one.
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
        // The kernel doubles the value for its bookkeeping.
        if set_socket_recv_buffer_size_force(&socket, receive_bytes).is_err() {
            set_socket_recv_buffer_size(&socket, receive_bytes).map_err(failed)?;
        }
        Ok(Self {
            socket,
            buffer: vec![0; DATAGRAM_BYTES_MAX],
            fence: AttrBuf::new(),
            fences: 0,
            verified: Verified::default(),
        })
    }

    /// Sends a piece and reads the results. The first message of each shape is sent separately, and the
    /// kernel's echo of it is compared: a rule that differs from what was sent is removed and counts as
    /// refused, as do all others of its shape. After one of those, the rest of the piece is not sent if
    /// `stop` is set.
    ///
    /// The kernel processes messages within `sendmsg()`: when it returns, all answers are available.
    ///
    /// Kernel: 6.18, `net/netlink/af_netlink.c` `netlink_rcv_skb()` continues after a message that fails.
    ///
    /// # Errors
    /// If the piece could not be sent at all: then none of it was processed.
    pub fn deliver(&mut self, piece: Piece<'_>, stop: bool) -> Result<Delivered, KernelError> {
        let mut delivered = Delivered::default();
        let bytes = piece.bytes();
        // The offsets of the first unsent message and of the next message.
        let (mut begin, mut at) = (0, 0);
        for (message, place) in Messages::new(bytes).zip(0..) {
            let message = message.map_err(|why| KernelError::malformed("send rules", why.0))?;
            let here = at;
            at += padded(HEADER_BYTES + message.body.len());
            let Some(shape) = verify::shape(message.kind, message.body) else { continue };
            if self.verified.has(shape) {
                continue;
            }
            self.send(&bytes[begin..here], piece, &mut delivered)?;
            begin = at;
            let whole = &bytes[here..at.min(bytes.len())];
            if let Some(words) = self.verified.altered.get(&shape) {
                delivered.refused.push(ignored(piece.line_of(message.sequence), words));
            } else {
                self.send_and_compare(whole, &message, shape, piece, &mut delivered)?;
            }
            if stop && self.verified.altered.contains_key(&shape) {
                delivered.unsent.extend(piece.lines().iter().skip(place + 1));
                return Ok(delivered);
            }
        }
        self.send(&bytes[begin..], piece, &mut delivered)?;
        Ok(delivered)
    }

    /// Sends a piece without comparing echoes: measures the kernel's share of the cost of a load.
    ///
    /// # Errors
    /// As for [`RuleSocket::deliver`].
    pub fn deliver_unverified(&mut self, piece: Piece<'_>) -> Result<Delivered, KernelError> {
        let mut delivered = Delivered::default();
        self.send(piece.bytes(), piece, &mut delivered)?;
        Ok(delivered)
    }

    /// Sends messages of a piece.
    fn send(
        &mut self,
        messages: &[u8],
        piece: Piece<'_>,
        delivered: &mut Delivered,
    ) -> Result<(), KernelError> {
        if messages.is_empty() {
            return Ok(());
        }
        let answers = self.exchange(messages)?;
        delivered.lost |= answers.lost;
        let line = |(sequence, refusal)| Refused { line: piece.line_of(sequence), refusal };
        delivered.refused.extend(answers.refused.into_iter().map(line));
        Ok(())
    }

    /// Sends one message and compares its echo; an altered rule is removed.
    fn send_and_compare(
        &mut self,
        whole: &[u8],
        message: &Message<'_>,
        shape: u64,
        piece: Piece<'_>,
        delivered: &mut Delivered,
    ) -> Result<(), KernelError> {
        let mut echoed = whole.to_vec();
        echoed[FLAGS_AT..FLAGS_AT + 2].copy_from_slice(&(message.flags | flag::ECHO).to_ne_bytes());
        let Answers { refused, lost, echo } = self.exchange(&echoed)?;
        delivered.lost |= lost;
        let line = piece.line_of(message.sequence);
        if let Some((_, refusal)) = refused.into_iter().next() {
            // Do not record this shape: the next rule of the shape may be accepted.
            delivered.refused.push(Refused { line, refusal });
            return Ok(());
        }
        let Some(echo) = echo else {
            self.verified.missed += 1;
            if self.verified.missed >= ECHOES_MISSED_MAX {
                self.verified.same.insert(shape);
            }
            return Ok(());
        };
        let malformed = |why: netlink::Malformed| KernelError::malformed("the echo of a rule", why.0);
        match verify::altered(message.kind, message.body, &echo).map_err(malformed)? {
            None => _ = self.verified.same.insert(shape),
            Some(Altered { words, removal }) => {
                let removed = match removal {
                    Some(removal) => {
                        let answers = self.exchange(removal.as_bytes())?;
                        !answers.lost && answers.refused.is_empty()
                    }
                    None => false,
                };
                let state =
                    if removed { "the rule was removed again" } else { "the rule could not be removed" };
                delivered.refused.push(ignored(line, &format!("{words}; {state}")));
                self.verified.altered.insert(shape, format!("{words}; the rule was not sent"));
            }
        }
        Ok(())
    }

    /// Sends messages and a fence, and reads the answers.
    fn exchange(&mut self, messages: &[u8]) -> Result<Answers, KernelError> {
        let failed = |errno| KernelError::errno("sending rules", errno);
        self.fences = (self.fences + 1) % FENCES;
        let fence = FENCES | self.fences;
        self.fence.clear();
        self.fence.message(NOOP, flag::REQUEST | flag::ACK, fence, |_| {});
        let both = [IoSlice::new(messages), IoSlice::new(self.fence.as_bytes())];
        let mut signals = 0;
        while let Err(errno) =
            sendmsg(&self.socket, &both, &mut SendAncillaryBuffer::default(), SendFlags::empty())
        {
            signals += 1;
            if errno != Errno::INTR || signals > SIGNALS_MAX {
                return Err(failed(errno));
            }
        }
        let mut answers = Answers::default();
        loop {
            match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => {
                    if self.hear(length, fence, &mut answers)? {
                        return Ok(answers);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => answers.lost = true,
                // Even the acknowledgement of the fence was lost.
                Err(Errno::AGAIN) => {
                    answers.lost = true;
                    return Ok(answers);
                }
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    /// Reads a datagram; returns whether it contains the answer to the fence.
    fn hear(&self, length: usize, fence: u32, answers: &mut Answers) -> Result<bool, KernelError> {
        let malformed =
            |why: netlink::Malformed| KernelError::malformed("the acknowledgements of rules", why.0);
        for message in Messages::new(&self.buffer[..length]) {
            let message = message.map_err(malformed)?;
            match message.reply().map_err(malformed)? {
                NetlinkReply::Refused(refusal) if message.sequence < FENCES => {
                    answers.refused.push((message.sequence, refusal));
                }
                NetlinkReply::Done | NetlinkReply::Refused(_) if message.sequence == fence => {
                    return Ok(true);
                }
                NetlinkReply::Object(body) => answers.echo = Some(body.to_vec()),
                NetlinkReply::Done | NetlinkReply::Refused(_) | NetlinkReply::Nothing => {}
            }
        }
        Ok(false)
    }
}

/// Offset of the flags in a message header.
const FLAGS_AT: usize = 6;

/// The refusal of a line whose rule the kernel altered.
fn ignored(line: u32, words: &str) -> Refused {
    let refusal = KernelRefusal {
        errno: Errno::OPNOTSUPP,
        message: Some(words.to_owned()),
        offset: None,
        missing: None,
    };
    Refused { line, refusal }
}
