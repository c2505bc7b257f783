//! Benches with client and server on different machines.
//!
//! The client starts `netpolicy bench serve --stdio` on the server's machine by ssh, or connects to `bench
//! serve --listen --token` on that machine, and sends it requests, one JSON document per line. The server's
//! machine does everything that a lab does within one process: it starts the server, applies a configuration
//! as a transaction with a guard, reads counters, restores and compares.
//!
//! Read in this order: [`message`] (the messages), [`mod@line`] (how they are sent), [`control`] (the
//! client's end), [`host`] (the server's end), [`token`] and [`listen`] (connections by TCP), [`stage`] (one
//! cell of an experiment).

pub mod args;
pub(crate) mod client_side;
pub(crate) mod control;
mod device;
pub(crate) mod host;
pub mod line;
pub(crate) mod listen;
pub mod message;
pub(crate) mod stage;
pub mod token;
