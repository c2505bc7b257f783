//! The walls between the rooms, as tests (`tests/walls.rs`): which crate may depend on which, and which names a room may not
//! know; how many fields a structure of the daemon has (`tests/structs.rs`); and the texts that an operator can see, in one file
//! (`tests/texts.rs`). Nothing depends on this crate.
//!
//! [`Dependencies`] are what Cargo resolves, and [`paths`] what the compiler's own grammar finds in a file: how a `use` is
//! wrapped, nested or renamed makes no difference. [`Modules`] are those of one room, and which of them go in a circle.
#![forbid(unsafe_code)]

mod dependencies;
mod modules;
mod paths;
mod structs;
mod texts;

pub use dependencies::Dependencies;
pub use modules::{Modules, module_of};
pub use paths::{Form, NamedPath, modules_for_tests, paths, reaches};
pub use structs::{Structure, structures};
pub use texts::{
    alert_texts, dashboard_texts, flattened, interface_texts, literals, recipe_texts, script_texts, texts,
    unit_texts,
};
