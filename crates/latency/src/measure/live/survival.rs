//! The distribution of spans of time, some of which had not ended when the observation stopped.
//!
//! A window may end while requests wait. If these requests were omitted, a service that hangs would appear
//! faster. Instead, they are right-censored: the product-limit estimate treats them as at least as long as
//! they have waited. A span that began before the observation counts as at risk only from the age that it had
//! when the observation began (left truncation), because an earlier end could not have been observed. In this
//! way, windows can measure requests that are longer than a window.
//!
//! Source: Kaplan and Meier, "Nonparametric estimation from incomplete observations", 1958; delayed entry as
//! in Klein and Moeschberger, "Survival Analysis", 2003, 4.6.

use model::SpanCounts;

/// The distribution of spans, by the product-limit estimate.
#[derive(Clone, Debug)]
pub struct Survival {
    /// For each bucket, the share of spans that are longer than it.
    longer: Vec<f64>,
    /// The number of spans whose beginning was observed.
    observed: u64,
}

/// A quantile of spans, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quantile {
    /// The quantile has this value.
    Exactly(f64),
    /// The quantile is more than this value, because too many spans have not ended.
    MoreThan(f64),
}

impl Quantile {
    /// Returns the quantile in nanoseconds; for `MoreThan`, this is a lower bound.
    pub const fn nanoseconds(self) -> f64 {
        match self {
            Self::Exactly(span) | Self::MoreThan(span) => span,
        }
    }
}

impl Survival {
    /// Computes the distribution from completed spans, and from the ages of spans that have not ended.
    pub fn of(ended: &SpanCounts, waiting: &SpanCounts) -> Self {
        Self::of_entered(ended, waiting, &SpanCounts::new())
    }

    /// Like [`Survival::of`], for an observation that found some spans already begun: `entered` contains the
    /// ages that these had.
    pub fn of_entered(ended: &SpanCounts, waiting: &SpanCounts, entered: &SpanCounts) -> Self {
        let observed = (ended.total() + waiting.total()).saturating_sub(entered.total());
        // Spans that begin, end or are censored within a bucket count as present until the end of the bucket.
        let (mut left, mut share, mut longer) = (observed, 1.0, Vec::with_capacity(SpanCounts::BUCKETS));
        let buckets = ended.buckets().iter().zip(waiting.buckets()).zip(entered.buckets());
        for ((ended, waiting), entered) in buckets {
            left += entered;
            if left > 0 {
                share *= 1.0 - (count(*ended) / count(left)).min(1.0);
            }
            left -= (ended + waiting).min(left);
            longer.push(share);
        }
        Self { longer, observed }
    }

    /// Returns the number of spans whose beginning was observed.
    pub const fn observed(&self) -> u64 {
        self.observed
    }

    /// Returns the span that this share (0 to 1) of spans does not exceed, or `None` if there are no spans.
    pub fn quantile(&self, share: f64) -> Option<Quantile> {
        if self.observed == 0 {
            return None;
        }
        let beyond = 1.0 - share.clamp(0.0, 1.0);
        let mut before = 1.0;
        let mut last = 0;
        for (bucket, &longer) in self.longer.iter().enumerate() {
            if longer < before {
                last = bucket;
                // Tolerate rounding errors, which leave a tiny remainder when a tail should be zero.
                if longer <= beyond + 1e-12 {
                    let within = ((before - beyond) / (before - longer)).clamp(0.0, 1.0);
                    let (low, high) = (edge(bucket), edge(bucket + 1));
                    return Some(Quantile::Exactly(low + within * (high - low)));
                }
            }
            before = longer;
        }
        Some(Quantile::MoreThan(edge(last + 1)))
    }

    /// Returns the share of spans that do not exceed `span`, which is in nanoseconds.
    pub fn share_within(&self, span: f64) -> f64 {
        let mut before = 1.0;
        for (bucket, &longer) in self.longer.iter().enumerate() {
            let (low, high) = (edge(bucket), edge(bucket + 1));
            if span < high {
                let within = ((span - low) / (high - low)).clamp(0.0, 1.0);
                return 1.0 - (before + (longer - before) * within);
            }
            before = longer;
        }
        1.0 - before
    }
}

fn edge(bucket: usize) -> f64 {
    count(SpanCounts::lower_edge(bucket).0)
}

/// A count or a span as a real number.
#[expect(clippy::cast_precision_loss, reason = "counts of requests and spans of hours, below 2^53")]
pub(super) const fn count(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod test {
    use super::*;
    use model::{Chance, Nanoseconds};

    fn counts(spans: impl IntoIterator<Item = u64>) -> SpanCounts {
        let mut counts = SpanCounts::new();
        spans.into_iter().for_each(|span| counts.add(Nanoseconds(span)));
        counts
    }

    fn exactly(found: Option<Quantile>) -> f64 {
        let Some(Quantile::Exactly(span)) = found else { panic!("{found:?}") };
        span
    }

    #[test]
    fn quantiles_of_spans_that_have_all_ended_are_within_a_bucket_of_the_true_ones() {
        let survival = Survival::of(&counts((1..=10_000).map(|us| us * 1_000)), &SpanCounts::new());
        for (share, expected) in [(0.5, 5e6), (0.9, 9e6), (0.99, 9.9e6)] {
            let found = exactly(survival.quantile(share));
            assert!((found / expected - 1.0).abs() < 0.01, "{found} for {expected}");
            assert!((survival.share_within(found) - share).abs() < 0.001);
        }
    }

    #[test]
    fn spans_that_are_cut_off_do_not_make_the_rest_look_short() {
        // Exponential spans with a mean of 1 ms, censored at a uniformly distributed age of up to 3 ms.
        let mut chance = Chance::stream(3, &[]);
        let (mut ended, mut waiting, mut seen) = (SpanCounts::new(), SpanCounts::new(), SpanCounts::new());
        for _ in 0..200_000 {
            let span = -chance.unit().max(1e-12).ln() * 1e6;
            let until = chance.unit() * 3e6;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
            let whole = Nanoseconds(span.min(until) as u64);
            if span <= until { &mut ended } else { &mut waiting }.add(whole);
            seen.add(whole);
        }
        let found = exactly(Survival::of(&ended, &waiting).quantile(0.9));
        assert!((found / (10.0_f64.ln() * 1e6) - 1.0).abs() < 0.03, "{found}");
        let naive = exactly(Survival::of(&ended, &SpanCounts::new()).quantile(0.9));
        assert!(naive < 0.8 * found, "{naive} without the censored spans");
    }

    /// Each second contains a window of 100 ms, and one request in four takes 1.5 s: it begins in one window,
    /// and ends in another window or in none. Each window records the ages of requests when it opened, and
    /// when it closed or the requests ended.
    #[test]
    fn requests_longer_than_a_window_have_the_percentiles_that_they_have() {
        const WINDOW: u64 = 100_000_000;
        const PERIOD: u64 = 1_000_000_000;
        let mut chance = Chance::stream(4, &[]);
        let (mut ended, mut waiting, mut entered) = (SpanCounts::new(), SpanCounts::new(), SpanCounts::new());
        for _ in 0..20_000 {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
            let begins = (chance.unit() * 1e10) as u64;
            let takes = if chance.unit() < 0.26 { 1_500_000_000 } else { 80_000 };
            for window in 0..14 {
                let (opens, closes) = (window * PERIOD, window * PERIOD + WINDOW);
                let ends = begins + takes;
                if begins >= closes || ends < opens {
                    continue;
                }
                if begins < opens {
                    entered.add(Nanoseconds(opens - begins));
                }
                if ends < closes { &mut ended } else { &mut waiting }
                    .add(Nanoseconds(ends.min(closes) - begins));
            }
        }
        let found = Survival::of_entered(&ended, &waiting, &entered);
        let (median, nine) = (exactly(found.quantile(0.5)), exactly(found.quantile(0.9)));
        assert!((median / 80e3 - 1.0).abs() < 0.05, "{median}");
        assert!((nine / 1.5e9 - 1.0).abs() < 0.05, "{nine}");
        assert!((found.share_within(1e9) - 0.74).abs() < 0.03, "{}", found.share_within(1e9));
        // If requests counted as observed from their beginning, long ones would be counted in several
        // windows.
        let naive = Survival::of(&ended, &waiting).share_within(1e9);
        assert!(naive < 0.5, "{naive}");
    }

    #[test]
    fn a_service_that_hangs_has_no_percentile_but_a_least_one() {
        let survival = Survival::of(&counts([10_000; 90]), &counts([50_000_000; 10]));
        assert!(exactly(survival.quantile(0.5)) < 11_000.0);
        let Some(Quantile::MoreThan(least)) = survival.quantile(0.99) else {
            panic!("the quantile is unknown")
        };
        assert!(least >= 10_000.0);
        assert_eq!(Survival::of(&SpanCounts::new(), &SpanCounts::new()).quantile(0.5), None);
    }
}
