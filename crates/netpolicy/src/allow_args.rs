//! What a change of the host may do.

use clap::Args;

/// What is not done unasked.
#[derive(Clone, Copy, Debug, Args)]
pub struct Allow {
    /// Change settings whose old value the kernel does not take back, too.
    #[arg(long, global = true)]
    pub allow_irreversible: bool,
    /// Change settings that stop a queue or take the link down while they are written, too.
    #[arg(long, global = true)]
    pub disruptive: bool,
    /// Pin interrupts, too, of which the driver does not say whose queue they are: by their name or their order.
    #[arg(long, global = true)]
    pub allow_inferred: bool,
}

impl From<Allow> for apply::Allow {
    fn from(allow: Allow) -> Self {
        Self { irreversible: allow.allow_irreversible, disruptive: allow.disruptive }
    }
}
