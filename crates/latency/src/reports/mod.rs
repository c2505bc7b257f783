//! The output of `watch` and `compare`.

mod compare;
mod watch;

pub use compare::{CERTAINTY, CompareReport, CompareRoundReport, SwitchCost, in_percent};
pub use watch::{WatchReport, WatchRow, WatchWindowReport};
