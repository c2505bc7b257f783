//! Formats the reports of a session as text for people and as JSON for programs: a plan, the reasons for
//! settings, a recipe, drift, a fault. The commands print them, and the daemon returns them.

mod drift;
mod event;
mod explained;
mod fault;
mod plan;
mod recipe;
mod typed;

pub use drift::{DriftReport, UnreadCause};
pub use event::EventReport;
pub use explained::ExplainedReport;
pub use fault::{printable, words};
pub use plan::{ChangeLine, PlanReport};
pub use recipe::RecipeReport;
pub use typed::typed;
