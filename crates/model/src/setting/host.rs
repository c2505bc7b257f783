//! Knobs of the whole host.

use super::family::family;
use crate::nic::Sysctl;

family! {
    /// A knob of the whole host, with a value.
    HostKnob {
        /// A sysctl in `/proc/sys/net/core`.
        ///
        /// Kernel: 2.6.12 and later for some, `net/core/sysctl_net_core.c` `net_core_table`.
        Sysctl(Sysctl, u64) = [facts table],
    }
}

impl HostKnob {
    /// Formats the value as policy files and output show it.
    pub fn value(&self) -> String {
        match self {
            Self::Sysctl(_, value) => value.to_string(),
        }
    }
}
