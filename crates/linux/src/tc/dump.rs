//! Reads rules back from the kernel.

use rules::attr::AttrBuf;
use rules::command::message;
use rules::{Filter, Hook};

use crate::error::KernelError;
use crate::netlink::{NetlinkSocket, Protocol};
use crate::netns::Netns;

/// The device that means a block: `TCM_IFINDEX_MAGIC_BLOCK`.
const BLOCK: u32 = u32::MAX;

/// A dumped rule, or the words that one is there that we do not know all of.
#[derive(Debug)]
pub enum Dumped<'a> {
    /// A rule.
    Rule(&'a Filter),
    /// A rule of a kind or with an action that we do not know.
    Unknown,
}

/// Gives every rule of a hook, in the kernel's order. A dump during which rules changed is begun again, and then gives
/// again what it gave.
///
/// # Errors
/// The kernel's refusal, such as EINVAL or ENODEV for a hook that is not there.
pub fn rules(netns: &Netns, hook: Hook, mut take: impl FnMut(Dumped<'_>) + Send) -> Result<(), KernelError> {
    let what = format!("rules of device {} block {} parent {:x}", hook.device.0, hook.block, hook.parent);
    let mut header = [0; 20];
    let (device, parent) = if hook.block == 0 { (hook.device.0, hook.parent) } else { (BLOCK, hook.block) };
    header[4..8].copy_from_slice(&device.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    let body = AttrBuf::after(&header);
    let mut rule = Filter::default();
    let mut socket = NetlinkSocket::open(Protocol::Route, netns)?;
    socket
        .dump::<()>(&what, message::GET_FILTER, &body, |object| {
            match rule.decode(object) {
                // u32 makes the first table of each priority by itself.
                Ok(_) if is_root_table(&rule) => {}
                Ok(Some(())) => {
                    if rule.hook.block == 0 {
                        rule.hook = hook; // the kernel may spell the parent in another way
                    }
                    take(Dumped::Rule(&rule));
                }
                // Without a handle it is a priority and not a rule.
                Ok(None) if rule.handle != 0 => take(Dumped::Unknown),
                Ok(None) => {}
                Err(malformed) => return Err(malformed),
            }
            Ok(None)
        })
        .map(|_| ())
}

/// Whether a dumped rule is the hash table that u32 makes by itself for each priority.
fn is_root_table(rule: &Filter) -> bool {
    matches!(&rule.classifier, rules::Classifier::U32(_))
        && rule.handle & 0xfff == 0
        && rule.handle >= 0x8000_0000
}

/// The priorities that a hook has, with their chains.
///
/// # Errors
/// As [`rules()`]; a hook that is not there has none.
pub fn groups(netns: &Netns, hook: Hook) -> Result<std::collections::BTreeSet<rules::Group>, KernelError> {
    let mut groups = std::collections::BTreeSet::new();
    let dumped = rules(netns, hook, |dumped| {
        if let Dumped::Rule(rule) = dumped {
            groups.insert(rule.group());
        }
    });
    match dumped {
        Ok(()) => Ok(groups),
        Err(error)
            if matches!(
                error.number(),
                Some(rustix::io::Errno::INVAL | rustix::io::Errno::NODEV | rustix::io::Errno::NOENT)
            ) =>
        {
            Ok(groups)
        }
        Err(error) => Err(error),
    }
}
