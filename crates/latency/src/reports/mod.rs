//! The output of `watch`, `compare` and `tune`.

mod compare;
mod tune;
mod watch;

pub use compare::{CERTAINTY, CompareReport, CompareRoundReport, SwitchCost, in_percent};
pub use tune::TuneReport;
pub(crate) use watch::found;
pub use watch::{WatchReport, WatchRow, WatchWindowReport};
