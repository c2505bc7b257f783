//! Options that allow more intrusive changes.

use clap::Args;

/// Options that allow changes which need explicit permission.
#[derive(Clone, Copy, Debug, Args)]
pub struct AllowArgs {
    /// Also change settings whose old value the kernel would not accept again.
    #[arg(long, global = true)]
    pub allow_irreversible: bool,
    /// Also change settings that stop a queue or take the link down while they are written.
    #[arg(long, global = true)]
    pub disruptive: bool,
    /// Also pin interrupts whose queue the driver does not report, if it was inferred from names or order.
    #[arg(long, global = true)]
    pub allow_inferred: bool,
}

impl From<AllowArgs> for apply::Allow {
    fn from(allow: AllowArgs) -> Self {
        Self { irreversible: allow.allow_irreversible, disruptive: allow.disruptive }
    }
}
