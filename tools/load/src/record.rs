//! Records spans and summarises them as a distribution.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};
use model::{Distribution, Nanoseconds};

/// A histogram of spans from 1 ns to [`Self::SPAN_MAX`], with three significant digits. Longer spans count as
/// [`Self::SPAN_MAX`].
#[derive(Clone, Debug)]
pub struct Recorder {
    histogram: Histogram<u64>,
}

impl Recorder {
    /// The longest span that the histogram distinguishes.
    pub const SPAN_MAX: Nanoseconds = Nanoseconds(120_000_000_000);
    const DIGITS: u8 = 3;

    /// Creates an empty recorder. It allocates no memory later.
    ///
    /// # Panics
    /// Never: the histogram accepts these constant bounds.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, Self::SPAN_MAX.0, Self::DIGITS);
        Self {
            histogram: histogram.expect("1 ns to two minutes to three digits is within a histogram's bounds"),
        }
    }

    /// Counts a span.
    #[inline]
    pub fn record(&mut self, span: Nanoseconds) {
        self.histogram.saturating_record(span.0);
    }

    /// Adds the counts of another recorder.
    ///
    /// # Panics
    /// Never: all recorders have the same bounds.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("recorders have the same bounds");
    }

    /// The number of recorded spans.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the span that a share `quantile` (0 to 1) of all spans does not exceed; zero if no span was
    /// recorded.
    pub fn quantile(&self, quantile: f64) -> Nanoseconds {
        Nanoseconds(self.histogram.value_at_quantile(quantile).min(self.histogram.max()))
    }

    /// The distribution, including the histogram.
    ///
    /// # Panics
    /// Never: the histogram is serialised into memory.
    pub fn distribution(&self) -> Distribution {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&self.histogram, &mut bytes)
            .expect("a histogram of these bounds can be written into memory");
        Distribution {
            count: self.histogram.len(),
            avg: self.histogram.mean(),
            min: Nanoseconds(self.histogram.min()),
            p50: self.quantile(0.5),
            p90: self.quantile(0.9),
            p95: self.quantile(0.95),
            p99: self.quantile(0.99),
            p999: self.quantile(0.999),
            p9999: Some(self.quantile(0.9999)),
            max: Nanoseconds(self.histogram.max()),
            histogram: BASE64.encode(bytes),
        }
    }

    /// Recreates the recorder from a distribution.
    ///
    /// # Errors
    /// [`NotAHistogram`] if the text in the distribution is not a histogram, or has incompatible bounds.
    pub fn from_distribution(distribution: &Distribution) -> Result<Self, NotAHistogram> {
        let bytes = BASE64.decode(&distribution.histogram).map_err(|e| NotAHistogram(e.to_string()))?;
        let read: Histogram<u64> =
            Deserializer::new().deserialize(&mut &*bytes).map_err(|e| NotAHistogram(e.to_string()))?;
        let mut recorder = Self::new();
        recorder.histogram.add(&read).map_err(|e| NotAHistogram(e.to_string()))?;
        Ok(recorder)
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

/// The error for text that is not a histogram.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no histogram in the distribution: {0}")]
pub struct NotAHistogram(pub String);

#[cfg(test)]
mod test {
    use super::*;

    fn recorded(spans: impl IntoIterator<Item = u64>) -> Recorder {
        let mut recorder = Recorder::new();
        for span in spans {
            recorder.record(Nanoseconds(span));
        }
        recorder
    }

    #[test]
    fn percentiles_are_right_to_three_digits() {
        let distribution = recorded((1..=100_000).map(|us| us * 1000)).distribution();
        for (found, expected) in [
            (distribution.p50, 50_000_000_u64),
            (distribution.p95, 95_000_000),
            (distribution.p99, 99_000_000),
            (distribution.p999, 99_900_000),
            (distribution.p9999.expect("computed"), 99_990_000),
            (distribution.max, 100_000_000),
        ] {
            assert!(found.0.abs_diff(expected) <= expected / 1000, "{found} for {expected}");
        }
        assert_eq!(distribution.count, 100_000);
    }

    #[test]
    fn threads_merged_are_as_one_thread() {
        let mut merged = recorded([5, 500, 50_000]);
        merged.merge(&recorded([7, 700, 70_000_000_000]));
        assert_eq!(merged.distribution(), recorded([5, 7, 500, 700, 50_000, 70_000_000_000]).distribution());
    }

    #[test]
    fn a_distribution_gives_its_histogram_back() {
        let recorder = recorded([100, 2_000, 2_000, 30_000_000]);
        let distribution = recorder.distribution();
        let back = Recorder::from_distribution(&distribution).expect("is a histogram");
        assert_eq!(back.distribution(), distribution);
        let broken = Distribution { histogram: "AAAA".to_owned(), ..distribution };
        assert!(Recorder::from_distribution(&broken).is_err());
    }

    #[test]
    fn a_span_beyond_the_longest_counts_as_the_longest() {
        let distribution = recorded([u64::MAX, 1]).distribution();
        assert!(distribution.max >= Recorder::SPAN_MAX);
        assert_eq!(distribution.count, 2);
        assert_eq!(Recorder::new().distribution().p99, Nanoseconds::ZERO);
    }
}
