//! Netlink, byte-exact: bytes and meaning are two types.
//!
//! [`attr`] (which lives in `kinds`) and [`message`] are pure and total: bytes in, values out. [`socket`] sends a request
//! and gathers its answer. The families above them each have a view over bytes (`RawNapi`, `RawLink<'a>`) that says what
//! the kernel wrote; what it means for the host is decided by who observes it.
//!
//! Above the families stand [`events`] (what the kernel reports unasked) and [`tc`] (rules in bulk).
#![forbid(unsafe_code)]

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
pub mod tc;
pub mod xdp_diag;

pub use ethtool::Ethtool;
pub use link::Links;
pub use netdev::Netdev;
/// The codec of attributes, which the pure room `kinds` has.
pub use rules::attr;
pub use rules::attr::{Attr, AttrBuf, Attrs, Malformed};
pub use socket::{NetlinkSocket, Piece, Protocol};
