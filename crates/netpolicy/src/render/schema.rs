//! Creates the JSON Schemas of JSON output, derived from the printed types.

use cli::schema::{SchemaPart, of_command, part as of};
use latency::judge::{ForesightReport, GuardReport};
use latency::reports::{CompareReport, CompareRoundReport, TuneReport, WatchReport, WatchWindowReport};
use serde_json::Value;

use super::*;
use crate::schema_args::SchemaOf;

/// Returns the schema of a command's output with `-o json`, and of each line with `-o jsonl`. `None` for
/// policy files and recipe files, which are not output, and for commands of other programs.
pub(crate) fn output_schema(what: SchemaOf) -> Option<Value> {
    let (name, parts): (&str, &[SchemaPart]) = match what {
        SchemaOf::PolicyFile | SchemaOf::RecipeFile => return None,
        SchemaOf::Lab | SchemaOf::Bench | SchemaOf::Tc | SchemaOf::Sim => return None,
        SchemaOf::Show => ("show", &[of::<HostReport<'_>>]),
        SchemaOf::Top => ("top", &[of::<ReadingReport<'_>>]),
        SchemaOf::Doctor => ("doctor", &[of::<FindingsReport<'_>>]),
        SchemaOf::Report => ("report", &[of::<crate::fleet::HostReport>]),
        SchemaOf::Audit => ("audit", &[of::<crate::fleet::AuditReport>]),
        SchemaOf::Diff => ("diff", &[of::<DifferenceReport>]),
        SchemaOf::Record => ("record", &[of::<RecordReport>]),
        SchemaOf::Init => ("init", &[of::<crate::init::FirstFile>]),
        SchemaOf::SupportMatrix => ("support-matrix", &[of::<crate::support::SupportMatrix>]),
        SchemaOf::Plan => ("plan", &[of::<PlanReport>, of::<GuardReport>, of::<ForesightReport>]),
        SchemaOf::Verify => ("verify", &[of::<DriftReport>]),
        SchemaOf::History => ("history", &[of::<HistoryReport>]),
        SchemaOf::Explain => (
            "explain",
            &[of::<ExplainedReport>, of::<RecipeReport>, of::<KnobReport>, of::<FindingKindReport>],
        ),
        SchemaOf::Rollback => ("rollback", &[of::<UndoneReport>]),
        SchemaOf::Attach => ("attach", &[of::<EventReport>]),
        SchemaOf::Status => ("status", &[of::<StatusReport>]),
        SchemaOf::Sockets => ("sockets", &[of::<SocketsReport>]),
        SchemaOf::Cat => ("cat", &[of::<MergedReport>]),
        SchemaOf::Watch => ("watch", &[of::<WatchReport<'_>>, of::<WatchWindowReport<'_>>]),
        SchemaOf::Compare => {
            ("compare", &[of::<CompareReport>, of::<CompareRoundReport>, of::<ForesightReport>])
        }
        SchemaOf::Tune => ("tune", &[of::<TuneReport>]),
    };
    Some(of_command(name, parts))
}
