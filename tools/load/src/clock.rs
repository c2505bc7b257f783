//! The host's monotonic clock.

use model::Nanoseconds;
use rustix::time::{ClockId, clock_gettime};

/// A moment on `CLOCK_MONOTONIC`, in nanoseconds since its arbitrary beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    /// Now. A call of the vDSO, not of the kernel.
    #[inline]
    pub(crate) fn now() -> Self {
        let time = clock_gettime(ClockId::Monotonic);
        #[expect(clippy::cast_sign_loss, reason = "CLOCK_MONOTONIC starts at zero and only grows")]
        Self(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// How long after `earlier` this is; zero if it is not.
    #[inline]
    pub(crate) fn since(self, earlier: Self) -> Nanoseconds {
        Nanoseconds(self.0.saturating_sub(earlier.0))
    }

    /// This moment and a span more.
    #[inline]
    pub(crate) fn after(self, span: Nanoseconds) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}
