//! Finds the devices of the default routes, the device through which an address is reached, and the device
//! that has an address.
//!
//! To find the default routes, this module asks the kernel for the routes to addresses that no host has. A
//! dump would read all routes, and a host may have millions of them.
//!
//! Kernel: 6.18, `net/ipv4/route.c` `inet_rtm_getroute()`, `net/ipv6/route.c` `inet6_rtm_getroute()`;
//! `include/uapi/linux/rtnetlink.h`. `RTM_F_FIB_MATCH` since 4.13 (IPv4) and 4.17 (IPv6).

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::IfIndex;
use sys::error::{Cause, KernelError};

use super::attr::{AttrBuf, Attrs, Malformed};
use super::socket::{NetlinkProtocol, NetlinkSocket};

/// `RTM_GETROUTE`.
const GET_ROUTE: u16 = 26;

/// The size of `struct rtmsg`.
const HEADER_BYTES: usize = 12;

/// `RTM_F_FIB_MATCH`: asks the kernel for the matching table entry instead of the resolved route.
const FIB_MATCH: u32 = 0x2000;

/// The size of `struct rtnexthop`.
const NEXT_HOP_BYTES: usize = 8;

/// The maximum number of next hops that are read.
const NEXT_HOPS_MAX: usize = 256;

/// Addresses for documentation, which no host has: RFC 5737, RFC 3849. Several are tried, because a host may
/// have routes that drop packets to some of them.
const ADDRESSES: [&[u8]; 4] = [
    &[192, 0, 2, 1],
    &[198, 51, 100, 1],
    &[203, 0, 113, 1],
    &[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
];

/// A socket for the routes of one namespace.
#[derive(Debug)]
pub struct Routes {
    socket: NetlinkSocket,
}

impl Routes {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn open_here() -> Result<Self, KernelError> {
        Ok(Self { socket: NetlinkSocket::open_here(NetlinkProtocol::Route)? })
    }

    /// Returns the devices of the default routes, for IPv4 and IPv6.
    ///
    /// # Errors
    /// If a reply is malformed, or the socket fails.
    pub fn default_route_devices(&mut self) -> Result<BTreeSet<IfIndex>, KernelError> {
        let mut found = BTreeSet::new();
        for address in ADDRESSES {
            let asked =
                self.socket.get("rt-route getroute", GET_ROUTE, &question(address, FIB_MATCH), default_route);
            found.extend(there_may_be_none(asked)?.unwrap_or_default());
        }
        Ok(found)
    }

    /// Returns the device through which packets to this address leave; `None` if there is no route, or if the
    /// route drops packets.
    ///
    /// # Errors
    /// If a reply is malformed, or the socket fails.
    pub fn device_towards(&mut self, address: IpAddr) -> Result<Option<IfIndex>, KernelError> {
        let question = match address {
            IpAddr::V4(address) => question(&address.octets(), 0),
            IpAddr::V6(address) => question(&address.octets(), 0),
        };
        let asked = self.socket.get("rt-route getroute", GET_ROUTE, &question, devices_of);
        Ok(there_may_be_none(asked)?.and_then(|devices| devices.first().copied()))
    }

    /// Returns the device that has this address; `None` if no device of the namespace has it.
    ///
    /// # Errors
    /// If a reply is malformed, or the socket fails.
    pub fn device_with_address(&mut self, address: IpAddr) -> Result<Option<IfIndex>, KernelError> {
        let question = match address {
            IpAddr::V4(address) => question(&address.octets(), FIB_MATCH),
            IpAddr::V6(address) => question(&address.octets(), FIB_MATCH),
        };
        let asked = self.socket.get("rt-route getroute", GET_ROUTE, &question, local_route);
        Ok(there_may_be_none(asked)?.and_then(|devices| devices.first().copied()))
    }
}

/// Maps the kernel's errors for a missing route, or for a route that drops packets, to `None`.
fn there_may_be_none<T>(asked: Result<T, KernelError>) -> Result<Option<T>, KernelError> {
    match asked {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if matches!(error.cause, Cause::Malformed(_)) => Err(error),
        Err(_) => Ok(None),
    }
}

fn question(address: &[u8], flags: u32) -> AttrBuf {
    /// `AF_INET`, `AF_INET6`.
    const FAMILIES: [u8; 2] = [2, 10];
    const DST: u16 = 1;
    let is_v6 = address.len() == 16;
    let mut header = [0_u8; HEADER_BYTES];
    header[0] = FAMILIES[usize::from(is_v6)];
    header[1] = if is_v6 { 128 } else { 32 };
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    let mut body = AttrBuf::after(&header);
    body.bytes(DST, address);
    body
}

/// Returns the devices of the route in a reply, if it is a default route.
fn default_route(object: &[u8]) -> Result<Vec<IfIndex>, Malformed> {
    let header = object.first_chunk::<HEADER_BYTES>().ok_or(Malformed("the fixed header is truncated"))?;
    if header[1] == 0 { devices_of(object) } else { Ok(Vec::new()) }
}

/// Returns the device of the route in a reply, if it leads to an address of this host.
fn local_route(object: &[u8]) -> Result<Vec<IfIndex>, Malformed> {
    /// `RTN_LOCAL`, in `rtm_type`.
    const LOCAL: u8 = 2;
    let header = object.first_chunk::<HEADER_BYTES>().ok_or(Malformed("the fixed header is truncated"))?;
    if header[7] == LOCAL { devices_of(object) } else { Ok(Vec::new()) }
}

/// Returns the devices of the route in a reply.
fn devices_of(object: &[u8]) -> Result<Vec<IfIndex>, Malformed> {
    const OIF: u16 = 4;
    const MULTIPATH: u16 = 9;
    let mut devices = Vec::new();
    for attr in Attrs::after(HEADER_BYTES, object)? {
        let attr = attr?;
        match attr.number {
            OIF => devices.push(IfIndex(attr.u32()?)),
            MULTIPATH => devices.extend(next_hops(attr.payload)?),
            _ => {}
        }
    }
    Ok(devices)
}

/// Returns the devices in a list of `struct rtnexthop`, each of which is followed by its attributes.
fn next_hops(mut rest: &[u8]) -> Result<Vec<IfIndex>, Malformed> {
    let mut devices = Vec::new();
    while let Some(hop) = rest.first_chunk::<NEXT_HOP_BYTES>() {
        if devices.len() == NEXT_HOPS_MAX {
            break;
        }
        devices.push(IfIndex(u32::from_ne_bytes([hop[4], hop[5], hop[6], hop[7]])));
        let length = usize::from(u16::from_ne_bytes([hop[0], hop[1]])).next_multiple_of(4);
        if length < NEXT_HOP_BYTES {
            return Err(Malformed("a next hop is shorter than its header"));
        }
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(devices)
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn route(prefix: u8, fill: impl FnOnce(&mut AttrBuf)) -> Vec<u8> {
        let mut header = [0; HEADER_BYTES];
        header[1] = prefix;
        let mut object = AttrBuf::after(&header);
        fill(&mut object);
        object.as_bytes().to_vec()
    }

    #[test]
    fn a_route_for_all_addresses_names_its_devices_and_a_narrower_one_none() {
        let one = |object: &mut AttrBuf| {
            object.u32(4, 7);
        };
        assert_eq!(default_route(&route(0, one)).expect("well-formed"), [IfIndex(7)]);
        assert_eq!(default_route(&route(8, one)).expect("well-formed"), []);
    }

    #[test]
    fn every_next_hop_of_a_route_over_several_is_named() {
        let mut hops = Vec::new();
        for device in [3_u32, 5] {
            // The attributes of each next hop are a gateway attribute of eight bytes.
            hops.extend_from_slice(&16_u16.to_ne_bytes());
            hops.extend_from_slice(&[0, 0]);
            hops.extend_from_slice(&device.to_ne_bytes());
            hops.extend_from_slice(&[0; 8]);
        }
        let object = route(0, |object| {
            object.bytes(9, &hops);
        });
        assert_eq!(default_route(&object).expect("well-formed"), [IfIndex(3), IfIndex(5)]);
    }

    proptest! {
        #[test]
        fn no_answer_makes_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = default_route(&bytes);
        }
    }
}
