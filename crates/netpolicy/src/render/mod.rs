//! The only place that prints: data on standard output, talk on standard error.

mod asked_for;
mod bench;
mod calibration;
mod console;
mod count;
mod curves;
mod drift;
mod event;
mod explained;
mod fault;
mod findings;
mod history;
mod host;
mod lab;
mod listeners;
mod live_bench;
mod merged;
mod plan;
mod prediction;
mod reading;
mod recipe;
mod report;
mod schema;
mod sim_schema;
mod sockets;
mod status;
mod svg;
mod table;
mod tc;
mod tc_schema;
#[cfg(test)]
mod test;
mod undone;
mod validation;
mod watch;
mod watch_schema;

pub(crate) use bench::{BenchReport, GridReport};
pub(crate) use calibration::CalibrationReport;
pub(crate) use console::{Console, said_if_long};
pub(crate) use count::count;
pub(crate) use drift::{DriftReport, Unread};
pub(crate) use event::EventReport;
pub(crate) use explained::ExplainedReport;
pub(crate) use findings::FindingsReport;
pub(crate) use history::HistoryReport;
pub(crate) use host::HostReport;
pub(crate) use lab::LabReport;
pub(crate) use live_bench::{LiveBenchReport, LiveCostReport};
pub(crate) use merged::MergedReport;
pub(crate) use plan::PlanReport;
pub(crate) use prediction::PredictionReport;
pub(crate) use reading::ReadingReport;
pub(crate) use recipe::RecipeReport;
pub(crate) use report::to_json;
pub(crate) use sim_schema::sim_json_schema;
pub(crate) use status::StatusReport;

pub(crate) use sockets::SocketsReport;
pub(crate) use svg::svg;
pub(crate) use tc::{
    BenchRow, DiffReport, DumpReport, LoadReport, RefusedLine, RuleBenchReport, SurveyReport, WrongLine,
};
pub(crate) use tc_schema::tc_json_schema;
pub(crate) use undone::UndoneReport;
pub(crate) use validation::ValidationReport;
pub(crate) use watch::{WatchReport, WatchRow, WatchWindowReport};
pub(crate) use watch_schema::watch_json_schema;
