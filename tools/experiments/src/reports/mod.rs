//! What experiments gave, for people and for programs.

mod bench;
mod calibration;
mod compare;
mod curves;
mod live_bench;
mod prediction;
mod rule_loading;
mod selfcheck;
mod validation;
mod watch;

pub use bench::{BenchReport, GridReport};
pub use calibration::CalibrationReport;
pub(crate) use compare::in_percent;
pub use compare::{CERTAINTY, CompareReport, CompareRoundReport, SwitchCost};
pub use live_bench::{LiveBenchReport, LiveCostReport};
pub use prediction::PredictionReport;
pub use rule_loading::{BenchRow, RuleBenchReport};
pub use selfcheck::{ClientRow, Comparison, Disturbance, NotMade, SelfcheckReport, Unit, Verdict};
pub(crate) use selfcheck::{ClosedLoop, Runs};
pub use validation::ValidationReport;
pub use watch::{WatchReport, WatchRow, WatchWindowReport};
