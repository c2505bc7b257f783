//! Netlink, byte-exact: bytes and meaning are two types.
//!
//! [`attr`] and [`message`] are pure and total: bytes in, values out. [`socket`] sends a request and gathers its
//! answer. The families above them each have a view over bytes (`RawNapi<'a>`, `RawLink<'a>`) that says what the
//! kernel wrote; what it means for the host is decided in [`crate::observe`].

pub mod attr;
pub mod message;
pub mod sock_diag;
pub mod socket;

pub use attr::{Attr, AttrBuf, Attrs, Malformed};
pub use socket::{NetlinkSocket, Protocol};
