//! The host's clocks, for the journal: rooms below take time as an argument.

use apply::Moment;
use linux::clock::{since_1970, since_boot};

/// This moment, by the wall clock and since boot.
pub fn now() -> Moment {
    Moment { unix_micros: since_1970().0 / 1_000, since_boot: since_boot() }
}
