//! Opens the kernel interfaces that an observation reads, and records what could not be read.

use model::host::Unread;
use netlink::qdisc::Disciplines;
use netlink::route::Routes;
use netlink::xdp_diag::XdpSockets;
use netlink::{Ethtool, Links, Netdev};
use sys::error::KernelError;
use sys::sysfs::SysFs;

use crate::ioctl::EthtoolIoctl;

/// The interfaces of a namespace, opened in one visit to it. For an interface that is unavailable on this
/// kernel or to this caller, the field holds the reason.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) links: Links,
    pub(super) netdev: Result<Netdev, KernelError>,
    pub(super) ethtool: Result<Ethtool, KernelError>,
    pub(super) sysfs: Result<SysFs, KernelError>,
    pub(super) ioctl: Result<EthtoolIoctl, KernelError>,
    pub(super) disciplines: Result<Disciplines, KernelError>,
    pub(super) xdp_sockets: Result<XdpSockets, KernelError>,
    pub(super) routes: Result<Routes, KernelError>,
}

impl Sources {
    pub(super) fn open_here() -> Result<Self, KernelError> {
        Ok(Self {
            links: Links::open_here()?,
            netdev: Netdev::open_here(),
            ethtool: Ethtool::open_here(),
            sysfs: SysFs::open_here(),
            ioctl: EthtoolIoctl::open_here(),
            disciplines: Disciplines::open_here(),
            xdp_sockets: XdpSockets::open_here(),
            routes: Routes::open_here(),
        })
    }
}

/// Records what could not be read, and uses the default instead.
pub(super) trait UnreadExt<T> {
    fn or_unread(self, unread: &mut Vec<Unread>) -> T;
}

impl<T: Default> UnreadExt<T> for Result<T, KernelError> {
    fn or_unread(self, unread: &mut Vec<Unread>) -> T {
        self.unwrap_or_else(|error| {
            unread.push(Unread { what: error.what, why: error.cause.to_string() });
            T::default()
        })
    }
}
