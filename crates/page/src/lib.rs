//! What a command has to say, as text for people and as JSON for programs. This room prints nothing, and knows no
//! other room's data.
#![forbid(unsafe_code)]

mod report;
mod schema;
mod screen;
mod table;

pub use report::{Page, Printable, Report, SCHEMA, is_misleading, to_json};
pub use schema::{Kind, record};
pub use screen::{Entry, SCREEN_COLUMNS, SCREEN_ROWS, Shown, fit, rows_of};
pub use table::{Cell, Style, Table, plain};
