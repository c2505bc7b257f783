//! Which crate may depend on which, as a test (`tests/walls.rs`). Nothing depends on this crate.
//!
//! [`Dependencies`] are what Cargo resolves.
#![forbid(unsafe_code)]

mod dependencies;

pub use dependencies::Dependencies;
