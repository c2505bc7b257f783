//! Dumps the rules of hooks, with the hash tables that their u32 filters use.

use std::collections::{BTreeMap, BTreeSet};

use model::IfIndex;
use netlink::{DumpPiece, NetlinkProtocol, NetlinkSocket};
use rustix::io::Errno;
use sys::error::KernelError;
use sys::netns::Netns;

use super::dump::{QDISC, request};
use super::tables::Tables;
use crate::command::message;
use crate::{Filter, Group, Hook};

/// A dumped rule, or an indication that a rule is not fully known.
#[derive(Debug)]
pub enum Dumped<'a> {
    /// The dump starts, or restarts because rules have changed: everything passed before is void.
    Begin,
    /// A rule.
    Rule(&'a Filter),
    /// A rule with an unknown kind or action.
    Unknown,
}

/// Passes on every rule of a hook, in the kernel's order, and the u32 hash tables that a user created. A
/// table with an explicit number belongs to all chains and both hooks of its priority; it is passed on with
/// its rules in the first chain. A dump that the kernel reports as interrupted restarts ([`Dumped::Begin`]).
///
/// The kernel does not report every change during a dump: `net/sched/cls_api.c` `tc_dump_tfilter()` resumes
/// by counting, so a rule may be missing or duplicated. A caller that must know uses a [`Watch`](super::dump::Watch).
///
/// # Errors
/// The kernel's error, such as EINVAL or ENODEV for a hook that does not exist.
pub fn rules(netns: &Netns, hook: Hook, take: impl FnMut(Dumped<'_>) + Send) -> Result<(), KernelError> {
    rules_besides(netns, hook, BTreeSet::new(), take).map(drop)
}

/// Passes on the rules of several hooks, one after the other, as [`rules()`] does, but each u32 hash table
/// only once, because the tables of a priority belong to both hooks of a device.
#[derive(Debug)]
pub struct Several<'n> {
    netns: &'n Netns,
    /// The priorities whose tables were passed on, by block, or by device and qdisc.
    given: BTreeMap<(u32, IfIndex, u32), BTreeSet<u16>>,
}

impl<'n> Several<'n> {
    /// Creates a dump that has read no hook yet.
    pub const fn of(netns: &'n Netns) -> Self {
        Self { netns, given: BTreeMap::new() }
    }

    /// Passes on the rules of another hook.
    ///
    /// # Errors
    /// As for [`rules()`].
    pub fn rules(&mut self, hook: Hook, take: impl FnMut(Dumped<'_>) + Send) -> Result<(), KernelError> {
        let owner = (hook.block, hook.device, hook.parent & QDISC);
        let before = self.given.get(&owner).cloned().unwrap_or_default();
        let given = rules_besides(self.netns, hook, before, take)?;
        self.given.insert(owner, given);
        Ok(())
    }
}

/// Passes on every rule of a hook, and the u32 hash tables except those of some priorities; returns the
/// priorities whose tables have been passed on by then.
fn rules_besides(
    netns: &Netns,
    hook: Hook,
    before: BTreeSet<u16>,
    mut take: impl FnMut(Dumped<'_>) + Send,
) -> Result<BTreeSet<u16>, KernelError> {
    let (what, body) = request(hook);
    let mut rule = Filter::default();
    let mut tables = Tables::of(netns, hook, before);
    let mut socket = NetlinkSocket::open(NetlinkProtocol::Route, netns)?;
    socket.dump_each(&what, message::GET_FILTER, &body, |piece| {
        let DumpPiece::Object(object) = piece else {
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
            // An object without a handle is a priority rather than a rule.
            Ok(None) if rule.handle != 0 => take(Dumped::Unknown),
            Ok(None) => {}
            Err(malformed) => return Err(malformed),
        }
        Ok(())
    })?;
    Ok(tables.given())
}

/// The priorities of a hook, with their chains.
///
/// # Errors
/// As for [`rules()`]; a hook that does not exist has none.
pub fn groups(netns: &Netns, hook: Hook) -> Result<BTreeSet<Group>, KernelError> {
    let mut groups = BTreeSet::new();
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
