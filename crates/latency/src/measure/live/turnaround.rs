//! Turnarounds: how long after an answer a client sends its next request, measured while interrupts are
//! enabled. Estimate C assumes that turnarounds have the same distribution while interrupts are masked.

use model::live::{LiveWindow, SpanCounts};

/// Turnarounds from windows in which interrupts were enabled.
///
/// Only windows in which nearly all arrivals found the interrupt enabled are used. In other windows, mostly
/// late packets find it enabled, so their turnarounds would be too long.
#[derive(Clone, Debug, Default)]
pub struct Turnarounds {
    counts: SpanCounts,
}

impl Turnarounds {
    /// The minimum number of turnarounds for a distribution.
    pub const COUNTS_MIN: u64 = 500;

    /// The maximum number of turnarounds that are kept. When there are more, all counts are halved, so that
    /// recent turnarounds weigh more.
    pub const COUNTS_MAX: u64 = 200_000;

    /// The minimum share of arrivals that found the interrupt enabled for a window to be used.
    const UNMASKED_MIN: f64 = 0.95;

    /// Adds a window. Returns whether it was used.
    pub fn learn(&mut self, window: &LiveWindow) -> bool {
        let (masked, unmasked) = (window.counts.masked, window.counts.unmasked);
        let all = super::survival::count(masked + unmasked);
        if unmasked == 0 || super::survival::count(unmasked) < Self::UNMASKED_MIN * all {
            return false;
        }
        self.counts.merge(&window.spans.turnaround);
        if self.counts.total() > Self::COUNTS_MAX {
            let mut half = SpanCounts::new();
            for (bucket, count) in self.counts.buckets().iter().enumerate() {
                half.add_to(bucket, count / 2);
            }
            self.counts = half;
        }
        true
    }

    /// Returns the distribution, if there are enough turnarounds.
    pub fn known(&self) -> Option<&SpanCounts> {
        (self.counts.total() >= Self::COUNTS_MIN).then_some(&self.counts)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use model::Nanoseconds;

    fn window(masked: u64, unmasked: u64) -> LiveWindow {
        let mut window = LiveWindow::default();
        (window.counts.masked, window.counts.unmasked) = (masked, unmasked);
        window.spans.turnaround.add_to(SpanCounts::bucket_of(Nanoseconds(50_000)), unmasked);
        window
    }

    #[test]
    fn only_windows_with_interrupts_enabled_teach_and_memory_is_bounded() {
        let mut turnarounds = Turnarounds::default();
        assert!(!turnarounds.learn(&window(100, 400)), "a fifth came late");
        assert!(turnarounds.learn(&window(10, 400)) && turnarounds.known().is_none(), "too few");
        for _ in 0..1_000 {
            turnarounds.learn(&window(0, 1_000));
        }
        let known = turnarounds.known().expect("enough").total();
        assert!((Turnarounds::COUNTS_MIN..=Turnarounds::COUNTS_MAX).contains(&known), "{known}");
    }
}
