//! The output of `watch`, `compare` and `tune`.

mod compare;
mod picture;
mod tune;
mod watch;

pub use compare::{CERTAINTY, CompareReport, CompareRoundReport, SwitchCost, in_percent};
pub use picture::{html_of_comparison, html_of_proofs, html_of_search, places};
pub use tune::TuneReport;
pub(crate) use watch::found;
pub use watch::{WatchReport, WatchRow, WatchWindowReport};
