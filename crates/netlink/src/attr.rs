//! Netlink attributes: type, length and payload, independent of their meaning.
//!
//! The reader accepts any bytes: it returns values or [`Malformed`]. It never panics and never reads outside
//! the slice.
//!
//! Kernel: 6.18, `include/uapi/linux/netlink.h` `struct nlattr`, `lib/nlattr.c`.

use std::fmt;

/// The size of an attribute header: `NLA_HDRLEN`.
const HEADER_BYTES: usize = 4;

/// The alignment of attributes: `NLA_ALIGNTO`.
const ALIGNMENT: usize = 4;

/// The bit that marks a payload as nested attributes: `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;

/// The bits of an attribute's type that hold its number: `NLA_TYPE_MASK`.
const NUMBER_MASK: u16 = 0x3fff;

/// The error for bytes that do not have the expected format. The text says what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

/// An iterator over attributes. It ends after the first malformed attribute.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attrs<'a> {
    rest: &'a [u8],
}

impl<'a> Attrs<'a> {
    /// Iterates over the attributes in these bytes.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Iterates over the attributes after a fixed header of this size. The kernel pads the header to the
    /// alignment of attributes.
    ///
    /// # Errors
    /// If the header is truncated.
    pub fn after(header_bytes: usize, bytes: &'a [u8]) -> Result<Self, Malformed> {
        match bytes.get(padded(header_bytes)..) {
            Some(rest) => Ok(Self { rest }),
            None => Err(Malformed("the fixed header is truncated")),
        }
    }

    /// Returns the first attribute with this number.
    ///
    /// # Errors
    /// If an attribute before it is malformed.
    pub fn find(self, number: u16) -> Result<Option<Attr<'a>>, Malformed> {
        for attr in self {
            let attr = attr?;
            if attr.number == number {
                return Ok(Some(attr));
            }
        }
        Ok(None)
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = Result<Attr<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        // If fewer bytes than a header remain, they are padding, as in `nla_ok()`.
        let header = self.rest.first_chunk::<HEADER_BYTES>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let number = u16::from_ne_bytes([header[2], header[3]]) & NUMBER_MASK;
        let Some(payload) = self.rest.get(HEADER_BYTES..length) else {
            self.rest = &[];
            return Some(Err(Malformed("an attribute's length is wrong")));
        };
        self.rest = self.rest.get(padded(length)..).unwrap_or(&[]);
        Some(Ok(Attr { number, payload }))
    }
}

/// One attribute: its number and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr<'a> {
    /// The attribute's number within its attribute set.
    pub number: u16,
    /// The bytes of the attribute's value.
    pub payload: &'a [u8],
}

impl<'a> Attr<'a> {
    fn bytes<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        self.payload.try_into().map_err(|_| Malformed("an attribute's size does not match its type"))
    }

    /// Reads a `u8`.
    ///
    /// # Errors
    /// If the payload is not a value of this type. All readers of values return this error.
    pub fn u8(&self) -> Result<u8, Malformed> {
        self.bytes().map(u8::from_ne_bytes)
    }

    /// Reads a `u16`.
    #[expect(clippy::missing_errors_doc, reason = "said at `u8`")]
    pub fn u16(&self) -> Result<u16, Malformed> {
        self.bytes().map(u16::from_ne_bytes)
    }

    /// Reads a `u32`.
    #[expect(clippy::missing_errors_doc, reason = "said at `u8`")]
    pub fn u32(&self) -> Result<u32, Malformed> {
        self.bytes().map(u32::from_ne_bytes)
    }

    /// Reads a `be16` into host byte order.
    #[expect(clippy::missing_errors_doc, reason = "said at `u8`")]
    pub fn be16(&self) -> Result<u16, Malformed> {
        self.bytes().map(u16::from_be_bytes)
    }

    /// Reads a `be32` into host byte order.
    #[expect(clippy::missing_errors_doc, reason = "said at `u8`")]
    pub fn be32(&self) -> Result<u32, Malformed> {
        self.bytes().map(u32::from_be_bytes)
    }

    /// Reads a `u32` at this offset in the payload.
    #[expect(clippy::missing_errors_doc, reason = "said at `u8`")]
    pub fn word_at(&self, at: usize) -> Result<u32, Malformed> {
        let word = self.payload.get(at..).and_then(<[u8]>::first_chunk);
        word.map(|word| u32::from_ne_bytes(*word)).ok_or(Malformed("a structure is truncated"))
    }

    /// Reads an `s32`.
    #[expect(clippy::missing_errors_doc, reason = "said at `u8`")]
    pub fn i32(&self) -> Result<i32, Malformed> {
        self.bytes().map(i32::from_ne_bytes)
    }

    /// Reads an Ethernet address.
    #[expect(clippy::missing_errors_doc, reason = "said at `u8`")]
    pub fn mac(&self) -> Result<[u8; 6], Malformed> {
        self.bytes()
    }

    /// Reads a `u64`.
    #[expect(clippy::missing_errors_doc, reason = "said at `u8`")]
    pub fn u64(&self) -> Result<u64, Malformed> {
        self.bytes().map(u64::from_ne_bytes)
    }

    /// Reads a `uint`, which has 4 bytes if the value fits in them, otherwise 8.
    ///
    /// Kernel: 6.7, `include/net/netlink.h` `nla_put_uint()`.
    #[expect(clippy::missing_errors_doc, reason = "said at `u8`")]
    pub fn uint(&self) -> Result<u64, Malformed> {
        match self.payload.len() {
            4 => self.u32().map(u64::from),
            _ => self.u64(),
        }
    }

    /// Returns the bytes of a string, without the terminating NUL.
    pub fn until_zero(&self) -> &'a [u8] {
        let end = self.payload.iter().position(|&b| b == 0).unwrap_or(self.payload.len());
        &self.payload[..end]
    }

    /// Reads a string, without the terminating NUL.
    ///
    /// # Errors
    /// If the string is not UTF-8. The kernel's own strings are ASCII, but device names need not be.
    pub fn text(&self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.until_zero()).map_err(|_| Malformed("a string is not UTF-8"))
    }

    /// The nested attributes.
    pub const fn nested(&self) -> Attrs<'a> {
        Attrs::new(self.payload)
    }
}

/// A buffer for writing attributes, after an optional fixed header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttrBuf {
    bytes: Vec<u8>,
    /// Whether an attribute exceeded the maximum of its length field.
    overflowed: bool,
}

impl AttrBuf {
    /// An empty buffer.
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), overflowed: false }
    }

    /// Creates an empty buffer with this capacity.
    pub fn with_room(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), overflowed: false }
    }

    /// Creates an empty buffer that reuses the memory of a vector.
    pub fn on(mut memory: Vec<u8>) -> Self {
        memory.clear();
        Self { bytes: memory, overflowed: false }
    }

    /// Creates a buffer that starts with a fixed header, such as a `struct ifinfomsg`.
    pub fn after(header: &[u8]) -> Self {
        let mut buf = Self::new();
        buf.raw(header);
        buf
    }

    /// Whether an attribute exceeded the maximum of its length field (65 531 bytes). If so, the buffer must
    /// not be sent.
    pub const fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// The written bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes bytes that are not an attribute: a fixed header, at the beginning or in a nested attribute
    /// (`VETH_INFO_PEER`).
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self.pad()
    }

    /// Writes an attribute with these bytes. More than 65 531 bytes overflow the length field
    /// ([`AttrBuf::overflowed`]).
    pub fn bytes(&mut self, number: u16, payload: &[u8]) -> &mut Self {
        let header = self.header(HEADER_BYTES + payload.len(), number);
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(payload);
        self.pad()
    }

    /// Writes an attribute without a payload.
    pub fn flag(&mut self, number: u16) -> &mut Self {
        self.bytes(number, &[])
    }

    /// Writes a `u8`.
    pub fn u8(&mut self, number: u16, value: u8) -> &mut Self {
        self.bytes(number, &value.to_ne_bytes())
    }

    /// Writes a `u16`.
    pub fn u16(&mut self, number: u16, value: u16) -> &mut Self {
        self.bytes(number, &value.to_ne_bytes())
    }

    /// Writes a `u32`.
    pub fn u32(&mut self, number: u16, value: u32) -> &mut Self {
        let mut attr = [0; HEADER_BYTES + 4];
        attr[..HEADER_BYTES].copy_from_slice(&self.header(HEADER_BYTES + 4, number));
        attr[HEADER_BYTES..].copy_from_slice(&value.to_ne_bytes());
        self.bytes.extend_from_slice(&attr);
        self
    }

    /// Writes a `u64`.
    pub fn u64(&mut self, number: u16, value: u64) -> &mut Self {
        self.bytes(number, &value.to_ne_bytes())
    }

    /// Writes a `be16`.
    pub fn be16(&mut self, number: u16, value: u16) -> &mut Self {
        self.bytes(number, &value.to_be_bytes())
    }

    /// Writes a `be32`.
    pub fn be32(&mut self, number: u16, value: u32) -> &mut Self {
        self.bytes(number, &value.to_be_bytes())
    }

    /// Writes a `uint`: 4 bytes if the value fits in them, otherwise 8.
    pub fn uint(&mut self, number: u16, value: u64) -> &mut Self {
        match u32::try_from(value) {
            Ok(short) => self.u32(number, short),
            Err(_) => self.u64(number, value),
        }
    }

    /// Writes a string with a terminating NUL.
    pub fn text(&mut self, number: u16, value: &str) -> &mut Self {
        let start = self.begin(number);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.end(start)
    }

    /// Writes nested attributes.
    pub fn nested(&mut self, number: u16, write: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.begin(number | NESTED);
        write(self);
        self.end(start)
    }

    /// Writes nested attributes without `NLA_F_NESTED`. Older interfaces do not require the flag, and
    /// iproute2 still omits it in most of traffic control.
    pub fn unmarked(&mut self, number: u16, write: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.begin(number);
        write(self);
        self.end(start)
    }

    /// Writes a whole message: a header, whose length is filled in afterwards, and the attributes that
    /// `write` adds.
    ///
    /// Kernel: `include/uapi/linux/netlink.h` `struct nlmsghdr`. The kernel fills in the sender's port.
    ///
    /// # Panics
    /// If the message has 4 GiB or more.
    pub fn message(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        write: impl FnOnce(&mut Self),
    ) -> &mut Self {
        let start = self.bytes.len();
        let mut header = [0; 16];
        header[4..6].copy_from_slice(&kind.to_ne_bytes());
        header[6..8].copy_from_slice(&flags.to_ne_bytes());
        header[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&header);
        write(self);
        let length = self.bytes.len() - start;
        let length = u32::try_from(length).unwrap_or_else(|_| panic!("a message of {length} bytes"));
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// Clears the buffer and keeps its memory.
    pub fn clear(&mut self) {
        self.overflowed = false;
        self.bytes.clear();
    }

    /// Truncates the buffer to this length.
    pub fn truncate(&mut self, length: usize) {
        self.bytes.truncate(length);
    }

    /// Returns the bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn begin(&mut self, number: u16) -> usize {
        let start = self.bytes.len();
        // `end` fills in the length, which is 0 until then.
        let header = self.header(0, number);
        self.bytes.extend_from_slice(&header);
        start
    }

    fn end(&mut self, start: usize) -> &mut Self {
        let [low, high, ..] = self.header(self.bytes.len() - start, 0);
        self.bytes[start..start + 2].copy_from_slice(&[low, high]);
        self.pad()
    }

    /// Builds the header of an attribute. `length` includes the header.
    fn header(&mut self, length: usize, number: u16) -> [u8; HEADER_BYTES] {
        let length = u16::try_from(length).unwrap_or_else(|_| {
            self.overflowed = true;
            u16::MAX
        });
        let ([a, b], [c, d]) = (length.to_ne_bytes(), number.to_ne_bytes());
        [a, b, c, d]
    }

    fn pad(&mut self) -> &mut Self {
        // Most attributes need no padding.
        if !self.bytes.len().is_multiple_of(ALIGNMENT) {
            self.bytes.resize(padded(self.bytes.len()), 0);
        }
        self
    }
}

/// Returns the number of the attribute at this offset; `None` beyond the end.
pub fn number_at(bytes: &[u8], offset: usize) -> Option<u16> {
    let header = bytes.get(offset..)?.first_chunk::<HEADER_BYTES>()?;
    Some(u16::from_ne_bytes([header[2], header[3]]) & NUMBER_MASK)
}

/// Rounds a length up to the alignment: `NLA_ALIGN`, which equals `NLMSG_ALIGN`.
pub const fn padded(length: usize) -> usize {
    length.next_multiple_of(ALIGNMENT)
}

/// Keeps only the last of several items with the same key, because the kernel uses the last of repeated
/// attributes.
///
/// Kernel: 6.18, `lib/nlattr.c` `__nla_validate_parse()`.
pub fn last_of_each<T, K: PartialEq>(parts: &mut Vec<T>, key: impl Fn(&T) -> K) {
    let keys: Vec<K> = parts.iter().map(key).collect();
    let mut at = 0;
    parts.retain(|_| {
        at += 1;
        keys.get(at) != keys.get(at - 1)
    });
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for attr in Attrs::new(&bytes).flatten() {
                let _ = (attr.u8(), attr.u16(), attr.u32(), attr.i32(), attr.u64(), attr.uint(), attr.text());
                prop_assert!(attr.nested().count() <= attr.payload.len());
            }
        }

        #[test]
        fn what_is_written_is_read(values in proptest::collection::vec((1_u16..0x3fff, any::<u64>(), ".{0,20}"), 0..20)) {
            let mut buf = AttrBuf::new();
            for (number, value, text) in &values {
                buf.nested(*number, |inner| { inner.uint(1, *value).text(2, text); });
            }
            let mut read = Vec::new();
            for attr in Attrs::new(buf.as_bytes()) {
                let attr = attr.expect("well-formed");
                let inner: Vec<_> = attr.nested().map(|a| a.expect("well-formed")).collect();
                read.push((attr.number, inner[0].uint().expect("uint"), inner[1].text().expect("text").to_owned()));
            }
            let until_zero = |s: &String| s.split('\0').next().unwrap_or("").to_owned();
            let written: Vec<_> = values.iter().map(|(n, v, t)| (*n, *v, until_zero(t))).collect();
            prop_assert_eq!(read, written);
        }
    }

    #[test]
    fn a_uint_is_short_where_it_fits_and_never_cut() {
        for (value, bytes) in
            [(0, 8), (u64::from(u32::MAX), 8), (u64::from(u32::MAX) + 1, 12), (u64::MAX, 12)]
        {
            let mut buf = AttrBuf::new();
            buf.uint(6, value);
            assert_eq!(buf.as_bytes().len(), bytes, "{value}");
            let attr = Attrs::new(buf.as_bytes()).find(6).expect("well-formed").expect("there");
            assert_eq!(attr.uint(), Ok(value));
        }
    }

    #[test]
    fn a_length_beyond_the_end_or_below_the_header_is_malformed() {
        for length in [0_u16, 3, 9, u16::MAX] {
            let mut bytes = [0_u8; 8];
            bytes[..2].copy_from_slice(&length.to_ne_bytes());
            let attrs: Vec<_> = Attrs::new(&bytes).collect();
            assert_eq!(attrs, [Err(Malformed("an attribute's length is wrong"))], "{length}");
        }
    }

    #[test]
    fn a_value_of_another_size_is_malformed_and_not_cut() {
        let attr = Attr { number: 1, payload: &[1, 2, 3, 4, 5, 6] };
        assert!(attr.u8().is_err() && attr.u16().is_err() && attr.u32().is_err() && attr.uint().is_err());
    }
}
