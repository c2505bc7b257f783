//! The walls between the rooms, as tests (`tests/walls.rs`): which crate may depend on which, and which names a room may not
//! know. Nothing depends on this crate.
//!
//! [`Dependencies`] are what Cargo resolves, and [`paths`] what the compiler's own grammar finds in a file: how a `use` is
//! wrapped, nested or renamed makes no difference.
#![forbid(unsafe_code)]

mod dependencies;
mod paths;

pub use dependencies::Dependencies;
pub use paths::{NamedPath, paths, reaches};
