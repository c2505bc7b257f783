//! The walls between the rooms, as tests (`tests/walls.rs`): which crate may depend on which, and which names a room may not
//! know; and how many fields a structure of the daemon has (`tests/structs.rs`). Nothing depends on this crate.
//!
//! [`Dependencies`] are what Cargo resolves, and [`paths`] what the compiler's own grammar finds in a file: how a `use` is
//! wrapped, nested or renamed makes no difference. [`Modules`] are those of one room, and which of them go in a circle.
#![forbid(unsafe_code)]

mod dependencies;
mod literals;
mod modules;
mod paths;
mod structs;

pub use dependencies::Dependencies;
pub use literals::literals;
pub use modules::{Modules, module_of};
pub use paths::{Form, NamedPath, modules_for_tests, paths, reaches};
pub use structs::{Structure, structures};
