//! What a change of the host may do.

use clap::Args;

/// What is not done unasked.
#[derive(Clone, Copy, Debug, Args)]
pub struct Allow {
    /// Also change settings whose old value the kernel does not take back.
    #[arg(long, global = true)]
    pub allow_irreversible: bool,
    /// Also change settings that stop a queue or take the link down while they are written.
    #[arg(long, global = true)]
    pub disruptive: bool,
    /// Also pin interrupts whose queue the driver does not state, inferred from their names or order.
    #[arg(long, global = true)]
    pub allow_inferred: bool,
}

impl From<Allow> for apply::Allow {
    fn from(allow: Allow) -> Self {
        Self { irreversible: allow.allow_irreversible, disruptive: allow.disruptive }
    }
}
