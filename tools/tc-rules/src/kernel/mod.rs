//! Loads and dumps rules in bulk.
//!
//! [`Loader`] sends the messages encoded by the rest of this crate: many at a time, over several sockets, but
//! with a known result for each. [`dump`] reads rules back, [`undo`] removes them, [`Devices`] resolves names
//! in a file.

mod account;
mod devices;
pub mod dump;
mod encoder;
pub mod instances;
mod lane;
mod loader;
mod portion;
mod rule_socket;
mod rules;
mod tables;
pub mod undo;

pub use account::{Account, Refused};
pub use devices::Devices;
pub use encoder::Encoder;
pub use loader::{Loader, Options, WORKERS_MAX};
pub use portion::{PORTION_BYTES_MAX, Piece, Portion, RULES_MAX};
pub use rule_socket::{Delivered, RECEIVE_BYTES, RuleSocket};
