//! What experiments gave, for people and for programs.

mod bench;
mod calibration;
mod curves;
mod prediction;
mod rule_loading;
mod validation;

pub use bench::{BenchReport, GridReport};
pub use calibration::CalibrationReport;
pub use prediction::PredictionReport;
pub use rule_loading::{BenchRow, RuleBenchReport};
pub use validation::ValidationReport;
