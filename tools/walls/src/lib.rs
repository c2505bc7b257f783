//! Checks, as a test (`tests/walls.rs`), which crates may depend on which. Nothing depends on this crate.
//!
//! [`Dependencies`] holds the result of Cargo's resolution.
#![forbid(unsafe_code)]

mod dependencies;

pub use dependencies::Dependencies;
