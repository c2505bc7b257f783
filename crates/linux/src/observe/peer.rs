//! Finds the other end of a veth in another namespace.

use std::path::PathBuf;

use model::{DeviceId, Label};
use netlink::{Ethtool, Links};
use sys::error::KernelError;
use sys::netns::Netns;

/// The maximum number of namespaces that are searched for one end.
const NAMESPACES_MAX: usize = 4096;

/// The other end of a veth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerEnd {
    /// The peer's name in its own namespace.
    pub name: Label,
    /// A file that refers to the peer's namespace.
    pub netns: PathBuf,
    /// Whether the peer segments TCP itself; `None` if that could not be read.
    pub tso: Option<bool>,
}

/// Finds the other end of a device of this namespace among the namespaces to which a name, a process or a
/// descriptor of a process refers. `None` if the other end is in this namespace or in one to which no file
/// refers, or if the device has no other end.
///
/// # Errors
/// If the namespace cannot be entered, or the device is gone.
pub fn peer_end(netns: &Netns, device: DeviceId) -> Result<Option<PeerEnd>, KernelError> {
    let mut links = netns.run(Links::open_here)??;
    let Some((ifindex, id)) = links.end_elsewhere(device.ifindex)? else { return Ok(None) };
    for there in Netns::all().filter(|there| there.id() != netns.id()).take(NAMESPACES_MAX) {
        // Skip a namespace that does not permit queries, and try the next one.
        if !links.id_of(&there).is_ok_and(|found| found == id) {
            continue;
        }
        let looked =
            there.run(|| Ok::<_, KernelError>((Links::open_here()?.name(ifindex)?, Ethtool::open_here())))?;
        let (name, ethtool) = looked?;
        let tso =
            ethtool.and_then(|mut ethtool| super::device::segments(&mut ethtool, ifindex)).ok().flatten();
        return Ok(Some(PeerEnd { name: Label::new(&name), netns: there.path().to_owned(), tso }));
    }
    Ok(None)
}
