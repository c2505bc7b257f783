//! Scenario files, and tables of measured rows: text → [`ScenarioFile`], [`MeasuredTable`].
//!
//! Every mistake is shown with its position, and all mistakes of a file are reported together.

mod measured;
mod parse;
mod shipped;

pub(crate) use measured::ROWS_MAX;
pub use measured::{MeasuredRow, MeasuredTable, Metric, RowClass, measured};
pub(crate) use parse::nearest_key;
pub use parse::{Calibration, ScenarioFile, parse, parse_over};
pub use shipped::{SHIPPED, Shipped, shipped};
