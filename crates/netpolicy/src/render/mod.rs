//! The output of commands, for people and for programs.

mod asked_for;
mod difference;
mod finding_kind;
mod findings;
mod history;
mod host;
mod knob;
mod listeners;
mod merged;
mod reading;
mod recorded;
mod schema;
mod sockets;
mod stacks;
mod status;
mod svg;
#[cfg(test)]
mod test;
mod undone;

pub(crate) use difference::DifferenceReport;
pub(crate) use finding_kind::FindingKindReport;
pub(crate) use findings::{FindingsReport, count_shown};
pub(crate) use history::HistoryReport;
pub(crate) use host::HostReport;
pub(crate) use knob::KnobReport;
pub(crate) use merged::{MeantBySection, MergedReport};
pub(crate) use reading::ReadingReport;
pub(crate) use recorded::RecordReport;
pub(crate) use schema::output_schema;
pub(crate) use session::count;
pub(crate) use session::report::{DriftReport, EventReport, ExplainedReport, PlanReport, RecipeReport};
pub(crate) use status::StatusReport;

pub(crate) use sockets::SocketsReport;
pub(crate) use svg::svg;
pub(crate) use undone::UndoneReport;
