//! Formats the output of commands as text for people and as JSON for programs. This module does no I/O, and
//! uses no other module of netpolicy.

pub mod drawing;
pub mod html;
pub mod picture;
mod report;
mod schema;
mod screen;
mod table;

pub use report::{Page, Report, SCHEMA, is_misleading, to_json};
pub use schema::{RecordSchema, record};
pub use screen::{Entry, SCREEN_COLUMNS, SCREEN_ROWS, Shown, fit, rows_of};
pub use table::{Cell, Style, Table, plain};
