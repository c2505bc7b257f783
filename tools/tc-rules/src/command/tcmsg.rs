//! The common parts of the messages of all commands: message numbers, `struct tcmsg` with its hook, and the
//! verb.

use model::IfIndex;
use netlink::attr::AttrBuf;

/// Message types: `RTM_*`.
pub mod message {
    /// `RTM_NEWQDISC`.
    pub const NEW_QDISC: u16 = 36;
    /// `RTM_DELQDISC`.
    pub const DEL_QDISC: u16 = 37;
    /// `RTM_GETQDISC`.
    pub const GET_QDISC: u16 = 38;
    /// `RTM_NEWTFILTER`.
    pub const NEW_FILTER: u16 = 44;
    /// `RTM_DELTFILTER`.
    pub const DEL_FILTER: u16 = 45;
    /// `RTM_GETTFILTER`.
    pub const GET_FILTER: u16 = 46;
    /// `RTM_NEWACTION`.
    pub const NEW_ACTION: u16 = 48;
    /// `RTM_DELACTION`.
    pub const DEL_ACTION: u16 = 49;
    /// `RTM_NEWCHAIN`.
    pub const NEW_CHAIN: u16 = 100;
    /// `RTM_DELCHAIN`.
    pub const DEL_CHAIN: u16 = 101;
    /// `RTM_GETCHAIN`.
    pub const GET_CHAIN: u16 = 102;
}

/// Request flags: `NLM_F_*`.
pub(super) mod flag {
    pub(in crate::command) const REQUEST: u16 = 0x1;
    pub(in crate::command) const REPLACE: u16 = 0x100;
    pub(in crate::command) const ROOT: u16 = 0x100;
    pub(in crate::command) const EXCL: u16 = 0x200;
    pub(in crate::command) const CREATE: u16 = 0x400;
}

pub(crate) const KIND: u16 = 1;
pub(crate) const OPTIONS: u16 = 2;
/// `TCA_RATE`.
pub(super) const RATE: u16 = 5;
pub(super) const CHAIN: u16 = 11;
pub(super) const INGRESS_BLOCK: u16 = 13;
pub(super) const EGRESS_BLOCK: u16 = 14;

/// `TCA_ACT_TAB`.
pub(crate) const ACT_TAB: u16 = 1;
/// `TCA_ROOT_FLAGS`.
pub(super) const ROOT_FLAGS: u16 = 2;
/// `TCA_ACT_FLAG_LARGE_DUMP_ON`.
pub(super) const LARGE_DUMP: u32 = 1;
/// `TCA_ACT_INDEX`.
pub(super) const ACT_INDEX: u16 = 3;

/// The parent of both hooks of a device: `TC_H_CLSACT`, equal to `TC_H_INGRESS`.
pub(super) const CLSACT: u32 = 0xffff_fff1;
/// The ingress hook: `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)`.
pub const INGRESS: u32 = 0xffff_fff2;
/// The egress hook: `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)`.
pub const EGRESS: u32 = 0xffff_fff3;
/// The root of a device: `TC_H_ROOT`.
pub(super) const ROOT: u32 = u32::MAX;

/// The device index that denotes a block: `TCM_IFINDEX_MAGIC_BLOCK`.
pub(super) const BLOCK: u32 = u32::MAX;

/// The verb.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verb {
    /// Creates an object, which must not exist.
    #[default]
    Add,
    /// Changes an object, which must exist.
    Change,
    /// Create or replace.
    Replace,
    /// Delete.
    Delete,
}

/// The attachment point of a rule: `struct tcmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hook {
    /// The device; 0 if none is given.
    pub device: IfIndex,
    /// The block, for rules shared by several devices.
    pub block: u32,
    /// The parent: a hook or a class.
    pub parent: u32,
}

impl Default for Hook {
    fn default() -> Self {
        Self { device: IfIndex(0), block: 0, parent: 0 }
    }
}

/// Rules that the kernel keeps together: same hook, chain and priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// The rules' hook.
    pub hook: Hook,
    /// The rules' chain.
    pub chain: u32,
    /// The rules' priority; 0 lets the kernel choose.
    pub priority: u16,
}

/// `struct tcmsg`.
pub(super) fn tcmsg(hook: Hook, handle: u32, info: u32, out: &mut AttrBuf) {
    let (device, parent) = if hook.block == 0 { (hook.device.0, hook.parent) } else { (BLOCK, hook.block) };
    let mut bytes = [0; 20];
    for (word, at) in [device, handle, parent, info].into_iter().zip([4, 8, 12, 16]) {
        bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    out.raw(&bytes);
}
