//! What programs read, as JSON Schema: derived from the types that are printed.

use experiments::reports::{
    BenchReport, CalibrationReport, GridReport, LiveBenchReport, LiveCostReport, PredictionReport,
    RuleBenchReport, SelfcheckReport, ValidationReport,
};
use latency::judge::{GuardReport, JudgeBenchReport};
use latency::reports::{CompareReport, CompareRoundReport, WatchReport, WatchWindowReport};
use page::{Kind, Report, SCHEMA, record};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::*;
use crate::schema_args::SchemaOf;

/// A report's document and records.
type Part = fn(&mut SchemaGenerator) -> Vec<Kind>;

/// The document of a report and its records.
fn of<R: Report>(generator: &mut SchemaGenerator) -> Vec<Kind> {
    let mut kinds = vec![record::<R>(R::KIND, generator)];
    kinds.extend(R::records_as(generator));
    kinds
}

/// What a command prints with `-o json`, and each line with `-o jsonl`.
///
/// `None` for policy files and recipe files: they are no output.
pub(crate) fn output_schema(what: SchemaOf) -> Option<Value> {
    let (name, parts): (&str, &[Part]) = match what {
        SchemaOf::PolicyFile | SchemaOf::RecipeFile => return None,
        SchemaOf::Show => ("show", &[of::<HostReport<'_>>]),
        SchemaOf::Top => ("top", &[of::<ReadingReport<'_>>]),
        SchemaOf::Doctor => ("doctor", &[of::<FindingsReport<'_>>]),
        SchemaOf::Init => ("init", &[of::<primer::FirstFile>]),
        SchemaOf::SupportMatrix => ("support-matrix", &[of::<primer::SupportMatrix>]),
        SchemaOf::Plan => ("plan", &[of::<PlanReport>, of::<GuardReport>]),
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
        SchemaOf::Lab => ("lab", &[of::<LabReport>]),
        SchemaOf::Bench => (
            "bench",
            &[
                of::<BenchReport<'_>>,
                of::<GridReport<'_>>,
                of::<LiveBenchReport<'_>>,
                of::<LiveCostReport>,
                of::<JudgeBenchReport>,
                of::<SelfcheckReport>,
                of::<WatchReport<'_>>,
                of::<CompareReport>,
            ],
        ),
        SchemaOf::Watch => ("watch", &[of::<WatchReport<'_>>, of::<WatchWindowReport<'_>>]),
        SchemaOf::Compare => ("compare", &[of::<CompareReport>, of::<CompareRoundReport>]),
        SchemaOf::Tc => (
            "tc",
            &[
                of::<LoadReport>,
                of::<SurveyReport>,
                of::<DiffReport>,
                of::<DumpReport>,
                of::<RuleBenchReport>,
            ],
        ),
        SchemaOf::Sim => ("sim", &[of::<PredictionReport>, of::<ValidationReport>, of::<CalibrationReport>]),
    };
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut documents: Vec<Value> = Vec::new();
    for (kind, data) in parts.iter().flat_map(|part| part(&mut generator)).collect::<Vec<_>>() {
        let document = json!({
            "type": "object",
            "properties": { "schema": { "const": SCHEMA }, "kind": { "const": kind }, "data": data },
            "required": ["schema", "kind", "data"],
            "additionalProperties": false,
        });
        if !documents.contains(&document) {
            documents.push(document);
        }
    }
    Some(json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": format!("netpolicy/v1/{name}"),
        "title": format!("netpolicy {name}, with -o json, and each line with -o jsonl"),
        "$comment": "fields are added to a version, never removed or given another meaning",
        "anyOf": documents,
        "$defs": generator.take_definitions(true),
    }))
}
