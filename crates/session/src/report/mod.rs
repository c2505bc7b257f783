//! What a session has to say, as text for people and as JSON for programs: a plan, the reasons of settings, a recipe, drift, a fault.
//! The commands print it, and the daemon answers with it.

mod drift;
mod event;
mod explained;
mod fault;
mod plan;
mod recipe;
mod typed;

pub use drift::{DriftReport, Unread};
pub use event::EventReport;
pub use explained::ExplainedReport;
pub use fault::{printable, words};
pub use plan::{ChangeLine, PlanReport};
pub use recipe::RecipeReport;
pub use typed::typed;
