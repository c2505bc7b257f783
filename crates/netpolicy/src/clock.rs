//! The host's clocks, for the journal: rooms below take time as an argument.

use apply::Moment;
use model::Nanoseconds;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// This moment, by the wall clock and since boot.
pub(crate) fn now() -> Moment {
    let nanoseconds = |clock| {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
        let (seconds, rest) = (u64::try_from(tv_sec).unwrap_or(0), u64::try_from(tv_nsec).unwrap_or(0));
        seconds.saturating_mul(1_000_000_000).saturating_add(rest)
    };
    Moment {
        unix_micros: nanoseconds(ClockId::Realtime) / 1_000,
        since_boot: Nanoseconds(nanoseconds(ClockId::Boottime)),
    }
}
