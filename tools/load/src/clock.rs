//! The host's monotonic clock.

use model::Nanoseconds;
use rustix::time::{ClockId, clock_gettime};

/// A point in time on `CLOCK_MONOTONIC`, in nanoseconds since its arbitrary epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    /// Reads the clock, through the vDSO rather than a system call.
    #[inline]
    pub(crate) fn now() -> Self {
        let time = clock_gettime(ClockId::Monotonic);
        #[expect(clippy::cast_sign_loss, reason = "CLOCK_MONOTONIC starts at zero and only grows")]
        Self(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// The time elapsed since `earlier`; zero if `earlier` is later.
    #[inline]
    pub(crate) fn since(self, earlier: Self) -> Nanoseconds {
        Nanoseconds(self.0.saturating_sub(earlier.0))
    }

    /// Returns this moment plus `span`.
    #[inline]
    pub(crate) fn after(self, span: Nanoseconds) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}
