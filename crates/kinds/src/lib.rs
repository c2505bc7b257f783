//! The kinds of `tc`: each classifier, action and ematch, from the words of a line to netlink attributes and back.
//!
//! This room knows how iproute2 spells them and the very bytes that iproute2 6.1 sends. What else a line says (the device, the
//! chain, the priority) and what a file of lines comes to is decided in `rules`. It must not know sockets, files or which
//! devices there are: those are answered through [`lookup::Lookup`]. The wall is held by its dependencies (`model` and
//! `thiserror`), by `clippy.toml` beside `src/`, and by `forbid(unsafe_code)`.
//!
//! Read in this order: [`lines`] and [`words`] (text), [`attr`] (bytes), [`classifier`], [`ematch`] and [`action`] (one file
//! for each kind).
#![forbid(unsafe_code)]

pub mod action;
pub mod attr;
pub mod classifier;
pub mod ematch;
pub mod lines;
pub mod lookup;
pub mod number;
pub mod program;
pub mod protocol;
pub mod small_vec;
pub mod tunnel_options;
pub mod words;

pub use action::Action;
pub use classifier::Classifier;
pub use lookup::{Lookup, Pinned, Table};
pub use words::Mistake;
