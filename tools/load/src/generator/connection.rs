//! One connection: bytes that wait to be written, requests that wait for their reply.

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
use model::Chance;

use super::requests::Requests;

/// How long a connection may take to be made.
pub(super) const CONNECT_TIMEOUT: Nanoseconds = Nanoseconds::from_millis(2_000);

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// For a key's value.
    Get,
    /// To set a key.
    Set(u32),
    /// For an answer of this many bytes, whatever they are.
    Exchange {
        /// How many.
        answer_bytes: u32,
    },
    /// For an answer that a protocol says the end of.
    Framed(Protocol),
    /// For an operation on storage, whose answer has this many bytes and begins with 0 if it was done.
    Storage {
        /// How many.
        answer_bytes: u32,
    },
}

/// What is sent again and again where the bytes of requests do not matter.
static BLOCK: [u8; 64 * 1024] = [b'x'; 64 * 1024];

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) request: Request,
    /// When it was due.
    pub(super) due: Moment,
    /// When it was due *and* the connection could take it; never before `due`.
    pub(super) possible: Moment,
    /// When it was given to the kernel; until then, `possible`.
    pub(super) sent: Moment,
}

impl Pending {
    /// A request that was not sent yet.
    pub(super) const fn new(request: Request, due: Moment, possible: Moment) -> Self {
        Self { request, due, possible, sent: possible }
    }
}

/// Why a connection gave no more.
#[derive(Debug)]
pub(super) enum Broken {
    /// It was lost.
    Lost(io::Error),
    /// What came makes no sense.
    Malformed(Malformed),
    /// A reply to no pending request, or that fits another request.
    WrongReply(Reply, Option<Request>),
}

/// A connection to the server, without waiting.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    parser: Parser,
    /// What reads answers to [`Request::Framed`].
    framing: Option<Framing>,
    out: Vec<u8>,
    /// How much of `out` the kernel has.
    written: usize,
    /// Bytes of [`BLOCK`] that wait to be written, behind `out`: requests of many megabytes need no memory here.
    blocks: u64,
    /// Whether its answers are counted instead of parsed.
    counts: bool,
    /// Bytes of the first pending request's answer that have come.
    answer_come: u32,
    /// The first byte of that answer.
    answer_first: u8,
    /// The last words of refusal, of an answer that was counted instead of parsed.
    refusal: String,
    /// Whether the epoll waits for `EPOLLOUT`.
    waits_to_write: bool,
    pending: VecDeque<Pending>,
    /// How many of the last in `pending` have not been given to the kernel.
    unsent: usize,
    /// What this connection asks for, drawn from the seed.
    pub(super) chance: Chance,
    /// Whether a due request waits for room here.
    pub(super) suspended: bool,
    /// When it last got room.
    pub(super) room_since: Moment,
}

impl Connection {
    /// Connects, waiting at most [`CONNECT_TIMEOUT`], and registers with the epoll under this number.
    pub(super) fn open(
        server: SocketAddr,
        epoll: &OwnedFd,
        number: usize,
        chance: Chance,
    ) -> io::Result<Self> {
        Ok(Self {
            socket: connected(server, epoll, number)?,
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

    /// Replaces a lost connection. Requests under way are given up; the caller has taken what it counts of them.
    pub(super) fn reopen(&mut self, server: SocketAddr, epoll: &OwnedFd, number: usize) -> io::Result<()> {
        self.socket = connected(server, epoll, number)?;
        self.parser = Parser::default();
        self.framing = None;
        self.out.clear();
        (self.written, self.unsent, self.waits_to_write) = (0, 0, false);
        (self.blocks, self.answer_come) = (0, 0);
        self.pending.clear();
        self.room_since = Moment::now();
        Ok(())
    }

    /// Requests under way.
    #[inline]
    pub(super) fn depth(&self) -> usize {
        self.pending.len()
    }

    /// Requests that were not given to the kernel yet.
    #[inline]
    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Requests under way, the oldest first, each with whether it was given to the kernel.
    pub(super) fn pending(&self) -> impl Iterator<Item = (&Pending, bool)> {
        let sent = self.pending.len() - self.unsent;
        self.pending.iter().enumerate().map(move |(i, pending)| (pending, i < sent))
    }

    /// Adds a request; `write` appends its bytes.
    #[inline]
    pub(super) fn push(&mut self, pending: Pending, write: impl FnOnce(&mut Vec<u8>)) {
        self.pending.push_back(pending);
        self.unsent += 1;
        write(&mut self.out);
    }

    /// Adds a request of so many bytes, whatever they are. A connection has either these or those of [`Self::push`].
    #[inline]
    pub(super) fn push_block(&mut self, pending: Pending, bytes: u32) {
        self.pending.push_back(pending);
        self.unsent += 1;
        self.blocks += u64::from(bytes);
    }

    /// Gives the kernel what waits to be written, in one call, and notes when each request was sent.
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

    /// Gives the kernel blocks until it takes no more, or there are no more.
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

    /// Whether bytes wait until the kernel takes more.
    #[inline]
    pub(super) fn waits_to_write(&self) -> bool {
        self.waits_to_write
    }

    /// Reads once and hands over every reply that is complete, with its request and when it was read. Returns
    /// when that was.
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

    /// Takes one reply from the front of `input`; `None` when it is used up before a reply is complete.
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
            Some(Request::Get | Request::Set(_)) | None => {
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
            // Less than `missing`, which was a u32.
            self.answer_come += u32::try_from(input.len()).unwrap_or(0);
            *input = &[];
            return Ok(None);
        }
        *input = &input[missing..];
        self.answer_come = 0;
        if judged && self.answer_first != 0 {
            self.refusal = Requests::refusal(self.answer_first);
            return Ok(Some(Reply::Refused));
        }
        Ok(Some(Reply::Done))
    }
}

/// A connected socket that does not wait, registered for reading.
fn connected(server: SocketAddr, epoll: &OwnedFd, number: usize) -> io::Result<OwnedFd> {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_tcp_nodelay(&socket, true)?;
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
