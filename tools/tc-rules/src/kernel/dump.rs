//! Reads rules back from the kernel.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use crate::command::{Qdisc, message};
use crate::{Filter, Group, Hook, Terse};
use model::IfIndex;
use netlink::attr::{AttrBuf, Attrs};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use sys::error::KernelError;
use sys::netns::Netns;

pub use super::rules::{Dumped, Several, groups, rules};
use netlink::{DumpPiece, NetlinkProtocol, NetlinkSocket};

/// The device index that denotes a block: `TCM_IFINDEX_MAGIC_BLOCK`.
const BLOCK: u32 = u32::MAX;

/// The half of a parent that identifies the qdisc; all ones for clsact and ingress.
pub(super) const QDISC: u32 = 0xffff_0000;

/// `RTM_GETTCLASS`.
const GET_CLASS: u16 = 42;

/// The multicast group for rules: `RTMGRP_TC`.
const GROUP_OF_TC: u32 = 8;

/// Maximum number of notifications that one call reads; the next call reports the rest as another change.
const NOTICES_MAX: usize = 65_536;

/// Passes the terse dump of every rule of a hook to `take`, in the kernel's order, and `None` whenever the
/// dump starts or restarts. All rules must be flower rules.
///
/// # Errors
/// As for [`rules()`]; EMSGSIZE or EOPNOTSUPP if a rule's kind has no terse dump.
pub fn terse(
    netns: &Netns,
    hook: Hook,
    mut take: impl FnMut(Option<&Terse>) + Send,
) -> Result<(), KernelError> {
    /// `TCA_DUMP_FLAGS`, `TCA_DUMP_FLAGS_TERSE`.
    const DUMP_FLAGS: u16 = 15;
    const TERSE: u32 = 1;
    let (what, mut body) = request(hook);
    body.bytes(DUMP_FLAGS, &[TERSE.to_ne_bytes(), TERSE.to_ne_bytes()].concat());
    NetlinkSocket::open(NetlinkProtocol::Route, netns)?.dump_each(
        &what,
        message::GET_FILTER,
        &body,
        |piece| {
            match piece {
                DumpPiece::Begin => take(None),
                DumpPiece::Object(object) => {
                    if let Some(rule) = Terse::decode(hook, object)? {
                        take(Some(&rule));
                    }
                }
            }
            Ok(())
        },
    )
}

/// The full rule of an entry in a terse dump; `None` if it is not fully known.
///
/// # Errors
/// The kernel's error, such as ENOENT if the rule was deleted.
pub fn whole(netns: &Netns, rule: &Terse) -> Result<Option<Filter>, KernelError> {
    /// `TCA_KIND`, `TCA_CHAIN`.
    const KIND: u16 = 1;
    const CHAIN: u16 = 11;
    let Group { hook, chain, priority } = rule.group;
    let info = u32::from(priority) << 16 | u32::from(rule.protocol.to_be());
    let mut body = AttrBuf::after(&header(hook, rule.handle, info));
    body.u32(CHAIN, chain);
    body.text(KIND, "flower");
    let mut socket = NetlinkSocket::open(NetlinkProtocol::Route, netns)?;
    socket.get("a rule", message::GET_FILTER, &body, |object| {
        let mut whole = Filter::default();
        Ok(whole.decode(object)?.map(|()| Filter { hook, ..whole }))
    })
}

/// Counts the objects in a dump of a hook without parsing them, to measure the kernel's share of the cost of
/// a dump.
///
/// # Errors
/// As for [`rules()`].
pub fn count(netns: &Netns, hook: Hook) -> Result<usize, KernelError> {
    let (what, body) = request(hook);
    let mut count = 0;
    NetlinkSocket::open(NetlinkProtocol::Route, netns)?.dump::<()>(
        &what,
        message::GET_FILTER,
        &body,
        |_| {
            count += 1;
            Ok(None)
        },
    )?;
    Ok(count)
}

/// Returns a description of a hook's dump for error messages, and the request.
pub(super) fn request(hook: Hook) -> (String, AttrBuf) {
    let what = format!("rules of device {} block {} parent {:x}", hook.device.0, hook.block, hook.parent);
    (what, AttrBuf::after(&header(hook, 0, 0)))
}

/// The `struct tcmsg` of a request for a hook, with a handle, priority and protocol.
pub(super) fn header(hook: Hook, handle: u32, info: u32) -> [u8; 20] {
    let mut header = [0; 20];
    let (device, parent) = if hook.block == 0 { (hook.device.0, hook.parent) } else { (BLOCK, hook.block) };
    for (word, at) in [device, handle, parent, info].into_iter().zip([4, 8, 12, 16]) {
        header[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    header
}

/// Detects whether any rule of a namespace changes.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// Starts watching, which takes some time of the processes that change rules.
    ///
    /// # Errors
    /// If the namespace cannot be entered or the socket cannot be opened.
    pub fn open(netns: &Netns) -> Result<Self, KernelError> {
        let failed = |errno| KernelError::errno("netlink socket for notifications about rules", errno);
        netns.run(|| {
            let kind = (AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC);
            let socket = socket_with(kind.0, kind.1, kind.2, None).map_err(failed)?;
            bind(&socket, &SocketAddrNetlink::new(0, GROUP_OF_TC)).map_err(failed)?;
            Ok(Self(socket))
        })?
    }

    /// Whether a rule has changed since the last call.
    ///
    /// # Errors
    /// If the socket cannot be read.
    pub fn has_changed(&self) -> Result<bool, KernelError> {
        let mut changed = false;
        let mut buffer = [0; 64]; // the contents are irrelevant
        for _ in 0..NOTICES_MAX {
            match recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT) {
                // An overflow of the socket's buffer also means that a rule has changed.
                Ok(_) | Err(Errno::NOBUFS) => changed = true,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(changed),
                Err(errno) => return Err(KernelError::errno("read notifications about rules", errno)),
            }
        }
        Ok(true)
    }
}

/// Returns the chains of a hook, including empty ones that were created explicitly.
///
/// # Errors
/// As for [`rules()`]; a hook that does not exist has no chains.
pub fn chains(netns: &Netns, hook: Hook) -> Result<BTreeSet<u32>, KernelError> {
    /// `TCA_CHAIN`.
    const CHAIN: u16 = 11;
    /// Size of `struct tcmsg`.
    const HEADER_BYTES: usize = 20;
    let (what, body) = request(hook);
    let dumped = NetlinkSocket::open(NetlinkProtocol::Route, netns)?.dump(
        &what,
        message::GET_CHAIN,
        &body,
        |object| match Attrs::after(HEADER_BYTES, object)?.find(CHAIN)? {
            Some(chain) => chain.u32().map(Some),
            None => Ok(None),
        },
    );
    match dumped {
        Ok(chains) => Ok(chains.into_iter().collect()),
        Err(error) if matches!(error.number(), Some(Errno::INVAL | Errno::NODEV | Errno::NOENT)) => {
            Ok(BTreeSet::new())
        }
        Err(error) => Err(error),
    }
}

/// The chains of a hook, each with the template that its rules must match; `None` for a chain whose template
/// is not fully known.
///
/// # Errors
/// As for [`rules()`]; a hook that does not exist has none.
pub fn whole_chains(netns: &Netns, hook: Hook) -> Result<Vec<Option<Filter>>, KernelError> {
    let (what, body) = request(hook);
    let mut socket = NetlinkSocket::open(NetlinkProtocol::Route, netns)?;
    let dumped = socket.dump(&what, message::GET_CHAIN, &body, |object| {
        let mut chain = Filter::default();
        Ok(Some(chain.decode_chain(hook, object)?.map(|()| chain)))
    });
    match dumped {
        Err(error) if matches!(error.number(), Some(Errno::INVAL | Errno::NODEV | Errno::NOENT)) => {
            Ok(Vec::new())
        }
        dumped => dumped,
    }
}

/// The ingress and clsact qdiscs of all devices.
///
/// # Errors
/// The kernel's error.
pub fn qdiscs(netns: &Netns) -> Result<Vec<Qdisc>, KernelError> {
    let mut socket = NetlinkSocket::open(NetlinkProtocol::Route, netns)?;
    socket.dump("queueing disciplines", message::GET_QDISC, &AttrBuf::after(&[0; 20]), Qdisc::decode)
}

/// Returns the other qdiscs and classes of all devices, or of one device, to which rules may be attached.
/// Qdiscs without a handle, which the kernel created, cannot have rules.
///
/// # Errors
/// The kernel's error.
pub fn other_parents(netns: &Netns, device: Option<IfIndex>) -> Result<Vec<Hook>, KernelError> {
    let word = |object: &[u8], at: usize| {
        object.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes)
    };
    let parent = |object: &[u8]| {
        let hook = Hook { device: IfIndex(word(object, 4)), block: 0, parent: word(object, 8) };
        let wanted = device.is_none_or(|device| device == hook.device);
        (wanted && hook.parent != 0 && hook.parent & QDISC != QDISC).then_some(hook)
    };
    let mut socket = NetlinkSocket::open(NetlinkProtocol::Route, netns)?;
    let empty = AttrBuf::after(&[0; 20]);
    let mut hooks =
        socket.dump("queueing disciplines", message::GET_QDISC, &empty, |object| Ok(parent(object)))?;
    let devices: BTreeSet<IfIndex> = hooks.iter().map(|hook| hook.device).collect();
    for device in devices {
        let mut header = [0; 20];
        header[4..8].copy_from_slice(&device.0.to_ne_bytes());
        let body = AttrBuf::after(&header);
        hooks.extend(socket.dump("classes", GET_CLASS, &body, |object| Ok(parent(object)))?);
    }
    Ok(hooks)
}

/// Whether a device has the qdisc to which this parent belongs.
///
/// # Errors
/// The kernel's error.
pub fn has_qdisc(netns: &Netns, device: IfIndex, parent: u32) -> Result<bool, KernelError> {
    let mut header = [0; 20];
    header[4..8].copy_from_slice(&device.0.to_ne_bytes());
    let mut socket = NetlinkSocket::open(NetlinkProtocol::Route, netns)?;
    let found =
        socket.dump("queueing disciplines", message::GET_QDISC, &AttrBuf::after(&header), |object| {
            let word = |at: usize| {
                object.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes)
            };
            // The kernel dumps all devices. The lower half of a qdisc's handle is 0.
            Ok((word(4) == Some(device.0) && word(8) == Some(parent & 0xffff_0000)).then_some(()))
        })?;
    Ok(!found.is_empty())
}
