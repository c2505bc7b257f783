//! Reads rules back from the kernel.

use std::collections::{BTreeMap, BTreeSet};
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

use super::tables::Tables;
use netlink::{NetlinkSocket, Piece, Protocol};

/// The device that means a block: `TCM_IFINDEX_MAGIC_BLOCK`.
const BLOCK: u32 = u32::MAX;

/// The half of a parent that names the queueing discipline; all of it is that of clsact and ingress.
const QDISC: u32 = 0xffff_0000;

/// `RTM_GETTCLASS`.
const GET_CLASS: u16 = 42;

/// The multicast group of rules: `RTMGRP_TC`.
const GROUP_OF_TC: u32 = 8;

/// How many notices are drained in one call; more of them count as one change.
const NOTICES_MAX: usize = 65_536;

/// A dumped rule, or the words that one is there that we do not know all of.
#[derive(Debug)]
pub enum Dumped<'a> {
    /// The dump begins. If it began before, rules changed meanwhile, and what was given since is void.
    Begin,
    /// A rule.
    Rule(&'a Filter),
    /// A rule of a kind or with an action that we do not know.
    Unknown,
}

/// Gives every rule of a hook, in the kernel's order, and the hash tables of u32 that a user made. A table that has a number
/// in its own right belongs to all chains and both hooks of its priority; it and its rules are given with the first chain. A
/// dump that the kernel calls interrupted begins again ([`Dumped::Begin`]).
///
/// The kernel does not call every dump so during which rules changed: `net/sched/cls_api.c` `tc_dump_tfilter()` goes on
/// where it was by counting, so that a rule may be given twice or not at all. A caller that must know uses a [`Watch`].
///
/// # Errors
/// The kernel's refusal, such as EINVAL or ENODEV for a hook that is not there.
pub fn rules(netns: &Netns, hook: Hook, take: impl FnMut(Dumped<'_>) + Send) -> Result<(), KernelError> {
    rules_besides(netns, hook, BTreeSet::new(), take).map(drop)
}

/// Gives the rules of several hooks, one after the other, as [`rules()`] does, and each hash table of u32 once: those of a priority
/// belong to both hooks of a device.
#[derive(Debug)]
pub struct Several<'n> {
    netns: &'n Netns,
    /// The priorities whose tables were given, by block, or device and queueing discipline.
    given: BTreeMap<(u32, IfIndex, u32), BTreeSet<u16>>,
}

impl<'n> Several<'n> {
    /// Of no hook yet.
    pub const fn of(netns: &'n Netns) -> Self {
        Self { netns, given: BTreeMap::new() }
    }

    /// Gives the rules of one more hook.
    ///
    /// # Errors
    /// As [`rules()`].
    pub fn rules(&mut self, hook: Hook, take: impl FnMut(Dumped<'_>) + Send) -> Result<(), KernelError> {
        let owner = (hook.block, hook.device, hook.parent & QDISC);
        let before = self.given.get(&owner).cloned().unwrap_or_default();
        let given = rules_besides(self.netns, hook, before, take)?;
        self.given.insert(owner, given);
        Ok(())
    }
}

/// Gives every rule of a hook, and the hash tables of u32 except those of some priorities; returns the priorities whose tables
/// have been given by then.
fn rules_besides(
    netns: &Netns,
    hook: Hook,
    before: BTreeSet<u16>,
    mut take: impl FnMut(Dumped<'_>) + Send,
) -> Result<BTreeSet<u16>, KernelError> {
    let (what, body) = request(hook);
    let mut rule = Filter::default();
    let mut tables = Tables::of(netns, hook, before);
    let mut socket = NetlinkSocket::open(Protocol::Route, netns)?;
    socket.dump_each(&what, message::GET_FILTER, &body, |piece| {
        let Piece::Object(object) = piece else {
            tables.begin();
            take(Dumped::Begin);
            return Ok(());
        };
        match rule.decode(object) {
            Ok(Some(())) if !tables.take(&mut rule) => {}
            Ok(Some(())) => {
                if rule.hook.block == 0 {
                    rule.hook = hook; // the kernel may spell the parent differently
                }
                take(Dumped::Rule(&rule));
            }
            // Without a handle it is a priority and not a rule.
            Ok(None) if rule.handle != 0 => take(Dumped::Unknown),
            Ok(None) => {}
            Err(malformed) => return Err(malformed),
        }
        Ok(())
    })?;
    Ok(tables.given())
}

/// Gives what a terse dump has of every rule of a hook, in the kernel's order; `None` where it begins, also when it begins
/// again. All must be of flower.
///
/// # Errors
/// As [`rules()`]; EMSGSIZE or EOPNOTSUPP where a rule is of a kind that has no terse dump.
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
    NetlinkSocket::open(Protocol::Route, netns)?.dump_each(&what, message::GET_FILTER, &body, |piece| {
        match piece {
            Piece::Begin => take(None),
            Piece::Object(object) => {
                if let Some(rule) = Terse::decode(hook, object)? {
                    take(Some(&rule));
                }
            }
        }
        Ok(())
    })
}

/// A whole rule that a terse dump has listed; `None` if it has parts that we do not know.
///
/// # Errors
/// The kernel's refusal, such as ENOENT if it is gone.
pub fn whole(netns: &Netns, rule: &Terse) -> Result<Option<Filter>, KernelError> {
    /// `TCA_KIND`, `TCA_CHAIN`.
    const KIND: u16 = 1;
    const CHAIN: u16 = 11;
    let Group { hook, chain, priority } = rule.group;
    let info = u32::from(priority) << 16 | u32::from(rule.protocol.to_be());
    let mut body = AttrBuf::after(&header(hook, rule.handle, info));
    body.u32(CHAIN, chain);
    body.text(KIND, "flower");
    let mut socket = NetlinkSocket::open(Protocol::Route, netns)?;
    socket.get("a rule", message::GET_FILTER, &body, |object| {
        let mut whole = Filter::default();
        Ok(whole.decode(object)?.map(|()| Filter { hook, ..whole }))
    })
}

/// How many objects a dump of a hook has, without parsing them: the kernel's share of the cost of a dump.
///
/// # Errors
/// As [`rules()`].
pub fn count(netns: &Netns, hook: Hook) -> Result<usize, KernelError> {
    let (what, body) = request(hook);
    let mut count = 0;
    NetlinkSocket::open(Protocol::Route, netns)?.dump::<()>(&what, message::GET_FILTER, &body, |_| {
        count += 1;
        Ok(None)
    })?;
    Ok(count)
}

/// What a dump of a hook is called in errors, and its request.
fn request(hook: Hook) -> (String, AttrBuf) {
    let what = format!("rules of device {} block {} parent {:x}", hook.device.0, hook.block, hook.parent);
    (what, AttrBuf::after(&header(hook, 0, 0)))
}

/// `struct tcmsg` of a request about a hook, with a handle, and priority and protocol.
pub(super) fn header(hook: Hook, handle: u32, info: u32) -> [u8; 20] {
    let mut header = [0; 20];
    let (device, parent) = if hook.block == 0 { (hook.device.0, hook.parent) } else { (BLOCK, hook.block) };
    for (word, at) in [device, handle, parent, info].into_iter().zip([4, 8, 12, 16]) {
        header[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    header
}

/// Sees whether any rule of a namespace changes.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// Watches from now on. It costs those who change rules some time.
    ///
    /// # Errors
    /// If the namespace cannot be entered or the socket cannot be opened.
    pub fn open(netns: &Netns) -> Result<Self, KernelError> {
        let failed = |errno| KernelError::errno("netlink socket for notices of rules", errno);
        netns.run(|| {
            let kind = (AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC);
            let socket = socket_with(kind.0, kind.1, kind.2, None).map_err(failed)?;
            bind(&socket, &SocketAddrNetlink::new(0, GROUP_OF_TC)).map_err(failed)?;
            Ok(Self(socket))
        })?
    }

    /// Whether a rule has changed since this was asked last.
    ///
    /// # Errors
    /// If the socket cannot be read.
    pub fn has_changed(&self) -> Result<bool, KernelError> {
        let mut changed = false;
        let mut buffer = [0; 64]; // that there is something says all
        for _ in 0..NOTICES_MAX {
            match recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT) {
                // What does not fit any more was something, too.
                Ok(_) | Err(Errno::NOBUFS) => changed = true,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(changed),
                Err(errno) => return Err(KernelError::errno("read notices of rules", errno)),
            }
        }
        Ok(true)
    }
}

/// The priorities that a hook has, with their chains.
///
/// # Errors
/// As [`rules()`]; a hook that is not there has none.
pub fn groups(netns: &Netns, hook: Hook) -> Result<std::collections::BTreeSet<Group>, KernelError> {
    let mut groups = std::collections::BTreeSet::new();
    let dumped = rules(netns, hook, |dumped| match dumped {
        Dumped::Begin => groups.clear(),
        Dumped::Rule(rule) => _ = groups.insert(rule.group()),
        Dumped::Unknown => {}
    });
    match dumped {
        Ok(()) => Ok(groups),
        Err(error) if matches!(error.number(), Some(Errno::INVAL | Errno::NODEV | Errno::NOENT)) => {
            Ok(groups)
        }
        Err(error) => Err(error),
    }
}

/// The chains of a hook, including those that were created without rules.
///
/// # Errors
/// As [`rules()`]; a hook that is not there has none.
pub fn chains(netns: &Netns, hook: Hook) -> Result<std::collections::BTreeSet<u32>, KernelError> {
    /// `TCA_CHAIN`.
    const CHAIN: u16 = 11;
    /// The bytes of `struct tcmsg`.
    const HEADER_BYTES: usize = 20;
    let (what, body) = request(hook);
    let dumped =
        NetlinkSocket::open(Protocol::Route, netns)?.dump(&what, message::GET_CHAIN, &body, |object| {
            match Attrs::after(HEADER_BYTES, object)?.find(CHAIN)? {
                Some(chain) => chain.u32().map(Some),
                None => Ok(None),
            }
        });
    match dumped {
        Ok(chains) => Ok(chains.into_iter().collect()),
        Err(error) if matches!(error.number(), Some(Errno::INVAL | Errno::NODEV | Errno::NOENT)) => {
            Ok(std::collections::BTreeSet::new())
        }
        Err(error) => Err(error),
    }
}

/// The chains that a hook has, each with the template that its rules must keep to; `None` in place of one with a template that
/// we do not know all of.
///
/// # Errors
/// As [`rules()`]; a hook that is not there has none.
pub fn whole_chains(netns: &Netns, hook: Hook) -> Result<Vec<Option<Filter>>, KernelError> {
    let (what, body) = request(hook);
    let mut socket = NetlinkSocket::open(Protocol::Route, netns)?;
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

/// What rules of `ingress` and `egress` hang on, of all devices.
///
/// # Errors
/// The kernel's refusal.
pub fn qdiscs(netns: &Netns) -> Result<Vec<Qdisc>, KernelError> {
    let mut socket = NetlinkSocket::open(Protocol::Route, netns)?;
    socket.dump("queueing disciplines", message::GET_QDISC, &AttrBuf::after(&[0; 20]), Qdisc::decode)
}

/// The other queueing disciplines and classes of all devices, or of one: rules may hang on each. Those without a number of their own,
/// which the kernel made, have none.
///
/// # Errors
/// The kernel's refusal.
pub fn other_parents(netns: &Netns, device: Option<IfIndex>) -> Result<Vec<Hook>, KernelError> {
    let word = |object: &[u8], at: usize| {
        object.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes)
    };
    let parent = |object: &[u8]| {
        let hook = Hook { device: IfIndex(word(object, 4)), block: 0, parent: word(object, 8) };
        let wanted = device.is_none_or(|device| device == hook.device);
        (wanted && hook.parent != 0 && hook.parent & QDISC != QDISC).then_some(hook)
    };
    let mut socket = NetlinkSocket::open(Protocol::Route, netns)?;
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

/// Whether a device has the queueing discipline that a parent is of.
///
/// # Errors
/// The kernel's refusal.
pub fn has_qdisc(netns: &Netns, device: IfIndex, parent: u32) -> Result<bool, KernelError> {
    let mut header = [0; 20];
    header[4..8].copy_from_slice(&device.0.to_ne_bytes());
    let mut socket = NetlinkSocket::open(Protocol::Route, netns)?;
    let found =
        socket.dump("queueing disciplines", message::GET_QDISC, &AttrBuf::after(&header), |object| {
            let word = |at: usize| {
                object.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes)
            };
            // The kernel dumps all devices. The lower half of a handle is 0.
            Ok((word(4) == Some(device.0) && word(8) == Some(parent & 0xffff_0000)).then_some(()))
        })?;
    Ok(!found.is_empty())
}
