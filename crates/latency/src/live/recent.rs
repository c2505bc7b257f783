//! The windows of the last few minutes, in bounded memory.

use crate::measure::live::Series;
use model::Nanoseconds;

use crate::live::cost::{Cost, Spent};
use crate::live::sampler::Sample;

/// The windows of the last few minutes: as many as p99 needs, but for at least [`Recent::LEAST`] and at most
/// twice [`Recent::MOST`]. They are kept in two overlapping spans of time. The younger span starts when the
/// older one is half full, and replaces it when it is long enough.
#[derive(Debug)]
pub(crate) struct Recent {
    older: Kept,
    younger: Kept,
}

#[derive(Debug)]
struct Kept {
    series: Series,
    spent: Spent,
    began: Option<Nanoseconds>,
}

impl Kept {
    fn new() -> Self {
        Self { series: Series::in_blocks(Recent::BLOCKS), spent: Spent::default(), began: None }
    }

    fn add(&mut self, sample: &Sample, at: Nanoseconds) {
        self.series.add(&sample.window);
        self.spent.add(&sample.window, sample.usage.as_ref());
        self.began.get_or_insert(at);
    }

    fn age(&self, at: Nanoseconds) -> Nanoseconds {
        Nanoseconds(at.0.saturating_sub(self.began.unwrap_or(at).0))
    }
}

impl Recent {
    /// The minimum period of time whose windows are kept.
    pub(crate) const LEAST: Nanoseconds = Nanoseconds::from_millis(60_000);

    /// The maximum length of a span of windows, even if it has few requests.
    pub(crate) const MOST: Nanoseconds = Nanoseconds::from_millis(600_000);

    /// The minimum number of requests that p99 needs.
    const REQUESTS: u64 = 1_000;

    /// The number of blocks of windows in each span. Blocks show how much percentiles vary. A block takes 45
    /// KiB.
    const BLOCKS: usize = 16;

    pub(crate) fn new() -> Self {
        Self { older: Kept::new(), younger: Kept::new() }
    }

    /// Adds a window that ended at this time on the monotonic clock.
    pub(crate) fn add(&mut self, sample: &Sample, at: Nanoseconds) {
        self.older.add(sample, at);
        self.younger.add(sample, at);
        let age = self.younger.age(at);
        let is_enough = self.younger.series.counts().requests >= Self::REQUESTS;
        if age >= Self::MOST || (age >= Self::LEAST && is_enough) {
            self.older = std::mem::replace(&mut self.younger, Kept::new());
        }
    }

    /// All kept windows.
    pub(crate) fn series(&self) -> &Series {
        &self.older.series
    }

    /// Returns the cost of a request over all windows that are kept.
    pub(crate) fn cost(&self) -> Cost {
        self.older.spent.cost()
    }
}

#[cfg(test)]
mod test {
    use model::live::LiveWindow;

    use super::*;

    fn after(seconds: u64, requests_a_second: u64) -> usize {
        let mut recent = Recent::new();
        for second in 0..seconds {
            let mut window = LiveWindow::default();
            window.counts.requests = requests_a_second;
            recent.add(&Sample { window, usage: None }, Nanoseconds::from_millis(1_000 * second));
        }
        recent.series().windows()
    }

    #[test]
    fn a_busy_service_is_shown_as_it_was_in_the_last_minutes_and_a_quiet_one_for_as_long_as_a_percentile_takes()
     {
        assert_eq!(after(50, 100), 50);
        assert!((60..=122).contains(&after(1_000, 100)), "one to two minutes: {}", after(1_000, 100));
        assert!((500..=1_001).contains(&after(3_000, 2)), "1000 requests take 500 s: {}", after(3_000, 2));
        assert!((600..=1_202).contains(&after(5_000, 0)), "ten to twenty minutes: {}", after(5_000, 0));
    }
}
