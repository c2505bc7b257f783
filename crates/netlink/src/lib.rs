//! Netlink, byte-exact: bytes and meaning are two types.
//!
//! [`attr`] and [`message`] are pure and total: bytes in, values out. [`socket`] sends a request
//! and gathers its answer. The families above them each have a view over bytes (`RawNapi`, `RawLink<'a>`) that says what
//! the kernel wrote; what it means for the host is decided by who observes it.
//!
//! Above the families stands [`events`] (what the kernel reports unasked).
#![forbid(unsafe_code)]

pub mod attr;
pub mod ethtool;
pub mod events;
pub mod genl;
pub mod link;
pub mod message;
pub mod netdev;
pub mod offload;
pub mod qdisc;
pub mod route;
pub mod rtlink;
pub mod sock_diag;
pub mod socket;
pub mod xdp_diag;

pub use attr::{Attr, AttrBuf, Attrs, Malformed};
pub use ethtool::Ethtool;
pub use link::Links;
pub use netdev::Netdev;
pub use socket::{NetlinkSocket, Piece, Protocol};
