//! Names a place for rules in messages, and lists the rules that could not be removed there.

use std::fmt;

use linux::Cause;
use tc_rules::kernel::Devices;
use tc_rules::{Group, Lookup as _, command, number};

/// A place whose rules could not be removed, with the reason.
#[derive(Debug)]
pub(super) struct UnremovedRules {
    pub(super) what: String,
    pub(super) cause: Cause,
}

impl UnremovedRules {
    /// Records that the rules of a priority, or of a chain, could not be removed.
    pub(super) fn group(group: &Group, cause: Cause, devices: &mut Devices<'_>) -> Self {
        Self { what: place(group, devices), cause }
    }
}

/// Describes a place for rules: device and hook or block, chain and priority, as far as given.
pub(super) fn place(group: &Group, devices: &mut Devices<'_>) -> String {
    let Group { hook, chain, priority } = group;
    let mut what = match (hook.block, devices.name_of(hook.device)) {
        (0, Some(name)) => name,
        (0, None) => format!("if{}", hook.device.0),
        (block, _) => format!("block {block}"),
    };
    if hook.block == 0 {
        what.push_str(&match hook.parent {
            command::INGRESS => " ingress".to_owned(),
            command::EGRESS => " egress".to_owned(),
            class => format!(" parent {}", number::class_name(class)),
        });
    }
    if *chain != 0 {
        what.push_str(&format!(", chain {chain}"));
    }
    if *priority != 0 {
        what.push_str(&format!(", priority {priority}"));
    }
    what
}

impl fmt::Display for UnremovedRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.cause)
    }
}
