//! What the rooms above use of netlink themselves: no message, and no attribute.

/// Devices that a lab makes.
pub mod rtlink {
    pub use ::netlink::rtlink::{RtLink, VethEnd};
}

/// The sockets of a network namespace.
pub mod sock_diag {
    pub use ::netlink::sock_diag::InetSockets;
}
