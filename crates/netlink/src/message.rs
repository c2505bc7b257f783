//! Netlink messages: a header, a body, and the kernel's reply to a request.
//!
//! Kernel: 6.18, `include/uapi/linux/netlink.h` `struct nlmsghdr`, `struct nlmsgerr`, `enum nlmsgerr_attrs`;
//! `net/netlink/af_netlink.c` `netlink_ack()`.

use rustix::io::Errno;

use super::attr::{AttrBuf, Attrs, Malformed, padded};

/// The size of a header: `NLMSG_HDRLEN`.
pub const HEADER_BYTES: usize = 16;

/// The type of a reply with an error code, or with 0 for an acknowledgement: `NLMSG_ERROR`.
const ERROR: u16 = 2;

/// The type of a dump's last message: `NLMSG_DONE`.
const DONE: u16 = 3;

/// The first message type of families; lower types are control messages: `NLMSG_MIN_TYPE`.
const FAMILY_TYPE_MIN: u16 = 0x10;

/// Header flags. Kernel: `NLM_F_*`.
pub mod flag {
    /// Request message.
    pub const REQUEST: u16 = 0x1;
    /// The message is part of a multi-message reply, which ends with `NLMSG_DONE`.
    pub const MULTI: u16 = 0x2;
    /// Request an acknowledgement.
    pub const ACK: u16 = 0x4;
    /// Requests that the kernel return the created object, in the format of a notification.
    pub const ECHO: u16 = 0x8;
    /// The dumped objects changed during the dump.
    pub const DUMP_INTR: u16 = 0x10;
    /// Requests all objects: `NLM_F_ROOT | NLM_F_MATCH`.
    pub const DUMP: u16 = 0x300;
    /// Makes the request fail if the object exists.
    pub const EXCL: u16 = 0x200;
    /// Creates the object if it does not exist.
    pub const CREATE: u16 = 0x400;
    /// In a reply: the kernel echoes only the header of the request.
    pub const CAPPED: u16 = 0x100;
    /// In a reply: extended-ack attributes follow.
    pub const ACK_TLVS: u16 = 0x200;
}

/// Extended-ack attributes. Kernel: `enum nlmsgerr_attrs`.
mod extack {
    /// The kernel's error message.
    pub(super) const MSG: u16 = 1;
    /// The offset of the offending attribute in the request.
    pub(super) const OFFS: u16 = 2;
    /// The type of a missing attribute.
    pub(super) const MISS_TYPE: u16 = 5;
}

/// A received message: header fields and body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The message type: that of a family, or that of a control message.
    pub kind: u16,
    /// Bits of [`flag`].
    pub flags: u16,
    /// The sequence number of the request that this message answers.
    pub sequence: u32,
    /// The bytes after the header.
    pub body: &'a [u8],
}

/// What a message tells the sender of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetlinkReply<'a> {
    /// An object.
    Object(&'a [u8]),
    /// The request succeeded. For a dump, this is the last message.
    Done,
    /// The request failed.
    Refused(KernelRefusal),
    /// A control message that needs no handling.
    Nothing,
}

/// The kernel's error, with its message if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRefusal {
    /// The error code.
    pub errno: Errno,
    /// The kernel's message (`NLMSGERR_ATTR_MSG`), verbatim.
    pub message: Option<String>,
    /// The offset of the offending attribute in the request (`NLMSGERR_ATTR_OFFS`).
    pub offset: Option<u32>,
    /// The type of the missing attribute (`NLMSGERR_ATTR_MISS_TYPE`).
    pub missing: Option<u32>,
}

impl KernelRefusal {
    /// Whether the kernel's error means that the object of the request does not exist.
    pub const fn is_absent(&self) -> bool {
        sys::error::is_absent(self.errno)
    }

    /// Whether the kernel's error means that it knows no such object, or lacks the module for its kind.
    pub fn is_unknown(&self) -> bool {
        self.errno == Errno::NOENT
    }

    /// Whether the object that the request creates already exists.
    pub fn is_there_already(&self) -> bool {
        self.errno == Errno::EXIST
    }
}

impl<'a> Message<'a> {
    /// Returns what the message tells the sender of the request.
    ///
    /// # Errors
    /// If a control message does not have the format of its type.
    pub fn reply(&self) -> Result<NetlinkReply<'a>, Malformed> {
        match self.kind {
            ERROR => {
                let (number, rest) = error_number(self.body)?;
                let Some(errno) = number else { return Ok(NetlinkReply::Done) };
                // After the error code, the kernel echoes the request: the whole request, or only its header.
                let echo = match self.flags & flag::CAPPED {
                    0 => Messages::new(rest).first_length()?,
                    _ => HEADER_BYTES,
                };
                let attrs =
                    rest.get(padded(echo)..).ok_or(Malformed("the echo of the request is truncated"))?;
                self.refusal(errno, attrs).map(NetlinkReply::Refused)
            }
            DONE => match error_number(self.body)? {
                (None, _) => Ok(NetlinkReply::Done),
                (Some(errno), attrs) => self.refusal(errno, attrs).map(NetlinkReply::Refused),
            },
            kind if kind >= FAMILY_TYPE_MIN => Ok(NetlinkReply::Object(self.body)),
            _ => Ok(NetlinkReply::Nothing),
        }
    }

    fn refusal(&self, errno: Errno, attrs: &[u8]) -> Result<KernelRefusal, Malformed> {
        let mut refusal = KernelRefusal { errno, message: None, offset: None, missing: None };
        if self.flags & flag::ACK_TLVS == 0 {
            return Ok(refusal);
        }
        for attr in Attrs::new(attrs) {
            let attr = attr?;
            match attr.number {
                extack::MSG => {
                    refusal.message =
                        Some(String::from_utf8_lossy(attr.payload).trim_end_matches('\0').to_owned())
                }
                extack::OFFS => refusal.offset = Some(attr.u32()?),
                extack::MISS_TYPE => refusal.missing = Some(attr.u32()?),
                _ => {}
            }
        }
        Ok(refusal)
    }
}

/// Returns the error code at the start of a reply (`None` for an acknowledgement), and the bytes after it.
fn error_number(body: &[u8]) -> Result<(Option<Errno>, &[u8]), Malformed> {
    let (number, rest) = body.split_first_chunk::<4>().ok_or(Malformed("a reply without an error number"))?;
    match i32::from_ne_bytes(*number) {
        0 => Ok((None, rest)),
        number @ -4095..0 => Ok((Some(Errno::from_raw_os_error(-number)), rest)),
        _ => Err(Malformed("a reply whose number is not an error number")),
    }
}

/// An iterator over the messages of a datagram. It ends after the first malformed message.
#[derive(Clone, Copy, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Iterates over the messages in these bytes.
    pub const fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }

    fn first_length(&self) -> Result<usize, Malformed> {
        let length = self.rest.first_chunk::<4>().ok_or(Malformed("a message's header is truncated"))?;
        usize::try_from(u32::from_ne_bytes(*length)).map_err(|_| Malformed("a message's length is wrong"))
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let header = self.rest.first_chunk::<HEADER_BYTES>()?;
        let length = self.first_length().unwrap_or(0);
        let Some(body) = self.rest.get(HEADER_BYTES..length) else {
            self.rest = &[];
            return Some(Err(Malformed("a message's length is wrong")));
        };
        self.rest = self.rest.get(padded(length)..).unwrap_or(&[]);
        let (kind, flags) = (&header[4..6], &header[6..8]);
        Some(Ok(Message {
            kind: u16::from_ne_bytes([kind[0], kind[1]]),
            flags: u16::from_ne_bytes([flags[0], flags[1]]),
            sequence: u32::from_ne_bytes([header[8], header[9], header[10], header[11]]),
            body,
        }))
    }
}

/// Returns the bytes of a request: a header and this body. The kernel fills in our port.
pub fn request(kind: u16, flags: u16, sequence: u32, body: &AttrBuf) -> Vec<u8> {
    let body = body.as_bytes();
    let length = HEADER_BYTES + body.len();
    let length = u32::try_from(length).unwrap_or_else(|_| panic!("a request of {length} bytes"));
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&(flags | flag::REQUEST).to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&0_u32.to_ne_bytes());
    bytes.extend_from_slice(body);
    bytes
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_datagram_makes_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for message in Messages::new(&bytes).flatten() {
                let _ = message.reply();
            }
        }

        #[test]
        fn no_answer_makes_the_reader_panic(
            kind in 0_u16..20,
            flags in any::<u16>(),
            body in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let _ = Message { kind, flags, sequence: 0, body: &body }.reply();
        }
    }

    /// Builds a reply as `netlink_ack()` does with `NETLINK_CAP_ACK` and `NETLINK_EXT_ACK`.
    fn answer(errno: i32, flags: u16, extack: &AttrBuf) -> Vec<u8> {
        let mut body = AttrBuf::new();
        body.raw(&errno.to_ne_bytes())
            .raw(&request(30, flag::ACK, 7, &AttrBuf::new()))
            .raw(extack.as_bytes());
        request(ERROR, flags, 7, &body)
    }

    fn first(bytes: &[u8]) -> Message<'_> {
        Messages::new(bytes).next().expect("a message").expect("well-formed")
    }

    #[test]
    fn a_refusal_carries_the_kernels_words_and_the_place() {
        let mut extack = AttrBuf::new();
        extack.text(extack::MSG, "integer out of range").u32(extack::OFFS, 28).u32(extack::MISS_TYPE, 2);
        let bytes = answer(-34, flag::CAPPED | flag::ACK_TLVS, &extack);
        let expected = KernelRefusal {
            errno: Errno::RANGE,
            message: Some("integer out of range".to_owned()),
            offset: Some(28),
            missing: Some(2),
        };
        assert_eq!(first(&bytes).reply(), Ok(NetlinkReply::Refused(expected)));
    }

    #[test]
    fn a_refusal_without_words_is_a_number() {
        let bytes = answer(-1, flag::CAPPED, &AttrBuf::new());
        let expected = KernelRefusal { errno: Errno::PERM, message: None, offset: None, missing: None };
        assert_eq!(first(&bytes).reply(), Ok(NetlinkReply::Refused(expected)));
    }

    #[test]
    fn an_answer_of_zero_is_an_acknowledgement() {
        assert_eq!(first(&answer(0, flag::CAPPED, &AttrBuf::new())).reply(), Ok(NetlinkReply::Done));
    }

    #[test]
    fn an_answer_of_no_error_number_is_malformed() {
        for number in [1, -4096, i32::MIN] {
            assert!(first(&answer(number, flag::CAPPED, &AttrBuf::new())).reply().is_err(), "{number}");
        }
    }

    #[test]
    fn messages_of_one_datagram_are_read_in_order() {
        let mut body = AttrBuf::new();
        body.text(1, "ab");
        let datagram = [request(16, 0, 1, &body), request(17, flag::MULTI, 1, &AttrBuf::new())].concat();
        let kinds: Vec<_> = Messages::new(&datagram).map(|m| m.expect("well-formed").kind).collect();
        assert_eq!(kinds, [16, 17]);
    }
}
