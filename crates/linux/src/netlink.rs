//! The parts of the crate `netlink` that other crates use directly, which include no messages or attributes.

/// Devices that a lab creates.
pub mod rtlink {
    pub use ::netlink::rtlink::{RtLink, VethEnd};
}

/// The sockets of a network namespace.
pub mod sock_diag {
    pub use ::netlink::sock_diag::InetSockets;
}
