//! The only place that prints: data on standard output, talk on standard error.

mod console;
mod fault;
mod host;
mod report;
mod svg;
mod table;
#[cfg(test)]
mod test;

pub use console::Console;
pub use host::HostReport;
pub use report::{Page, Report, SCHEMA};
pub use svg::svg;
pub use table::{Cell, Style, Table};
