//! Policy files: text → [`PolicyFile`] → [`model::Policy`]. Recipe files: text → [`RecipeFile`] →
//! [`model::Recipes`].
//!
//! Every value keeps the line from which it was read, so that each change in a plan can name its origin.
//! Every mistake is shown with its place, and all mistakes of a file are reported together.
//!
//! This crate opens no file and knows no host: `session` finds and reads the files.
#![forbid(unsafe_code)]

mod key;
mod known_faults;
mod merge;
mod mistake;
mod nearest;
mod nic_facts;
mod nic_value;
mod parse;
mod recipe_file;
mod recipe_schema;
mod schema;
mod spelling;
mod value;
mod word;

pub use key::{KeyRow, SectionKind, key_table};
pub use known_faults::known_faults;
pub use merge::{Merged, MergedSection, merge};
pub use mistake::{LineIndex, Mistake, Mistakes};
pub use nearest::nearest;
pub use nic_facts::nic_facts;
pub use parse::{FILE_BYTES_MAX, KeyValue, PolicyFile, Section, device_name, parse, setting};
pub use recipe_file::{RECIPE_DIRS, RecipeFile, SHIPPED, parse_recipes, recipes};
pub use recipe_schema::recipe_json_schema;
pub use schema::json_schema;
pub use spelling::{key, quoted};
pub use value::Value;
pub use word::{PolicyWord, word};
