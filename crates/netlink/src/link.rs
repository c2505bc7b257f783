//! Reads devices and sets their packet sizes, with rt-link messages.
//!
//! Kernel: 6.18, `include/uapi/linux/if_link.h`, `net/core/rtnetlink.c` `rtnl_fill_ifinfo()`.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use model::host::PacketSizes;
use model::nic::PacketSize;
use model::{IfIndex, since};
use sys::error::{Errno, KernelError};
use sys::netns::Netns;

use super::attr::{Attr, AttrBuf, Attrs, Malformed};
use super::socket::{NetlinkProtocol, NetlinkSocket};

/// `RTM_NEWLINK`, which also changes existing links.
const NEW_LINK: u16 = 16;

/// `RTM_GETLINK`.
const GET_LINK: u16 = 18;

/// `RTM_GETNSID`.
const GET_NSID: u16 = 90;

/// The size of `struct rtgenmsg` including padding.
const GENERAL_BYTES: usize = 4;

/// `NETNSA_NSID`.
const NSID: u16 = 1;

/// The size of `struct ifinfomsg`.
const HEADER_BYTES: usize = 16;

/// `IFNAMSIZ`: a longer name is an alternative name.
const NAME_BYTES: usize = 16;

/// The maximum length of an alternative name: `ALTIFNAMSIZ` without the terminating NUL.
const ALT_NAME_BYTES_MAX: usize = 127;

/// `IFF_UP`: the device is administratively up.
const UP: u32 = 1 << 0;

/// `IFF_LOWER_UP`: the device has a carrier.
const LOWER_UP: u32 = 1 << 16;

/// Attributes of a link: `IFLA_*`.
mod attribute {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const IFNAME: u16 = 3;
    pub(super) const MASTER: u16 = 10;
    pub(super) const MTU: u16 = 4;
    pub(super) const LINK: u16 = 5;
    pub(super) const LINKINFO: u16 = 18;
    pub(super) const EXT_MASK: u16 = 29;
    pub(super) const LINK_NETNSID: u16 = 37;
    pub(super) const XDP: u16 = 43;
    pub(super) const GSO_MAX_SIZE: u16 = 41;
    pub(super) const GRO_MAX_SIZE: u16 = 58;
    pub(super) const TSO_MAX_SIZE: u16 = 59;
    pub(super) const GSO_IPV4_MAX_SIZE: u16 = 63;
    pub(super) const GRO_IPV4_MAX_SIZE: u16 = 64;
    pub(super) const ALT_IFNAME: u16 = 53;
    /// In `LINKINFO`: `IFLA_INFO_KIND`.
    pub(super) const INFO_KIND: u16 = 1;
    /// In `LINKINFO`: `IFLA_INFO_DATA`.
    pub(super) const INFO_DATA: u16 = 2;
    /// `IFLA_VXLAN_LINK`, in `INFO_DATA` of a vxlan.
    pub(super) const VXLAN_LINK: u16 = 3;
    /// `IFLA_VXLAN_GROUP` and `IFLA_VXLAN_GROUP6`, in `INFO_DATA` of a vxlan.
    pub(super) const VXLAN_GROUPS: [u16; 2] = [2, 16];
    /// `IFLA_GENEVE_REMOTE` and `IFLA_GENEVE_REMOTE6`, in `INFO_DATA` of a geneve.
    pub(super) const GENEVE_REMOTES: [u16; 2] = [2, 7];
    /// In `XDP`: `IFLA_XDP_ATTACHED`.
    pub(super) const XDP_ATTACHED: u16 = 2;
    /// The bit of `EXT_MASK` that asks the kernel to omit counters. Since 4.4; older kernels ignore it.
    pub(super) const SKIP_STATS: u32 = 1 << 3;
}

/// A device, as `RTM_NEWLINK` describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawLink<'a> {
    /// The index.
    pub ifindex: u32,
    /// `IFF_*`.
    pub flags: u32,
    /// The name, which may contain any bytes except white space, `/` and `:`. Kernel: `net/core/dev.c`
    /// `dev_valid_name()`.
    pub name: &'a [u8],
    /// The kind of a virtual device (`IFLA_INFO_KIND`).
    pub kind: Option<&'a str>,
    /// The largest packet, in bytes.
    pub mtu: u32,
    /// The index of the peer of a veth, or of the lower device of a stacked one (`IFLA_LINK`).
    pub link: Option<u32>,
    /// The remote unicast address of a tunnel that has no lower device.
    pub remote: Option<IpAddr>,
    /// The link-layer address, if it has six bytes (`IFLA_ADDRESS`).
    pub mac: Option<[u8; 6]>,
    /// The index of the device's master, such as a bridge (`IFLA_MASTER`).
    pub master: Option<u32>,
    /// The namespace of `link`, if it is not the device's own: the id that the observed namespace assigned to
    /// that namespace.
    pub link_netnsid: Option<i32>,
    /// How an XDP program is attached (`XDP_ATTACHED_*`); 0 if none is.
    pub xdp_attached: u8,
    /// Maximum packet sizes (`IFLA_GSO_MAX_SIZE` and others).
    pub packet_sizes: PacketSizes,
}

impl<'a> RawLink<'a> {
    /// Parses a reply.
    ///
    /// # Errors
    /// If an attribute is malformed.
    pub fn parse(object: &'a [u8]) -> Result<Self, Malformed> {
        let attrs = Attrs::after(HEADER_BYTES, object)?;
        let header =
            object.first_chunk::<HEADER_BYTES>().ok_or(Malformed("the fixed header is truncated"))?;
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let mut raw = Self { ifindex: word(4), flags: word(8), ..Self::default() };
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                attribute::IFNAME => raw.name = attr.until_zero(),
                attribute::ADDRESS => raw.mac = attr.mac().ok(),
                attribute::MASTER => raw.master = Some(attr.u32()?),
                attribute::MTU => raw.mtu = attr.u32()?,
                attribute::GSO_MAX_SIZE => raw.packet_sizes.gso_max_size = Some(attr.u32()?),
                attribute::GRO_MAX_SIZE => raw.packet_sizes.gro_max_size = Some(attr.u32()?),
                attribute::TSO_MAX_SIZE => raw.packet_sizes.tso_max_size = Some(attr.u32()?),
                attribute::GSO_IPV4_MAX_SIZE => raw.packet_sizes.gso_ipv4_max_size = Some(attr.u32()?),
                attribute::GRO_IPV4_MAX_SIZE => raw.packet_sizes.gro_ipv4_max_size = Some(attr.u32()?),
                attribute::LINK => raw.link = Some(attr.u32()?),
                attribute::LINK_NETNSID => raw.link_netnsid = Some(attr.i32()?),
                attribute::LINKINFO => {
                    if let Some(kind) = attr.nested().find(attribute::INFO_KIND)? {
                        raw.kind = Some(kind.text()?);
                    }
                    if let Some(data) = attr.nested().find(attribute::INFO_DATA)? {
                        raw.read_tunnel(data)?;
                    }
                }
                attribute::XDP => {
                    if let Some(attached) = attr.nested().find(attribute::XDP_ATTACHED)? {
                        raw.xdp_attached = attached.u8()?;
                    }
                }
                _ => {}
            }
        }
        Ok(raw)
    }

    /// Reads the underlay of a vxlan or geneve, because neither driver implements `ndo_get_iflink`. Kernel:
    /// 6.18, `drivers/net/vxlan/vxlan_core.c` `vxlan_fill_info()`, `drivers/net/geneve.c`
    /// `geneve_fill_info()`.
    fn read_tunnel(&mut self, data: Attr<'_>) -> Result<(), Malformed> {
        let remotes = match self.kind {
            Some("vxlan") => attribute::VXLAN_GROUPS,
            Some("geneve") => attribute::GENEVE_REMOTES,
            _ => return Ok(()),
        };
        if self.kind == Some("vxlan")
            && let Some(lower) = data.nested().find(attribute::VXLAN_LINK)?
        {
            self.link = Some(lower.u32()?);
            return Ok(());
        }
        for number in remotes {
            let Some(remote) = data.nested().find(number)? else { continue };
            let address = match remote.payload.len() {
                4 => remote.payload.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes)),
                _ => remote.payload.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)),
            };
            self.remote = address.filter(|address| !address.is_unspecified() && !address.is_multicast());
        }
        Ok(())
    }

    /// Returns the link-layer address and kind, by which the device is recognised from another namespace.
    /// `None` if the device has no address, like the loopback device.
    fn identity(&self) -> Option<String> {
        let mac = self.mac.filter(|mac| *mac != [0; 6])?;
        let bytes: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        Some([bytes.join(":"), self.kind.unwrap_or("").to_owned()].join(" ").trim_end().to_owned())
    }

    /// Whether the link is administratively up.
    pub const fn is_admin_up(&self) -> bool {
        self.flags & UP != 0
    }

    /// Whether the link has a carrier.
    pub const fn has_carrier(&self) -> bool {
        self.flags & LOWER_UP != 0
    }
}

/// The links of one namespace.
#[derive(Debug)]
pub struct Links {
    socket: NetlinkSocket,
}

impl Links {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn open_here() -> Result<Self, KernelError> {
        Ok(Self { socket: NetlinkSocket::open_here(NetlinkProtocol::Route)? })
    }

    /// Lists all devices, converted by `read`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn all<T>(&mut self, read: impl Fn(RawLink<'_>) -> T) -> Result<Vec<T>, KernelError> {
        let body = Self::question(0);
        self.socket
            .dump("rt-link getlink", GET_LINK, &body, |object| RawLink::parse(object).map(|l| Some(read(l))))
    }

    /// Returns the current name of a device.
    ///
    /// # Errors
    /// ENODEV if there is no such device.
    pub fn name(&mut self, ifindex: IfIndex) -> Result<String, KernelError> {
        let body = Self::question(ifindex.0);
        self.socket.get("rt-link getlink", GET_LINK, &body, |object| {
            let name = std::str::from_utf8(RawLink::parse(object)?.name);
            name.map(str::to_owned).map_err(|_| Malformed("a device's name is not UTF-8"))
        })
    }

    /// Returns the index of the device with this name or alternative name.
    ///
    /// # Errors
    /// ENODEV if there is no such device.
    pub fn index(&mut self, name: &str) -> Result<IfIndex, KernelError> {
        if name.len() > ALT_NAME_BYTES_MAX {
            let begin: String = name.chars().take(NAME_BYTES).collect();
            return Err(KernelError::errno(format!("device `{begin}…`"), Errno::NODEV));
        }
        let mut body = Self::question(0);
        let fits = name.len() < NAME_BYTES;
        body.text(if fits { attribute::IFNAME } else { attribute::ALT_IFNAME }, name);
        let read = |object: &[u8]| RawLink::parse(object).map(|link| IfIndex(link.ifindex));
        self.socket.get("rt-link getlink", GET_LINK, &body, read)
    }

    /// Whether a device is administratively up.
    ///
    /// # Errors
    /// ENODEV if there is no such device.
    pub fn is_up(&mut self, ifindex: IfIndex) -> Result<bool, KernelError> {
        let body = Self::question(ifindex.0);
        let read = |object: &[u8]| RawLink::parse(object).map(|link| link.is_admin_up());
        self.socket.get("rt-link getlink", GET_LINK, &body, read)
    }

    /// Returns the maximum packet sizes of a device.
    ///
    /// # Errors
    /// ENODEV if there is no such device.
    pub fn packet_sizes(&mut self, ifindex: IfIndex) -> Result<PacketSizes, KernelError> {
        let body = Self::question(ifindex.0);
        let read = |object: &[u8]| RawLink::parse(object).map(|link| link.packet_sizes);
        self.socket.get("rt-link getlink", GET_LINK, &body, read)
    }

    /// Sets maximum packet sizes of a device in one request. IPv4 limits that are not in `sizes` keep their
    /// value.
    ///
    /// # Errors
    /// The kernel's error: EINVAL if the driver does not support such packets, EPERM without CAP_NET_ADMIN;
    /// [`sys::Cause::Absent`] on a kernel that does not know one of the limits and would silently ignore it.
    pub fn set_packet_sizes(
        &mut self,
        ifindex: IfIndex,
        wanted: &[(PacketSize, u32)],
    ) -> Result<(), KernelError> {
        let what = "rt-link setlink";
        let now = self.packet_sizes(ifindex)?;
        if let Some((size, _)) = wanted.iter().find(|(size, _)| now.of(*size).is_none()) {
            return Err(KernelError::absent(what, format!("a kernel with {size}"), Some(since::BIG_TCP)));
        }
        let mut sizes = wanted.to_vec();
        for (size, _) in wanted {
            let other = size.overwrites().filter(|other| wanted.iter().all(|(named, _)| named != other));
            sizes.extend(other.and_then(|other| Some((other, now.of(other)?))));
        }
        let mut body = Self::question(ifindex.0);
        // The kernel applies the limits in a fixed order, those for IPv4 last.
        for (size, bytes) in sizes {
            let attribute = match size {
                PacketSize::Gso => attribute::GSO_MAX_SIZE,
                PacketSize::Gro => attribute::GRO_MAX_SIZE,
                PacketSize::GsoIpv4 => attribute::GSO_IPV4_MAX_SIZE,
                PacketSize::GroIpv4 => attribute::GRO_IPV4_MAX_SIZE,
            };
            body.u32(attribute, bytes);
        }
        let written = self.socket.request(what, NEW_LINK, 0, &body);
        written.map_err(|error| error.needing("CAP_NET_ADMIN"))
    }

    /// Returns the namespace's cookie, which is unique until the next boot; `None` on kernels before 5.14.
    pub fn netns_cookie(&self) -> Option<u64> {
        self.socket.netns_cookie()
    }

    /// Returns the peer of a device if the peer is in another namespace: the peer's index in that namespace,
    /// and the id that this namespace assigned to that namespace. `None` if there is no such peer.
    ///
    /// # Errors
    /// ENODEV if there is no such device.
    pub fn end_elsewhere(&mut self, ifindex: IfIndex) -> Result<Option<(IfIndex, i32)>, KernelError> {
        let body = Self::question(ifindex.0);
        let read = |object: &[u8]| {
            let link = RawLink::parse(object)?;
            Ok(link.link.map(IfIndex).zip(link.link_netnsid))
        };
        self.socket.get("rt-link getlink", GET_LINK, &body, read)
    }

    /// Returns a device's link-layer address and, if the device is virtual, its kind, as one text; `None` if
    /// the device has no address.
    ///
    /// # Errors
    /// ENODEV if there is no such device.
    pub fn identity(&mut self, ifindex: IfIndex) -> Result<Option<String>, KernelError> {
        let body = Self::question(ifindex.0);
        self.socket.get("rt-link getlink", GET_LINK, &body, |object| Ok(RawLink::parse(object)?.identity()))
    }

    /// Returns the ids that this namespace has assigned to other namespaces. The kernel assigns an id when a
    /// device moves to a namespace that has no id yet.
    ///
    /// Kernel: 6.18, `net/core/dev.c` `__dev_change_net_namespace()`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn ids(&mut self) -> Result<Vec<i32>, KernelError> {
        let body = AttrBuf::after(&[0; GENERAL_BYTES]);
        self.socket.dump("rt-link getnsid", GET_NSID, &body, |object| {
            let id = Attrs::after(GENERAL_BYTES, object)?.find(NSID)?;
            id.map(|id| id.i32()).transpose()
        })
    }

    /// Returns the names and [identities](Links::identity) of all devices in the namespace with this id.
    ///
    /// # Errors
    /// The kernel's error: EACCES without permission in that namespace, EINVAL before 5.0.
    pub fn identities_in(&mut self, id: i32) -> Result<Vec<(String, Option<String>)>, KernelError> {
        /// `IFLA_TARGET_NETNSID`.
        const TARGET_NETNSID: u16 = 46;
        let mut body = Self::question(0);
        body.bytes(TARGET_NETNSID, &id.to_ne_bytes());
        self.socket.dump("rt-link getlink", GET_LINK, &body, |object| {
            let link = RawLink::parse(object)?;
            Ok(Some((String::from_utf8_lossy(link.name).into_owned(), link.identity())))
        })
    }

    /// Returns the id that this namespace assigned to `netns`; negative if there is none.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn id_of(&mut self, netns: &Netns) -> Result<i32, KernelError> {
        /// `NETNSA_FD`.
        const FD: u16 = 3;
        let mut body = AttrBuf::after(&[0; GENERAL_BYTES]);
        // A descriptor is never negative.
        body.u32(FD, u32::try_from(netns.as_fd().as_raw_fd()).unwrap_or(u32::MAX));
        self.socket.get("rt-link getnsid", GET_NSID, &body, |object| {
            let id = Attrs::after(GENERAL_BYTES, object)?.find(NSID)?;
            id.map_or(Err(Malformed("no id")), |id| id.i32())
        })
    }

    fn question(ifindex: u32) -> AttrBuf {
        let mut header = [0; HEADER_BYTES];
        header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        let mut body = AttrBuf::after(&header);
        body.u32(attribute::EXT_MASK, attribute::SKIP_STATS);
        body
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_answer_makes_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = RawLink::parse(&bytes);
        }
    }

    #[test]
    fn a_veth_whose_peer_is_elsewhere_says_where() {
        let mut header = [0; HEADER_BYTES];
        header[4..8].copy_from_slice(&5_u32.to_ne_bytes());
        header[8..12].copy_from_slice(&(UP | LOWER_UP).to_ne_bytes());
        let mut object = AttrBuf::after(&header);
        object.text(attribute::IFNAME, "veth0").u32(attribute::MTU, 1500).u32(attribute::LINK, 7);
        object.bytes(attribute::ADDRESS, &[2, 0, 0, 0, 0, 7]).u32(attribute::MASTER, 9);
        object.u32(attribute::LINK_NETNSID, 0);
        object.nested(attribute::LINKINFO, |info| {
            info.text(attribute::INFO_KIND, "veth");
        });
        object.u32(attribute::GSO_MAX_SIZE, 185_000).u32(attribute::TSO_MAX_SIZE, 524_280);
        object.nested(attribute::XDP, |xdp| {
            xdp.u8(attribute::XDP_ATTACHED, 1);
        });
        let link = RawLink::parse(object.as_bytes()).expect("well-formed");
        let expected = RawLink {
            ifindex: 5,
            flags: UP | LOWER_UP,
            name: b"veth0",
            kind: Some("veth"),
            mtu: 1500,
            mac: Some([2, 0, 0, 0, 0, 7]),
            link: Some(7),
            remote: None,
            master: Some(9),
            link_netnsid: Some(0),
            xdp_attached: 1,
            packet_sizes: PacketSizes {
                gso_max_size: Some(185_000),
                tso_max_size: Some(524_280),
                ..PacketSizes::default()
            },
        };
        assert_eq!(link, expected);
        assert!(link.is_admin_up() && link.has_carrier());
    }

    #[test]
    fn a_tunnel_that_names_no_device_says_where_it_sends_to_unless_to_a_group() {
        let remote = |kind: &str, number: u16, address: &[u8]| {
            let mut object = AttrBuf::after(&[0; HEADER_BYTES]);
            object.nested(attribute::LINKINFO, |info| {
                info.text(attribute::INFO_KIND, kind);
                info.nested(attribute::INFO_DATA, |data| {
                    data.bytes(number, address);
                });
            });
            RawLink::parse(object.as_bytes()).expect("well-formed").remote
        };
        let one = IpAddr::from([192, 0, 2, 9]);
        assert_eq!(remote("geneve", 2, &[192, 0, 2, 9]), Some(one));
        assert_eq!(remote("vxlan", 2, &[192, 0, 2, 9]), Some(one));
        assert_eq!(remote("vxlan", 2, &[239, 1, 1, 1]), None);
        let six = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(remote("geneve", 7, &six), Some(IpAddr::from(six)));
        assert_eq!(remote("vlan", 2, &[192, 0, 2, 9]), None);
    }
}
