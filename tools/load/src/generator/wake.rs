//! Keeps a thread awake for requests that are about to be due.
//!
//! An idle CPU is halted and, in a virtual machine, returned to the hypervisor. A thread that
//! sleeps until the due time therefore runs up to a millisecond late, the later the longer the CPU
//! slept, whatever its scheduling class. So the thread shortens its sleep by its recent oversleep
//! and polls for the rest.

use std::sync::{Mutex, PoisonError};

use model::Nanoseconds;
use rustix::thread::{CpuSet, sched_getaffinity};

/// Longest time before a due time at which a thread wakes. A thread that oversleeps by more is
/// late, which is counted.
const LEAD_MAX: Nanoseconds = Nanoseconds::from_millis(2);

/// The lead shrinks by one part in `FALL` at each timely wake-up: it halves within about 45 of them.
const FALL: u64 = 64;

/// How long before a due time a thread should wake.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lead(Nanoseconds);

impl Lead {
    /// How much of a wait to sleep; the thread polls for the rest.
    #[inline]
    pub(super) fn sleep_of(self, wait: Nanoseconds) -> Nanoseconds {
        Nanoseconds(wait.0.saturating_sub(self.0.0))
    }

    /// Adapts the lead to a sleep that ended by its own timer: `by` is the oversleep.
    /// Oversleeping the lead raises the lead by half of the difference; otherwise the lead decays
    /// slowly, so that nearly all wake-ups stay in time.
    pub(super) fn overslept(&mut self, by: Nanoseconds) {
        let lead = self.0.0;
        self.0.0 = if by.0 > lead { lead + (by.0 - lead).div_ceil(2) } else { lead - lead.div_ceil(FALL) };
        self.0 = self.0.min(LEAD_MAX);
    }
}

/// The CPUs that the threads of a run may use. Polling without sleep is only for a thread that has
/// a CPU to itself.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<Vec<Option<CpuSet>>>);

impl Places {
    /// Records the CPUs that the calling thread may use.
    pub(super) fn enter(&self) {
        let place = sched_getaffinity(None).ok();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(place);
    }

    /// Whether the threads that share CPUs with the calling thread have one CPU each. Call it only
    /// after all have entered.
    pub(super) fn have_room(&self) -> bool {
        let Ok(mine) = sched_getaffinity(None) else { return false };
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let meets = |other: &CpuSet| (0..CpuSet::MAX_CPU).any(|cpu| mine.is_set(cpu) && other.is_set(cpu));
        let sharing = places.iter().filter(|place| place.as_ref().is_none_or(meets)).count();
        u32::try_from(sharing).is_ok_and(|sharing| sharing <= mine.count())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const fn micros(micros: u64) -> Nanoseconds {
        Nanoseconds::from_micros(micros)
    }

    #[test]
    fn who_oversleeps_by_the_same_every_time_is_awake_in_time_after_a_few() {
        let mut lead = Lead::default();
        assert_eq!(lead.sleep_of(micros(5_000)), micros(5_000), "no oversleep is known yet");
        for _ in 0..10 {
            lead.overslept(micros(600));
        }
        let asks = 5_000_000 - lead.sleep_of(micros(5_000)).0;
        assert!((580_000..=610_000).contains(&asks), "{asks}");
        assert_eq!(lead.sleep_of(micros(500)), Nanoseconds::ZERO, "a short wait has no sleep");
    }

    #[test]
    fn what_was_overslept_once_is_forgotten_and_no_sleep_is_longer_than_the_limit() {
        let mut lead = Lead::default();
        for _ in 0..40 {
            lead.overslept(Nanoseconds::from_millis(50));
        }
        assert_eq!(lead.0, LEAD_MAX);
        for _ in 0..1_500 {
            lead.overslept(Nanoseconds::ZERO);
        }
        assert_eq!(lead.0, Nanoseconds::ZERO);
    }

    #[test]
    fn more_threads_than_cpus_leave_no_room_for_asking() {
        let places = Places::default();
        let cpus = sched_getaffinity(None).expect("this thread runs on a CPU").count();
        for _ in 0..cpus {
            places.enter();
        }
        assert!(places.have_room());
        places.enter();
        assert!(!places.have_room());
    }
}
