//! How clients come back after an answer while interrupts are enabled: what estimate C supposes of them otherwise.

use model::live::{LiveWindow, SpanCounts};

/// The turnarounds of windows in which interrupts were enabled.
///
/// Only of whole such windows: in others, those packets that find the interrupt enabled are those that come late.
#[derive(Clone, Debug, Default)]
pub struct Turnarounds {
    counts: SpanCounts,
}

impl Turnarounds {
    /// The fewest turnarounds that a distribution is made of.
    pub const COUNTS_MIN: u64 = 500;

    /// The most that are remembered: then each two become one, so that the latest weigh the most.
    pub const COUNTS_MAX: u64 = 200_000;

    /// The share of arrivals that find the interrupt enabled in a window that counts.
    const UNMASKED_MIN: f64 = 0.95;

    /// Takes note of a window. Whether it was one that counts.
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

    /// The distribution, once there are enough.
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
