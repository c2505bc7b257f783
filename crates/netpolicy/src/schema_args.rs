//! The available JSON Schemas.

use clap::ValueEnum;

/// The available JSON Schemas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchemaOf {
    /// Policy files.
    PolicyFile,
    /// Recipe files.
    RecipeFile,
    /// What show prints with -o json, and each line with -o jsonl; so for the other commands.
    Show,
    /// What top prints.
    Top,
    /// What doctor prints.
    Doctor,
    /// What report prints.
    Report,
    /// What audit prints.
    Audit,
    /// What init prints.
    Init,
    /// What support-matrix prints.
    SupportMatrix,
    /// What plan, apply, set, unset and try print.
    #[value(aliases = ["apply", "set", "try"])]
    Plan,
    /// What verify prints.
    Verify,
    /// What history prints.
    History,
    /// What explain prints.
    Explain,
    /// What rollback prints.
    Rollback,
    /// What attach and run print.
    #[value(alias = "run")]
    Attach,
    /// What status prints.
    Status,
    /// What sockets list prints.
    Sockets,
    /// What cat prints.
    Cat,
    /// What lab prints.
    Lab,
    /// What bench prints.
    Bench,
    /// What tc prints.
    Tc,
    /// What sim prints.
    Sim,
    /// What watch prints, likewise.
    Watch,
    /// What compare prints, likewise.
    Compare,
    /// What tune prints.
    Tune,
}
