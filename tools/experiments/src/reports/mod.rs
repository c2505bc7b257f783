//! Reports of experiments, for people and for programs.

mod bench;
mod calibration;
mod curves;
mod live_bench;
pub(crate) mod orderings;
mod prediction;
mod selfcheck;
mod validation;

pub use bench::{BenchReport, GridReport};
pub use calibration::CalibrationReport;
pub use live_bench::{LiveBenchReport, LiveCostReport};
pub use orderings::OrderingsReport;
pub use prediction::PredictionReport;
pub use selfcheck::{ClientRow, Comparison, Disturbance, NotMade, SelfcheckReport, Unit, Verdict};
pub(crate) use selfcheck::{ClosedLoop, Runs};
pub use validation::ValidationReport;
