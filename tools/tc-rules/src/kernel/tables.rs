//! Determines which u32 hash tables belong to the rules of a dump.
//!
//! The kernel shares the tables between all chains and both hooks of clsact, and dumps all tables of a
//! priority's number wherever that priority exists. Each priority of each chain has its own root table, for
//! rules that name none.
//!
//! Kernel: 6.18, `net/sched/cls_u32.c` `tc_u_common_ptr()`, `u32_walk()`.

use std::collections::BTreeSet;

use crate::command::{EGRESS, INGRESS, message};
use crate::{Classifier, Filter, Hook};
use netlink::attr::AttrBuf;
use sys::netns::Netns;

use super::dump;
use netlink::{NetlinkProtocol, NetlinkSocket};

/// The handle of the root table of a priority: `TC_U32_ROOT`.
const ROOT: u32 = 0xfff0_0000;

/// The first table number that the kernel assigns.
const NUMBERED_FROM: u32 = 0x8000_0000;

/// The bits of a handle that identify the table.
const TABLE: u32 = 0xfff0_0000;

/// `TCA_CHAIN`, `TCA_KIND`.
const CHAIN: u16 = 11;
const KIND: u16 = 1;

/// The tables in a dump of one hook so far.
#[derive(Debug)]
pub(super) struct Tables<'n> {
    netns: &'n Netns,
    hook: Hook,
    /// A socket for requests while the dump's own socket is busy.
    socket: Option<NetlinkSocket>,
    /// The chain and priority that the dump has reached, and their root table; 0 if it is unknown.
    at: Option<(u32, u16)>,
    root: u32,
    /// Whether an earlier chain or hook has this priority, so that its other tables were already passed on.
    given: bool,
    priorities: BTreeSet<u16>,
    /// The priorities whose tables were passed on with other hooks.
    before: BTreeSet<u16>,
    /// The root tables of this priority in other chains and hooks.
    elsewhere: Option<BTreeSet<u32>>,
}

impl<'n> Tables<'n> {
    pub(super) const fn of(netns: &'n Netns, hook: Hook, before: BTreeSet<u16>) -> Self {
        let priorities = BTreeSet::new();
        Self {
            netns,
            hook,
            socket: None,
            at: None,
            root: 0,
            given: false,
            priorities,
            before,
            elsewhere: None,
        }
    }

    /// The priorities whose tables have been passed on.
    pub(super) fn given(self) -> BTreeSet<u16> {
        let mut given = self.before;
        given.extend(self.priorities);
        given
    }

    /// Handles the start of a dump.
    pub(super) fn begin(&mut self) {
        self.at = None;
        self.priorities.clear();
    }

    /// Whether a dumped rule or table belongs to the chain it was dumped with, and is new. Also sets the root
    /// table of the rule. The root table itself does not count: the kernel created it.
    pub(super) fn take(&mut self, rule: &mut Filter) -> bool {
        if !matches!(rule.classifier, Classifier::U32(_)) {
            return true;
        }
        if rule.hook.block != 0 {
            // For a shared block, requests must name the block rather than one of its devices.
            self.hook = rule.hook;
        }
        let at = (rule.chain.unwrap_or(0), rule.priority);
        if self.at != Some(at) {
            self.at = Some(at);
            self.root = self.first(self.hook, at.0, at.1);
            self.given = !self.priorities.insert(at.1) || self.before.contains(&at.1);
            self.elsewhere = None;
        }
        let table = rule.handle & TABLE;
        if self.root == 0 {
            // The root table is unknown, because the priority was deleted in the meantime.
            return table != rule.handle || table < NUMBERED_FROM;
        }
        rule.set_root(self.root);
        if table == self.root {
            return table != rule.handle;
        }
        !self.given && (table < NUMBERED_FROM || !self.first_elsewhere(at).contains(&table))
    }

    /// The root tables of the priority in other chains and at the other hook.
    fn first_elsewhere(&mut self, (chain, priority): (u32, u16)) -> &BTreeSet<u32> {
        if self.elsewhere.is_none() {
            let hooks = match self.hook.parent {
                INGRESS | EGRESS if self.hook.block == 0 => {
                    [INGRESS, EGRESS].map(|parent| Hook { parent, ..self.hook }).to_vec()
                }
                _ => vec![self.hook],
            };
            let mut tables = BTreeSet::new();
            for hook in hooks {
                for other in dump::chains(self.netns, hook).unwrap_or_default() {
                    if (hook, other) != (self.hook, chain) {
                        tables.insert(self.first(hook, other, priority));
                    }
                }
            }
            self.elsewhere = Some(tables);
        }
        self.elsewhere.get_or_insert_default()
    }

    /// Returns the root table of a priority, or 0 if u32 has no such priority.
    fn first(&mut self, hook: Hook, chain: u32, priority: u16) -> u32 {
        if self.socket.is_none() {
            self.socket = NetlinkSocket::open(NetlinkProtocol::Route, self.netns).ok();
        }
        let Some(socket) = &mut self.socket else { return 0 };
        let header = dump::header(hook, ROOT, u32::from(priority) << 16);
        let mut body = AttrBuf::after(&header);
        body.u32(CHAIN, chain);
        body.text(KIND, "u32");
        let handle = socket.get("a hash table of u32", message::GET_FILTER, &body, |object| {
            let handle = object.get(8..12).and_then(|bytes| bytes.try_into().ok());
            Ok(handle.map_or(0, u32::from_ne_bytes))
        });
        handle.unwrap_or(0)
    }
}
