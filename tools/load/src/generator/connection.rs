//! A connection: its unwritten bytes and its outstanding requests.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use model::Nanoseconds;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, ipproto, recv, send, socket_with,
    sockopt,
};

use crate::clock::Moment;
use crate::framing::{Framing, Protocol};
use crate::protocol::{Malformed, Parser, Reply};
use crate::storage;
use model::Chance;

use super::tally::Tally;

/// Timeout for establishing a connection.
pub(super) const CONNECT_TIMEOUT: Nanoseconds = Nanoseconds::from_millis(2_000);

/// How long an answer over UDP is awaited: a lost datagram is not retransmitted.
pub(super) const ANSWER_TIMEOUT: Nanoseconds = Nanoseconds::from_millis(200);

/// Maximum number of datagrams that are read from a socket before the next socket's turn.
const DATAGRAMS_MAX: usize = 64;

/// A request's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Gets a key's value.
    Get,
    /// Sets a key.
    Set(u32),
    /// Asks for an answer of this many bytes of any content.
    Exchange {
        /// Length of the answer.
        answer_bytes: u32,
    },
    /// Asks for an answer of this many bytes in a UDP datagram.
    Datagram {
        /// Length of the answer.
        answer_bytes: u32,
    },
    /// A request whose protocol marks the end of the answer.
    Framed(Protocol),
    /// A storage operation. The answer has this many bytes, and its first byte is 0 on success.
    Storage {
        /// Length of the answer.
        answer_bytes: u32,
    },
}

/// Request bytes, sent repeatedly by workloads whose content does not matter.
static BLOCK: [u8; 64 * 1024] = [b'x'; 64 * 1024];

/// An outstanding request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) request: Request,
    /// When the request was due.
    pub(super) due: Moment,
    /// When the request was due *and* the connection had room for it; never before `due`.
    pub(super) possible: Moment,
    /// When the request was passed to the kernel; until then, `possible`.
    pub(super) sent: Moment,
}

impl Pending {
    /// A request that has not been sent.
    pub(super) const fn new(request: Request, due: Moment, possible: Moment) -> Self {
        Self { request, due, possible, sent: possible }
    }
}

/// The failure of a connection.
#[derive(Debug)]
pub(super) enum Broken {
    /// The connection was lost.
    Lost(io::Error),
    /// The server's bytes do not match the protocol.
    Malformed(Malformed),
    /// A reply without a pending request, or of the wrong type.
    WrongReply(Reply, Option<Request>),
}

/// A non-blocking connection to the server.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    parser: Parser,
    /// Parses answers to [`Request::Framed`].
    framing: Option<Framing>,
    out: Vec<u8>,
    /// How many bytes of `out` the kernel has accepted.
    written: usize,
    /// Bytes of [`BLOCK`] still to write after `out`: requests of many megabytes need no buffer.
    blocks: u64,
    /// The size of the UDP datagrams in `out`; `None` over TCP.
    datagram_bytes: Option<usize>,
    /// How many requests were sent and are no longer pending; this is also the number of the first pending
    /// datagram.
    settled: u64,
    /// Whether answers are only counted, not parsed.
    counts: bool,
    /// Bytes received of the answer to the first pending request.
    answer_come: u32,
    /// The first byte of the answer to the first pending request.
    answer_first: u8,
    /// The last error text in an answer that was counted rather than parsed.
    refusal: String,
    /// Whether the epoll is waiting for `EPOLLOUT`.
    waits_to_write: bool,
    pending: VecDeque<Pending>,
    /// How many requests at the end of `pending` have not been passed to the kernel.
    unsent: usize,
    /// Random numbers, drawn from the seed, that choose this connection's requests.
    pub(super) chance: Chance,
    /// Whether a due request is waiting for room on this connection.
    pub(super) suspended: bool,
    /// When the connection last got room.
    pub(super) room_since: Moment,
}

impl Connection {
    /// Connects to the server, waiting at most [`CONNECT_TIMEOUT`], and registers the socket with the epoll
    /// under `number`. With `datagram_bytes`, the socket is a UDP socket, for requests of that size.
    pub(super) fn open(
        server: SocketAddr,
        epoll: &OwnedFd,
        number: usize,
        chance: Chance,
        datagram_bytes: Option<usize>,
    ) -> io::Result<Self> {
        Ok(Self {
            socket: connected(server, epoll, number, datagram_bytes.is_some())?,
            datagram_bytes,
            settled: 0,
            parser: Parser::default(),
            framing: None,
            out: Vec::new(),
            written: 0,
            blocks: 0,
            counts: false,
            answer_come: 0,
            answer_first: 0,
            refusal: String::new(),
            waits_to_write: false,
            pending: VecDeque::new(),
            unsent: 0,
            chance,
            suspended: false,
            room_since: Moment::now(),
        })
    }

    /// Replaces a lost connection and drops its outstanding requests; the caller has already
    /// counted them.
    pub(super) fn reopen(&mut self, server: SocketAddr, epoll: &OwnedFd, number: usize) -> io::Result<()> {
        self.socket = connected(server, epoll, number, self.datagram_bytes.is_some())?;
        self.settled += self.pending.len() as u64;
        self.parser = Parser::default();
        self.framing = None;
        self.out.clear();
        (self.written, self.unsent, self.waits_to_write) = (0, 0, false);
        (self.blocks, self.answer_come) = (0, 0);
        self.pending.clear();
        self.room_since = Moment::now();
        Ok(())
    }

    /// The number of outstanding requests.
    #[inline]
    pub(super) fn depth(&self) -> usize {
        self.pending.len()
    }

    /// The number of requests not yet passed to the kernel.
    #[inline]
    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }

    /// The outstanding requests, oldest first, each with whether it was passed to the kernel.
    pub(super) fn pending(&self) -> impl Iterator<Item = (&Pending, bool)> {
        let sent = self.pending.len() - self.unsent;
        self.pending.iter().enumerate().map(move |(i, pending)| (pending, i < sent))
    }

    /// Adds a request, whose bytes `write` appends.
    #[inline]
    pub(super) fn push(&mut self, pending: Pending, write: impl FnOnce(&mut Vec<u8>)) {
        self.pending.push_back(pending);
        self.unsent += 1;
        write(&mut self.out);
    }

    /// Adds a request of `bytes` arbitrary bytes. A connection uses either this or [`Self::push`],
    /// never both.
    #[inline]
    pub(super) fn push_block(&mut self, pending: Pending, bytes: u32) {
        self.pending.push_back(pending);
        self.unsent += 1;
        self.blocks += u64::from(bytes);
    }

    /// Adds a request that is sent in a UDP datagram; the datagram begins with the request's number.
    #[inline]
    pub(super) fn push_datagram(&mut self, pending: Pending) {
        let number = self.settled + self.pending.len() as u64;
        let rest = self.datagram_bytes.unwrap_or(0).saturating_sub(size_of::<u64>());
        self.push(pending, |out| {
            out.extend_from_slice(&number.to_le_bytes());
            out.resize(out.len() + rest, b'x');
        });
    }

    /// Passes the unwritten bytes to the kernel in one call, and records when each request was
    /// sent.
    #[inline]
    pub(super) fn flush(
        &mut self,
        epoll: &OwnedFd,
        number: usize,
        mut sent: impl FnMut(&Pending, Moment),
    ) -> io::Result<()> {
        if self.unsent > 0 {
            let now = Moment::now();
            let first = self.pending.len() - self.unsent;
            for pending in self.pending.range_mut(first..) {
                pending.sent = now;
                sent(pending, now);
            }
            self.unsent = 0;
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if self.blocks > 0 {
            self.flush_blocks(flags)?;
        } else if let Some(bytes) = self.datagram_bytes {
            self.flush_datagrams(bytes, flags)?;
        } else {
            match send(&self.socket, &self.out[self.written..], flags) {
                Ok(bytes) => self.written += bytes,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        }
        let must_wait = !self.out.is_empty() || self.blocks > 0;
        if must_wait != self.waits_to_write {
            let flags = if must_wait {
                epoll::EventFlags::IN | epoll::EventFlags::OUT
            } else {
                epoll::EventFlags::IN
            };
            epoll::modify(epoll, &self.socket, epoll::EventData::new_u64(number as u64), flags)?;
            self.waits_to_write = must_wait;
        }
        Ok(())
    }

    /// Writes blocks until none are left or the kernel accepts no more.
    #[inline]
    fn flush_blocks(&mut self, flags: SendFlags) -> io::Result<()> {
        while self.blocks > 0 {
            let length = usize::try_from(self.blocks).unwrap_or(usize::MAX).min(BLOCK.len());
            match send(&self.socket, &BLOCK[..length], flags) {
                Ok(bytes) => {
                    self.blocks -= bytes as u64;
                    if bytes < length {
                        break;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Writes datagrams until none is left or the kernel accepts no more. Datagrams that the kernel drops are
    /// lost.
    #[inline]
    fn flush_datagrams(&mut self, bytes: usize, flags: SendFlags) -> io::Result<()> {
        while self.written < self.out.len() {
            match send(&self.socket, &self.out[self.written..self.written + bytes], flags) {
                Ok(_) | Err(Errno::NOBUFS) => self.written += bytes,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Whether unwritten bytes are waiting for the kernel to accept more.
    #[inline]
    pub(super) fn waits_to_write(&self) -> bool {
        self.waits_to_write
    }

    /// Reads once and passes on every complete reply with its request and the time of the read.
    /// Returns that time.
    #[inline]
    pub(super) fn receive(
        &mut self,
        buffer: &mut [u8],
        mut answered: impl FnMut(&Pending, Reply, Moment, &str),
    ) -> Result<Moment, Broken> {
        let length = match recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(Broken::Lost(io::ErrorKind::UnexpectedEof.into())),
            Ok((length, _)) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Moment::now()),
            Err(errno) => return Err(Broken::Lost(errno.into())),
        };
        let now = Moment::now();
        let mut input = &buffer[..length];
        while let Some(reply) = self.next_reply(&mut input)? {
            let Some(pending) = self.pending.pop_front() else { return Err(Broken::WrongReply(reply, None)) };
            match (pending.request, reply) {
                (Request::Get, Reply::Hit(_) | Reply::Miss | Reply::Refused)
                | (Request::Set(_), Reply::Stored | Reply::Refused) => {
                    answered(&pending, reply, now, self.parser.refusal());
                }
                (Request::Exchange { .. } | Request::Storage { .. }, Reply::Done | Reply::Refused) => {
                    answered(&pending, reply, now, &self.refusal);
                }
                (Request::Framed(_), reply) => {
                    let words = self.framing.as_ref().map_or("", Framing::refusal);
                    answered(&pending, reply, now, words);
                }
                (request, reply) => return Err(Broken::WrongReply(reply, Some(request))),
            }
        }
        Ok(now)
    }

    /// Reads the datagrams that have arrived. Counts their requests as answered and earlier pending requests
    /// as lost, because a flow's datagrams stay in order. Returns the time of the last read.
    #[inline]
    pub(super) fn receive_datagrams(
        &mut self,
        buffer: &mut [u8],
        tally: &mut Tally,
    ) -> Result<Moment, Broken> {
        let mut now = Moment::now();
        for _ in 0..DATAGRAMS_MAX {
            if self.depth() == self.unsent {
                break;
            }
            let length = match recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((length, _)) => length,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => return Err(Broken::Lost(errno.into())),
            };
            now = Moment::now();
            let number = buffer[..length].first_chunk().map(|number| u64::from_le_bytes(*number));
            let request = self.pending.front().map(|pending| pending.request);
            match (number, request) {
                (Some(number), Some(Request::Datagram { answer_bytes }))
                    if length == answer_bytes as usize
                        && number < self.settled + self.pending.len() as u64 =>
                {
                    while self.settled < number {
                        self.settle(|pending| tally.given_up(pending, now));
                    }
                    // The answer to an earlier request came too late.
                    if self.settled == number {
                        self.settle(|pending| tally.answered(pending, Reply::Done, now, ""));
                    }
                }
                (_, request) => return Err(Broken::WrongReply(Reply::Done, request)),
            }
        }
        Ok(now)
    }

    /// Gives up requests over UDP whose answer is overdue. Returns whether there were any.
    pub(super) fn expire(&mut self, now: Moment, tally: &mut Tally) -> bool {
        let before = self.settled;
        while self.depth() > self.unsent
            && self.pending.front().is_some_and(|first| now.since(first.sent) >= ANSWER_TIMEOUT)
        {
            self.settle(|pending| tally.given_up(pending, now));
        }
        self.settled > before
    }

    /// Removes the first pending request.
    #[inline]
    fn settle(&mut self, count: impl FnOnce(&Pending)) {
        if let Some(pending) = self.pending.pop_front() {
            count(&pending);
        }
        self.settled += 1;
    }

    /// Consumes one reply from the front of `input`. Returns `None` if `input` ends before a reply
    /// is complete.
    #[inline]
    fn next_reply(&mut self, input: &mut &[u8]) -> Result<Option<Reply>, Broken> {
        let (answer_bytes, judged) = match self.pending.front().map(|pending| pending.request) {
            Some(Request::Exchange { answer_bytes }) => (answer_bytes, false),
            Some(Request::Storage { answer_bytes }) => (answer_bytes, true),
            None if self.counts && input.is_empty() => return Ok(None),
            None if self.counts => return Err(Broken::WrongReply(Reply::Done, None)),
            Some(Request::Framed(protocol)) => {
                let framing = self.framing.get_or_insert_with(|| Framing::new(protocol));
                return framing.reply(input).map_err(Broken::Malformed);
            }
            None if self.framing.is_some() && input.is_empty() => return Ok(None),
            None if self.framing.is_some() => return Err(Broken::WrongReply(Reply::Done, None)),
            // `receive_datagrams` reads the answers of datagrams.
            Some(Request::Get | Request::Set(_) | Request::Datagram { .. }) | None => {
                return self.parser.reply(input).map_err(Broken::Malformed);
            }
        };
        self.counts = true;
        if self.answer_come == 0
            && let Some(&first) = input.first()
        {
            self.answer_first = first;
        }
        let missing = (answer_bytes - self.answer_come) as usize;
        if input.len() < missing {
            // Cannot fail: the length is below `missing`, which comes from a u32.
            self.answer_come += u32::try_from(input.len()).unwrap_or(0);
            *input = &[];
            return Ok(None);
        }
        *input = &input[missing..];
        self.answer_come = 0;
        if judged && self.answer_first != 0 {
            self.refusal = storage::refusal(self.answer_first);
            return Ok(Some(Reply::Refused));
        }
        Ok(Some(Reply::Done))
    }
}

/// Opens a non-blocking, connected socket and registers it for reading.
fn connected(server: SocketAddr, epoll: &OwnedFd, number: usize, datagrams: bool) -> io::Result<OwnedFd> {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = if datagrams {
        socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?
    } else {
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        socket
    };
    match connect(&socket, &server) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            let seconds = i64::try_from(CONNECT_TIMEOUT.0 / 1_000_000_000).unwrap_or(i64::MAX);
            let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
            if poll(&mut [PollFd::new(&socket.as_fd(), PollFlags::OUT)], Some(&timeout))? == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            sockopt::socket_error(&socket)??;
        }
        Err(errno) => return Err(errno.into()),
    }
    epoll::add(epoll, &socket, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
    Ok(socket)
}
