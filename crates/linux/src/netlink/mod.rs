//! Netlink, byte-exact: bytes and meaning are two types.
//!
//! [`attr`] (which lives in `rules`) and [`message`] are pure and total: bytes in, values out. [`socket`] sends a request
//! and gathers its answer. The families above them each have a view over bytes (`RawNapi`, `RawLink<'a>`) that says what
//! the kernel wrote; what it means for the host is decided in [`mod@crate::observe`].

pub mod ethtool;
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

pub use ethtool::Ethtool;
pub use link::Links;
pub use netdev::Netdev;
/// The codec of attributes, which the pure room `rules` shares.
pub use rules::attr;
pub use rules::attr::{Attr, AttrBuf, Attrs, Malformed};
pub use socket::{NetlinkSocket, Piece, Protocol};
