//! The parts of netlink that the crates above use themselves: no message, and no attribute.

/// Devices that a lab creates.
pub mod rtlink {
    pub use ::netlink::rtlink::{RtLink, VethEnd};
}

/// The sockets of a network namespace.
pub mod sock_diag {
    pub use ::netlink::sock_diag::InetSockets;
}
