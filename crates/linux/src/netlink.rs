//! The parts of the crate `netlink` that other crates use directly. They include no messages or attributes.

/// Creates the devices of a lab.
pub mod rtlink {
    pub use ::netlink::rtlink::{RtLink, VethEnd};
}

/// Lists the sockets of a network namespace.
pub mod sock_diag {
    pub use ::netlink::sock_diag::InetSockets;
}
