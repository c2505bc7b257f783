//! Policy files: text → [`PolicyFile`] → [`model::Policy`]. Recipe files: text → [`RecipeFile`] → [`model::Recipes`].
//!
//! Every value keeps the line it was read from, so that each change of a plan can say who asked for it. Every
//! mistake is drawn with its place, and a file's mistakes are reported together.

mod drop_in;
mod key;
mod merge;
mod mistake;
mod nearest;
mod parse;
mod recipe_file;
mod recipe_schema;
mod schema;
mod value;
mod wish;

pub use drop_in::{DROP_IN_DIRS, Sources, read};
pub use key::{KeyRow, Kind, key_table};
pub use merge::{Merged, MergedSection, merge};
pub use mistake::{Lines, Mistake, Mistakes};
pub use nearest::nearest;
pub use parse::{Asked, PolicyFile, Section, device_name, parse, setting};
pub use recipe_file::{RECIPE_DIRS, RecipeFile, SHIPPED, parse_recipes, recipes};
pub use recipe_schema::recipe_json_schema;
pub use schema::json_schema;
pub use value::Value;
