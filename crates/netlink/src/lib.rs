//! Netlink messages and the families that netpolicy uses.
//!
//! [`attr`] and [`message`] convert bytes to values and back, without I/O; they accept any bytes. [`socket`]
//! sends a request and collects its reply. Each family has raw types (`RawNapi`, `RawLink<'a>`) that hold the
//! kernel's values; the observer determines their meaning for the host.
//!
//! [`events`] receives the kernel's notifications.
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
pub use socket::{DumpPiece, NetlinkProtocol, NetlinkSocket};
