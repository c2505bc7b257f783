//! Creates devices, addresses and routes with rtnetlink.
//!
//! Only the lab and benchmarks use this module, in their own namespaces. netpolicy never creates or removes a
//! device of the host.
//!
//! Kernel: 6.18, `include/uapi/linux/if_link.h`, `net/core/rtnetlink.c` `rtnl_newlink()`, `drivers/net/veth.c`
//! `veth_newlink()`.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use model::IfIndex;
use sys::error::KernelError;

use super::attr::AttrBuf;
use super::message::flag;
use super::socket::{NetlinkProtocol, NetlinkSocket};

/// `RTM_NEWLINK`.
const NEW_LINK: u16 = 16;

/// `RTM_NEWADDR`.
const NEW_ADDRESS: u16 = 20;

/// `RTM_NEWROUTE`.
const NEW_ROUTE: u16 = 24;

/// `AF_INET`.
const INET: u8 = 2;

/// `IFF_UP`.
const UP: u32 = 1;

/// Attributes of a link: `IFLA_*`.
mod link {
    pub(super) const IFNAME: u16 = 3;
    pub(super) const LINKINFO: u16 = 18;
    pub(super) const NET_NS_FD: u16 = 28;
    pub(super) const NUM_TX_QUEUES: u16 = 31;
    pub(super) const NUM_RX_QUEUES: u16 = 32;
    /// In `LINKINFO`: `IFLA_INFO_KIND`.
    pub(super) const INFO_KIND: u16 = 1;
    /// In `LINKINFO`: `IFLA_INFO_DATA`.
    pub(super) const INFO_DATA: u16 = 2;
    /// `VETH_INFO_PEER`, in the data of a veth: a `struct ifinfomsg` with attributes.
    pub(super) const VETH_INFO_PEER: u16 = 1;
}

/// Attributes of an address: `IFA_*`.
mod address {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const LOCAL: u16 = 2;
}

/// Attributes of a route: `RTA_*`.
mod route {
    pub(super) const DST: u16 = 1;
    pub(super) const OIF: u16 = 4;
    pub(super) const METRICS: u16 = 8;
    /// In `METRICS`: `RTAX_FEATURES`.
    pub(super) const FEATURES: u16 = 12;
}

/// The properties of one end of a veth pair to create.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// The name.
    pub name: &'a str,
    /// The number of receive queues, which is also the number of transmit queues. Packets that one end sends
    /// on queue n arrive on queue n of the other end.
    pub queues: u32,
}

/// An rtnetlink socket in one namespace, for changing devices, addresses and routes.
#[derive(Debug)]
pub struct RtLink {
    socket: NetlinkSocket,
}

impl RtLink {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn open_here() -> Result<Self, KernelError> {
        Ok(Self { socket: NetlinkSocket::open_here(NetlinkProtocol::Route)? })
    }

    /// Creates a veth pair with one end in this namespace and the other in `peer_netns`. Both ends are down.
    ///
    /// # Errors
    /// The kernel's error; EEXIST if a device has one of the names.
    pub fn create_veth(
        &mut self,
        end: VethEnd<'_>,
        peer: VethEnd<'_>,
        peer_netns: BorrowedFd<'_>,
    ) -> Result<(), KernelError> {
        let peer_netns =
            u32::try_from(peer_netns.as_raw_fd()).unwrap_or_else(|_| unreachable!("a descriptor"));
        let what = format!("veth {} with peer {}", end.name, peer.name);
        let mut body = AttrBuf::after(&ifinfomsg(0, 0, 0));
        describe(&mut body, end);
        body.nested(link::LINKINFO, |info| {
            info.text(link::INFO_KIND, "veth").nested(link::INFO_DATA, |data| {
                data.nested(link::VETH_INFO_PEER, |other| {
                    other.raw(&ifinfomsg(0, 0, 0));
                    describe(other, peer);
                    other.u32(link::NET_NS_FD, peer_netns);
                });
            });
        });
        self.socket.request(&what, NEW_LINK, flag::CREATE | flag::EXCL, &body)
    }

    /// Brings a device up.
    ///
    /// # Errors
    /// The kernel's error; ENODEV if there is no such device.
    pub fn set_up(&mut self, device: IfIndex) -> Result<(), KernelError> {
        let body = AttrBuf::after(&ifinfomsg(device.0, UP, UP));
        self.socket.request(&format!("device {device}: up"), NEW_LINK, 0, &body)
    }

    /// Adds an address to a device; the kernel also adds a route to the address's subnet.
    ///
    /// # Errors
    /// The kernel's error; EEXIST if the device already has the address.
    pub fn add_address(&mut self, device: IfIndex, local: Ipv4Addr, prefix: u8) -> Result<(), KernelError> {
        // The fields of struct ifaddrmsg: family, prefix length, flags, scope (0: universe), index.
        let [a, b, c, d] = device.0.to_ne_bytes();
        let mut body = AttrBuf::after(&[INET, prefix, 0, 0, a, b, c, d]);
        body.bytes(address::LOCAL, &local.octets()).bytes(address::ADDRESS, &local.octets());
        let what = format!("device {device}: address {local}/{prefix}");
        self.socket.request(&what, NEW_ADDRESS, flag::CREATE | flag::EXCL, &body)
    }

    /// Adds a route to a host with the feature `tcp_usec_ts`, which makes TCP connections to the host use
    /// microsecond timestamps.
    ///
    /// Kernel: 6.7, `include/uapi/linux/rtnetlink.h` `RTAX_FEATURE_TCP_USEC_TS`.
    ///
    /// # Errors
    /// The kernel's error; EINVAL before Linux 6.7.
    pub fn add_route_with_microsecond_stamps(
        &mut self,
        device: IfIndex,
        host: Ipv4Addr,
    ) -> Result<(), KernelError> {
        const TCP_USEC_TS: u32 = 1 << 4;
        // The fields of struct rtmsg: family, destination and source length, TOS, table (main), protocol
        // (static), scope (link), type (unicast), flags.
        let mut body = AttrBuf::after(&[INET, 32, 0, 0, 254, 4, 253, 1, 0, 0, 0, 0]);
        body.bytes(route::DST, &host.octets()).u32(route::OIF, device.0);
        body.nested(route::METRICS, |metrics| {
            metrics.u32(route::FEATURES, TCP_USEC_TS);
        });
        let what = format!("device {device}: route to {host} with the feature tcp_usec_ts");
        self.socket.request(&what, NEW_ROUTE, flag::CREATE | flag::EXCL, &body)
    }
}

/// Builds a `struct ifinfomsg`: family, padding, hardware type, index, flags, and the mask of flags to
/// change.
fn ifinfomsg(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

fn describe(body: &mut AttrBuf, end: VethEnd<'_>) {
    body.text(link::IFNAME, end.name);
    body.u32(link::NUM_TX_QUEUES, end.queues).u32(link::NUM_RX_QUEUES, end.queues);
}
