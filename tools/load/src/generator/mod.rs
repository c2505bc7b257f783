//! The load generator: threads, connections, requests and their answers.

mod connection;
mod error;
mod late;
mod preload;
mod requests;
mod run;
mod tally;
mod turn;
mod wake;
mod worker;

pub use error::RunError;
pub use late::{
    GENERATOR_LATE_FLOOR, GENERATOR_LATE_P50_SHARE, GENERATOR_LATE_P99_SHARE, REFUSED_SHARE,
    SLEEPER_LATE_SHARE, WAKING, void_reason,
};
pub use run::{Edge, Environment, Run, memcached, offer};
