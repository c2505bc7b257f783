//! A netlink socket: sends one request at a time and reads its complete reply.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, send, socket_with,
};
use sys::error::{Cause, KernelError};
use sys::netns::Netns;

use super::attr::{self, AttrBuf, Malformed};
use super::message::{self, KernelRefusal, Messages, NetlinkReply, flag};

/// The maximum number of times that a dump is restarted because objects change during it.
pub const DUMP_RETRIES_MAX: usize = 16;

/// The maximum size of a datagram, in bytes. Kernel: `net/netlink/af_netlink.c` `netlink_dump()` builds at
/// most 32 KiB unless a single object needs more, which happens only if virtual functions are requested.
pub const DATAGRAM_BYTES_MAX: usize = 64 * 1024;

/// The maximum number of datagrams in a reply. With 32 KiB each, they hold 4 GiB, or some ten million traffic
/// control rules.
pub const DATAGRAMS_MAX: usize = 128 * 1024;

/// The maximum number of datagrams in a dump whose objects are not kept ([`NetlinkSocket::dump_each`]). They
/// hold 32 GiB, enough for more traffic control rules than there are handles.
pub const STREAM_DATAGRAMS_MAX: usize = 1 << 20;

/// The maximum number of signals, and of messages from other senders, that are skipped while waiting for a
/// reply.
pub const DISTURBANCES_MAX: usize = 1024;

/// How long to wait for a reply. The kernel processes a request during the system call that sends it, so a
/// reply that has not arrived after this time was lost.
pub const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// The netlink protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetlinkProtocol {
    /// `NETLINK_ROUTE`: devices, addresses, routes, qdiscs.
    Route,
    /// Sockets: `NETLINK_SOCK_DIAG`.
    SockDiag,
    /// `NETLINK_GENERIC`: families that are resolved by name, such as `netdev` and `ethtool`.
    Generic,
}

/// A piece of a dump whose objects are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpPiece<'a> {
    /// The dump starts. If the dump is restarted because objects changed, this piece comes again, and all
    /// earlier pieces are void.
    Begin,
    /// An object's body.
    Object(&'a [u8]),
}

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestError {
    /// The cause.
    pub cause: Cause,
    /// The type of the rejected attribute, if the kernel reports it.
    pub attribute: Option<u16>,
}

impl RequestError {
    fn malformed(why: impl Into<String>) -> Self {
        Self { cause: Cause::Malformed(why.into()), attribute: None }
    }

    fn errno(errno: Errno) -> Self {
        Self { cause: Cause::Errno(errno), attribute: None }
    }

    fn refused(refusal: KernelRefusal, request: &[u8]) -> Self {
        let KernelRefusal { errno, message, missing, .. } = refusal;
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

/// A netlink socket in one network namespace. The socket stays in that namespace even if its thread moves to
/// another.
#[derive(Debug)]
pub struct NetlinkSocket {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    /// Opens a socket in this namespace.
    ///
    /// # Errors
    /// If the namespace cannot be entered or the kernel does not support the protocol.
    pub fn open(protocol: NetlinkProtocol, netns: &Netns) -> Result<Self, KernelError> {
        netns.run(|| Self::open_here(protocol))?
    }

    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// If the kernel does not support the protocol.
    pub fn open_here(protocol: NetlinkProtocol) -> Result<Self, KernelError> {
        let failed = |errno| KernelError::errno(format!("netlink socket ({protocol:?})"), errno);
        let number = match protocol {
            NetlinkProtocol::Route => None, // NETLINK_ROUTE is 0
            NetlinkProtocol::SockDiag => Some(rustix::net::netlink::SOCK_DIAG),
            NetlinkProtocol::Generic => Some(rustix::net::netlink::GENERIC),
        };
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, number)
            .map_err(failed)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0)).map_err(failed)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WAIT)).map_err(failed)?;
        // Ignore errors: these options only improve replies, and kernels before 4.20 lack some of them.
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

    /// Returns the cookie of the socket's namespace; `None` on kernels before 5.14.
    pub fn netns_cookie(&self) -> Option<u64> {
        sys::sockopt::netns_cookie(&self.socket).ok()
    }

    /// Sends a request and waits for its acknowledgement. `what` names the request in errors; `flags` are
    /// added to `NLM_F_REQUEST | NLM_F_ACK` (for example [`flag::CREATE`]).
    ///
    /// # Errors
    /// The kernel's error, with its message.
    pub fn request(&mut self, what: &str, kind: u16, flags: u16, body: &AttrBuf) -> Result<(), KernelError> {
        self.attempt(kind, flags, body).map_err(|failure| failure.about(what))
    }

    /// Like [`NetlinkSocket::request`], for callers that interpret the rejected attribute.
    ///
    /// # Errors
    /// The kernel's error, with its message.
    pub fn attempt(&mut self, kind: u16, flags: u16, body: &AttrBuf) -> Result<(), RequestError> {
        self.exchange(DATAGRAMS_MAX, kind, flags | flag::ACK, body, &mut |_| Ok(())).map(|_| ())
    }

    /// Requests one object. `read` converts the body of the reply.
    ///
    /// # Errors
    /// The kernel's error, a reply without an object, or an object that `read` rejects.
    pub fn get<T>(
        &mut self,
        what: &str,
        kind: u16,
        body: &AttrBuf,
        mut read: impl FnMut(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, KernelError> {
        let mut value = None;
        let answered = self.exchange(DATAGRAMS_MAX, kind, flag::ACK, body, &mut |object| {
            value = Some(read(object)?);
            Ok(())
        });
        answered.map_err(|failure| failure.about(what))?;
        value.ok_or_else(|| KernelError::malformed(what, "acknowledged without the requested object"))
    }

    /// Requests all objects of a kind. `read` converts each body, or returns `None` to skip the object. The
    /// dump is restarted if objects changed during it.
    ///
    /// # Errors
    /// The kernel's error, or [`Cause::Malformed`] if `read` rejects an object or objects kept changing
    /// ([`DUMP_RETRIES_MAX`]).
    pub fn dump<T>(
        &mut self,
        what: &str,
        kind: u16,
        body: &AttrBuf,
        mut read: impl FnMut(&[u8]) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, KernelError> {
        let mut values = Vec::new();
        self.dump_within(DATAGRAMS_MAX, what, kind, body, |piece| {
            match piece {
                DumpPiece::Begin => values.clear(),
                DumpPiece::Object(object) => values.extend(read(object)?),
            }
            Ok(())
        })?;
        Ok(values)
    }

    /// Requests all objects of a kind, for dumps that may be too large for memory. `take` gets the body of
    /// each object; a further [`DumpPiece::Begin`] voids everything before it.
    ///
    /// # Errors
    /// As for [`NetlinkSocket::dump`].
    pub fn dump_each(
        &mut self,
        what: &str,
        kind: u16,
        body: &AttrBuf,
        take: impl FnMut(DumpPiece<'_>) -> Result<(), Malformed>,
    ) -> Result<(), KernelError> {
        self.dump_within(STREAM_DATAGRAMS_MAX, what, kind, body, take)
    }

    fn dump_within(
        &mut self,
        datagrams: usize,
        what: &str,
        kind: u16,
        body: &AttrBuf,
        mut take: impl FnMut(DumpPiece<'_>) -> Result<(), Malformed>,
    ) -> Result<(), KernelError> {
        let attempt = |take: &mut Take<'_>| {
            self.exchange(datagrams, kind, flag::DUMP, body, &mut |object| take(DumpPiece::Object(object)))
        };
        undisturbed(&mut take, attempt).map_err(|failure| failure.about(what))
    }

    /// Sends a request and reads the whole reply. Returns false if objects changed while the reply was sent.
    fn exchange(
        &mut self,
        datagrams: usize,
        kind: u16,
        flags: u16,
        body: &AttrBuf,
        take: &mut dyn FnMut(&[u8]) -> Result<(), Malformed>,
    ) -> Result<bool, RequestError> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = message::request(kind, flags, self.sequence, body);
        send(&self.socket, &request, SendFlags::empty()).map_err(RequestError::errno)?;
        let mut answer = Answer::to(&request, self.sequence);
        for _ in 0..datagrams {
            let length = self.receive()?;
            if let Some(undisturbed) = answer.add(&self.buffer[..length], take)? {
                return Ok(undisturbed);
            }
        }
        Err(RequestError::malformed(format!("a reply of more than {datagrams} datagrams")))
    }

    /// Receives a datagram from the kernel into the buffer; returns its length.
    fn receive(&mut self) -> Result<usize, RequestError> {
        for _ in 0..DISTURBANCES_MAX {
            let (taken, whole, sender) = match recvfrom(&self.socket, &mut self.buffer[..], RecvFlags::TRUNC)
            {
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Err(RequestError::errno(Errno::TIMEDOUT)),
                Err(errno) => return Err(RequestError::errno(errno)),
            };
            // Other programs may send to this socket; a message from the kernel has port 0.
            let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
            if sender.is_none_or(|sender| sender.pid() != 0) {
                continue;
            }
            if whole > taken {
                return Err(RequestError::malformed(format!("a datagram of {whole} bytes")));
            }
            return Ok(taken);
        }
        Err(RequestError::errno(Errno::INTR))
    }
}

/// A function that consumes the pieces of a dump.
type Take<'a> = dyn FnMut(DumpPiece<'_>) -> Result<(), Malformed> + 'a;

/// Runs a dump, and restarts it if objects changed during it. `attempt` runs it once and returns whether
/// nothing changed.
fn undisturbed(
    take: &mut Take<'_>,
    mut attempt: impl FnMut(&mut Take<'_>) -> Result<bool, RequestError>,
) -> Result<(), RequestError> {
    for _ in 0..=DUMP_RETRIES_MAX {
        take(DumpPiece::Begin).map_err(|malformed| RequestError::malformed(malformed.0))?;
        if attempt(take)? {
            return Ok(());
        }
    }
    Err(RequestError::malformed(format!("interrupted by changes {DUMP_RETRIES_MAX} times in a row")))
}

/// A reply that is read datagram by datagram.
struct Answer<'a> {
    request: &'a [u8],
    sequence: u32,
    undisturbed: bool,
    malformed: Option<Malformed>,
}

impl<'a> Answer<'a> {
    fn to(request: &'a [u8], sequence: u32) -> Self {
        Self { request, sequence, undisturbed: true, malformed: None }
    }

    /// Adds a datagram to the reply. At the end of the reply, returns whether no object changed during it;
    /// until then, returns `None`.
    ///
    /// A malformed object is reported only at the end, so that the whole reply has been read by then.
    fn add(
        &mut self,
        datagram: &[u8],
        take: &mut dyn FnMut(&[u8]) -> Result<(), Malformed>,
    ) -> Result<Option<bool>, RequestError> {
        for message in Messages::new(datagram) {
            let message = message.map_err(|m| RequestError::malformed(m.0))?;
            if message.sequence != self.sequence {
                continue; // the rest of an earlier reply that was not read because of an error
            }
            self.undisturbed &= message.flags & flag::DUMP_INTR == 0;
            match message.reply().map_err(|m| RequestError::malformed(m.0))? {
                NetlinkReply::Object(object) => self.malformed = self.malformed.or(take(object).err()),
                NetlinkReply::Nothing => {}
                NetlinkReply::Refused(refusal) => return Err(RequestError::refused(refusal, self.request)),
                NetlinkReply::Done => {
                    return self
                        .malformed
                        .map_or(Ok(Some(self.undisturbed)), |m| Err(RequestError::malformed(m.0)));
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    const OBJECT: u16 = 0x12;
    const ERROR: u16 = 2;
    const DONE: u16 = 3;

    fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = message::request(kind, flags, sequence, &AttrBuf::after(body));
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes()); // a reply is not a request
        bytes
    }

    /// Reads these datagrams as the reply to request 7; returns the result, and the first byte of each
    /// object.
    fn answered(request: &[u8], datagrams: &[Vec<u8>]) -> (Result<Option<bool>, RequestError>, Vec<u8>) {
        let (mut answer, mut taken) = (Answer::to(request, 7), Vec::new());
        let mut take = |object: &[u8]| {
            taken.push(*object.first().ok_or(Malformed("empty"))?);
            Ok(())
        };
        let mut result = Ok(None);
        for datagram in datagrams {
            result = answer.add(datagram, &mut take);
            if result != Ok(None) {
                break;
            }
        }
        (result, taken)
    }

    proptest! {
        #[test]
        fn no_datagram_makes_the_answer_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = answered(&[], &[bytes]);
        }
    }

    #[test]
    fn an_answer_is_gathered_over_datagrams_until_it_is_done() {
        let first = [message(OBJECT, flag::MULTI, 7, b"a"), message(OBJECT, flag::MULTI, 7, b"b")].concat();
        let last = message(DONE, flag::MULTI, 7, &[0; 4]);
        assert_eq!(answered(&[], std::slice::from_ref(&first)).0, Ok(None));
        assert_eq!(answered(&[], &[first, last]), (Ok(Some(true)), b"ab".to_vec()));
    }

    #[test]
    fn what_changed_meanwhile_is_noticed_wherever_it_is_said() {
        let done = message(DONE, flag::MULTI, 7, &[0; 4]);
        let object = message(OBJECT, flag::MULTI | flag::DUMP_INTR, 7, b"a");
        assert_eq!(answered(&[], &[object, done]).0, Ok(Some(false)));
        let done = message(DONE, flag::MULTI | flag::DUMP_INTR, 7, &[0; 4]);
        assert_eq!(answered(&[], &[done]).0, Ok(Some(false)));
    }

    /// Runs a dump during whose first attempts objects change; returns the result, the objects read since the
    /// last start, and the number of starts.
    fn dumped(disturbed: usize) -> (Result<(), RequestError>, Vec<u8>, usize) {
        let (mut taken, mut begun, mut attempts) = (Vec::new(), 0, 0);
        let mut take = |piece: DumpPiece<'_>| {
            match piece {
                DumpPiece::Begin => {
                    begun += 1;
                    taken.clear();
                }
                DumpPiece::Object(object) => taken.extend_from_slice(object),
            }
            Ok(())
        };
        let result = undisturbed(&mut take, |take| {
            attempts += 1;
            let flags = if attempts <= disturbed { flag::MULTI | flag::DUMP_INTR } else { flag::MULTI };
            let mut answer = Answer::to(&[], 7);
            let datagram =
                [message(OBJECT, flags, 7, b"abcd"), message(DONE, flag::MULTI, 7, &[0; 4])].concat();
            answer.add(&datagram, &mut |object| take(DumpPiece::Object(object))).map(|end| end == Some(true))
        });
        (result, taken, begun)
    }

    #[test]
    fn a_dump_that_is_interrupted_is_taken_again_from_its_beginning() {
        assert_eq!(dumped(0), (Ok(()), b"abcd".to_vec(), 1));
        assert_eq!(dumped(3), (Ok(()), b"abcd".to_vec(), 4));
        let (result, _, begun) = dumped(usize::MAX);
        assert!(result.is_err());
        assert_eq!(begun, DUMP_RETRIES_MAX + 1);
    }

    #[test]
    fn the_rest_of_an_earlier_answer_is_passed_over() {
        let stale = [message(OBJECT, 0, 6, b"x"), message(ERROR, 0, 6, &(-1_i32).to_ne_bytes())].concat();
        let done = [message(OBJECT, 0, 7, b"a"), message(DONE, 0, 7, &[0; 4])].concat();
        assert_eq!(answered(&[], &[stale, done]), (Ok(Some(true)), b"a".to_vec()));
    }

    #[test]
    fn a_malformed_object_spoils_the_answer_but_leaves_nothing_unread() {
        let datagram =
            [message(OBJECT, 0, 7, b""), message(OBJECT, 0, 7, b"b"), message(DONE, 0, 7, &[0; 4])].concat();
        let (result, taken) = answered(&[], &[datagram]);
        assert_eq!(result, Err(RequestError::malformed("empty")));
        assert_eq!(taken, b"b");
    }

    #[test]
    fn a_refusal_points_at_the_attribute_of_the_request() {
        let mut body = AttrBuf::after(&[14, 1, 0, 0]);
        body.u32(2, 327).u32(5, u32::MAX);
        let request = message::request(0x24, flag::ACK, 7, &body);
        let mut refusal = AttrBuf::new();
        refusal.raw(&(-34_i32).to_ne_bytes()).raw(&request[..message::HEADER_BYTES]);
        refusal.text(1, "integer out of range").u32(2, 28);
        let datagram = message(ERROR, flag::CAPPED | flag::ACK_TLVS, 7, refusal.as_bytes());
        let failure = answered(&request, &[datagram]).0.expect_err("refused");
        assert_eq!(failure.attribute, Some(5));
        assert!(matches!(failure.cause, Cause::Extack { errno: Errno::RANGE, .. }), "{failure:?}");
    }
}
