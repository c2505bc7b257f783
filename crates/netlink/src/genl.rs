//! Generic netlink: families, which are resolved by name, and their commands.
//!
//! Kernel: 6.18, `include/uapi/linux/genetlink.h`, `net/netlink/genetlink.c`.

use std::collections::{BTreeMap, BTreeSet};

use model::KernelVersion;
use sys::error::{Errno, KernelError};

use super::attr::{AttrBuf, Attrs, Malformed};
use super::socket::NetlinkSocket;

/// The controller family: `GENL_ID_CTRL`.
const CONTROL: u16 = 0x10;

/// The size of `struct genlmsghdr`: command, version, two bytes of padding.
const HEADER_BYTES: usize = 4;

/// Commands of the controller family.
mod command {
    pub(super) const GET_FAMILY: u8 = 3;
    pub(super) const GET_POLICY: u8 = 10;
}

/// Attributes of the controller family: `CTRL_ATTR_*`.
mod attribute {
    pub(super) const FAMILY_ID: u16 = 1;
    pub(super) const FAMILY_NAME: u16 = 2;
    pub(super) const VERSION: u16 = 3;
    pub(super) const OPS: u16 = 6;
    pub(super) const GROUPS: u16 = 7;
    pub(super) const POLICY: u16 = 8;
    pub(super) const OP: u16 = 10;
    /// The id of an operation, `CTRL_ATTR_OP_ID`, nested in an operation.
    pub(super) const OP_ID: u16 = 1;
    /// The name and the id of a multicast group, `CTRL_ATTR_MCAST_GRP_NAME` and `CTRL_ATTR_MCAST_GRP_ID`,
    /// nested in a group.
    pub(super) const GROUP_NAME: u16 = 1;
    pub(super) const GROUP_ID: u16 = 2;
    /// The maximum value of an attribute, `NL_POLICY_TYPE_ATTR_MAX_VALUE_U`, nested in the attribute's
    /// policy.
    pub(super) const POLICY_MAX_VALUE_U: u16 = 5;
}

/// A generic netlink family of the running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenlFamily {
    name: String,
    id: u16,
    version: u8,
    commands: BTreeSet<u32>,
    groups: BTreeMap<String, u32>,
}

impl GenlFamily {
    /// Resolves the family with this name; `since` is the first kernel that has the family.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] if this kernel does not have the family.
    pub fn resolve(
        socket: &mut NetlinkSocket,
        name: &str,
        since: KernelVersion,
    ) -> Result<Self, KernelError> {
        let what = format!("generic netlink family {name}");
        let mut body = AttrBuf::after(&[command::GET_FAMILY, 1, 0, 0]);
        body.text(attribute::FAMILY_NAME, name);
        socket.get(&what, CONTROL, &body, |object| Self::parse(name, object)).map_err(|error| {
            match error.number() {
                Some(Errno::NOENT) => {
                    KernelError::absent(what.as_str(), format!("{name} netlink"), Some(since))
                }
                _ => error,
            }
        })
    }

    fn parse(name: &str, object: &[u8]) -> Result<Self, Malformed> {
        let mut family = Self {
            name: name.to_owned(),
            id: 0,
            version: 0,
            commands: BTreeSet::new(),
            groups: BTreeMap::new(),
        };
        for attr in attrs(object)? {
            let attr = attr?;
            match attr.number {
                attribute::FAMILY_ID => family.id = attr.u16()?,
                // Saturate a larger version: the header of a request has one byte for the version, and no
                // family has ever had a version that exceeds it.
                attribute::VERSION => family.version = attr.u32()?.try_into().unwrap_or(u8::MAX),
                attribute::GROUPS => {
                    for group in attr.nested() {
                        let group = group?;
                        let name = group.nested().find(attribute::GROUP_NAME)?;
                        let id = group.nested().find(attribute::GROUP_ID)?;
                        if let (Some(name), Some(id)) = (name, id) {
                            family.groups.insert(name.text()?.to_owned(), id.u32()?);
                        }
                    }
                }
                attribute::OPS => {
                    for operation in attr.nested() {
                        if let Some(id) = operation?.nested().find(attribute::OP_ID)? {
                            family.commands.insert(id.u32()?);
                        }
                    }
                }
                _ => {}
            }
        }
        if family.id == 0 { Err(Malformed("a generic netlink family without an id")) } else { Ok(family) }
    }

    /// Returns the message type of the family's requests.
    pub const fn id(&self) -> u16 {
        self.id
    }

    /// Returns the id of a multicast group of the family, if the kernel has the group.
    pub fn group(&self, name: &str) -> Option<u32> {
        self.groups.get(name).copied()
    }

    /// Whether the kernel has this command.
    pub fn has(&self, command: u8) -> bool {
        self.commands.contains(&u32::from(command))
    }

    /// Checks that the kernel has this command; the error contains `name` and `since`.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] if the kernel does not have the command.
    pub fn demand(&self, command: u8, name: &str, since: KernelVersion) -> Result<(), KernelError> {
        if self.has(command) {
            return Ok(());
        }
        let needs = format!("{} netlink `{name}`", self.name);
        Err(KernelError::absent(format!("{} {name}", self.name), needs, Some(since)))
    }

    /// Returns the body of a request for this command, without attributes.
    pub fn body(&self, command: u8) -> AttrBuf {
        AttrBuf::after(&[command, self.version, 0, 0])
    }

    /// Returns the attributes that the kernel accepts in requests for this command: the number of each, and
    /// its largest value if the kernel reports one. Needs Linux 5.7.
    ///
    /// # Errors
    /// If the kernel is older, or does not have the command.
    pub fn accepted(
        &self,
        socket: &mut NetlinkSocket,
        command: u8,
    ) -> Result<BTreeMap<u16, Option<u64>>, KernelError> {
        let what = format!("generic netlink family {}: attributes of command {command}", self.name);
        let mut body = AttrBuf::after(&[command::GET_POLICY, 1, 0, 0]);
        body.u16(attribute::FAMILY_ID, self.id).u32(attribute::OP, u32::from(command));
        let parts = socket.dump(&what, CONTROL, &body, |object| {
            let mut accepted = Vec::new();
            if let Some(policies) = attrs(object)?.find(attribute::POLICY)? {
                // The policies are keyed by index, and the attributes in each policy by number.
                for policy in policies.nested() {
                    for attr in policy?.nested() {
                        let attr = attr?;
                        let largest = attr.nested().find(attribute::POLICY_MAX_VALUE_U)?;
                        accepted.push((attr.number, largest.map(|largest| largest.uint()).transpose()?));
                    }
                }
            }
            Ok(Some(accepted))
        })?;
        Ok(parts.into_iter().flatten().collect())
    }
}

/// Iterates over the attributes of a reply, after its `struct genlmsghdr`.
///
/// # Errors
/// If the header is truncated.
pub fn attrs(object: &[u8]) -> Result<Attrs<'_>, Malformed> {
    Attrs::after(HEADER_BYTES, object)
}
