//! The available JSON Schemas.

use clap::ValueEnum;

/// The available JSON Schemas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchemaOf {
    /// Policy files.
    PolicyFile,
    /// Recipe files.
    RecipeFile,
    /// The output of show with -o json, and of each line with -o jsonl; likewise for the other commands.
    Show,
    /// The output of top.
    Top,
    /// The output of doctor.
    Doctor,
    /// The output of report.
    Report,
    /// The output of audit.
    Audit,
    /// The output of record.
    Record,
    /// The output of diff.
    Diff,
    /// The output of init.
    Init,
    /// The output of support-matrix.
    SupportMatrix,
    /// The output of plan, apply, set, unset and try.
    #[value(aliases = ["apply", "set", "try"])]
    Plan,
    /// The output of verify.
    Verify,
    /// The output of history.
    History,
    /// The output of explain.
    Explain,
    /// The output of rollback.
    Rollback,
    /// The output of attach and run.
    #[value(alias = "run")]
    Attach,
    /// The output of status.
    Status,
    /// The output of sockets list.
    Sockets,
    /// The output of cat.
    Cat,
    /// The output of lab.
    Lab,
    /// The output of bench.
    Bench,
    /// The output of tc.
    Tc,
    /// The output of sim.
    Sim,
    /// The output of watch, and of each of its lines.
    Watch,
    /// The output of compare, and of each of its lines.
    Compare,
    /// The output of tune.
    Tune,
}
