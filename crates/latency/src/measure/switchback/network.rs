//! TCP's counts in a window, and whether the network lost more in one window than in another.
//!
//! A lost segment delays requests and costs CPU time, and no setting of packet delivery causes it. Two rules
//! keep loss out of verdicts. Both ignore which candidate was affected, so the coin stays fair. First, a pair
//! of windows that differ in loss is void. Second, if each pair has too few segments for that test, all pairs
//! are tested together: see [`LossDifference`].

use model::live::{LiveCounts, LiveWindow, SpanCounts};
use model::{Finding, Severity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::measure::live::Survival;

#[expect(clippy::cast_precision_loss, reason = "counts and spans of one comparison, below 2^53")]
pub(super) const fn count(number: u64) -> f64 {
    number as f64
}

/// TCP's counts of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Segments with data that the service sent.
    pub segments_out: u64,
    /// Retransmitted segments among them, except those that the client had already received.
    pub lost_out: u64,
    /// Segments with data that arrived.
    pub segments_in: u64,
    /// Segments among them that arrived out of order.
    pub out_of_order: u64,
    /// The median of the connections' smoothed round-trip times, in nanoseconds.
    pub rtt: Option<f64>,
}

/// Differences in loss below this share of the segments are ignored. It corresponds to a tenth of the
/// requests beyond p99.
pub const LOSS_MATTERS: f64 = 0.001;

/// The minimum distance between two windows' loss rates, in standard errors, for a difference.
const APART_PAIR: f64 = 2.0;

/// The minimum distance for all pairs together. Six pairs, the minimum for a verdict, can reach it even if
/// two of them lost nothing. If the true rates are equal, one test in ten reports a difference, and a later
/// test corrects that.
const APART_TOGETHER: f64 = 2.0;

impl Network {
    /// Returns the counts of a window; `None` if no data was sent or received.
    pub fn of(window: &LiveWindow) -> Option<Self> {
        let LiveCounts { segments_out, segments_in, out_of_order, .. } = window.counts;
        (segments_out + segments_in > 0).then(|| Self {
            segments_out,
            lost_out: window.counts.lost(),
            segments_in,
            out_of_order,
            rtt: median_rtt(&window.spans.rtt),
        })
    }

    /// Returns the share of sent segments that were lost.
    pub fn loss_out(&self) -> f64 {
        share(self.lost_out, self.segments_out)
    }

    /// Returns the share of received segments that arrived out of order.
    pub fn gaps_in(&self) -> f64 {
        share(self.out_of_order, self.segments_in)
    }

    /// Whether two windows differ in loss by more than chance, and enough to matter.
    pub fn differs(&self, other: &Self) -> bool {
        let out = [(self.lost_out, self.segments_out), (other.lost_out, other.segments_out)];
        let gaps = [(self.out_of_order, self.segments_in), (other.out_of_order, other.segments_in)];
        are_apart(out) || are_apart(gaps)
    }
}

/// A candidate's counts over all windows, including those of void rounds.
#[derive(Clone, Debug, Default)]
pub struct NetworkTotals {
    total: Network,
    rtts: Vec<f64>,
}

impl NetworkTotals {
    /// The maximum number of round-trip times that are kept.
    const RTTS_MAX: usize = crate::measure::sequential::PAIRS_MAX;

    /// Adds a window.
    pub fn add(&mut self, network: &Network) {
        self.total.segments_out += network.segments_out;
        self.total.lost_out += network.lost_out;
        self.total.segments_in += network.segments_in;
        self.total.out_of_order += network.out_of_order;
        if self.rtts.len() < Self::RTTS_MAX {
            self.rtts.extend(network.rtt);
        }
    }

    /// Returns the totals, with the median of the windows' round-trip times.
    pub fn total(&self) -> Network {
        Network { rtt: crate::measure::statistics::median(&self.rtts), ..self.total }
    }

    /// Formats the loss: `12 of 4000 segments lost (0.30 %), 3 of 4100 out of order (0.07 %), round trip 210
    /// us`.
    fn words(&self) -> String {
        let all = self.total();
        let of = |part: u64, of: u64, word: &str| {
            format!("{part} of {of} segments {word} ({:.2} %)", 100.0 * share(part, of))
        };
        let mut words = of(all.lost_out, all.segments_out, "lost");
        words += &format!(", {}", of(all.out_of_order, all.segments_in, "out of order"));
        if let Some(rtt) = all.rtt {
            words += &format!(", round trip {:.0} us", rtt / 1e3);
        }
        words
    }
}

/// Returns the finding on candidates whose windows differ in loss. `seen` is in the order of `names`.
pub(super) fn loss_differs(
    object: &str,
    names: &[String],
    seen: &[NetworkTotals],
    void: usize,
    withheld: bool,
) -> Option<Finding> {
    if void == 0 && !withheld {
        return None;
    }
    let mut evidence: Vec<String> =
        names.iter().zip(seen).map(|(name, seen)| format!("{name}: {}", seen.words())).collect();
    evidence.push(match withheld {
        true => "the valid pairs differ as well: there is no verdict".to_owned(),
        false => format!("{void} {} void for this reason", if void == 1 { "round is" } else { "rounds are" }),
    });
    Some(Finding {
        rule: "live-loss-differs".to_owned(),
        severity: if withheld { Severity::Warning } else { Severity::Note },
        object: object.to_owned(),
        summary: "the network lost more segments with one candidate than with another, which may be the cause of a difference".to_owned(),
        evidence,
        remedy: Some("compare again when the network is quiet; if the same candidate loses more each time, check for rx drops with it: netpolicy doctor".to_owned()),
    })
}

/// Returns the median of smoothed round-trip times, in nanoseconds; `None` without any.
pub fn median_rtt(spans: &SpanCounts) -> Option<f64> {
    let survival = Survival::of(spans, &SpanCounts::new());
    survival.quantile(0.5).map(crate::measure::live::survival::Quantile::nanoseconds)
}

fn share(part: u64, of: u64) -> f64 {
    count(part) / count(of.max(1))
}

/// Whether the rates of two counts, each out of a number of segments, differ. Given the sum of the counts,
/// the first is binomial; this uses the normal approximation with a continuity correction.
fn are_apart([(one, of_one), (other, of_other)]: [(u64, u64); 2]) -> bool {
    if of_one == 0 || of_other == 0 {
        return false;
    }
    let both = count(one + other);
    let expected = share(of_one, of_one + of_other);
    let error = (both * expected * (1.0 - expected)).sqrt();
    let away = (count(one) - both * expected).abs() - 0.5;
    away > APART_PAIR * error && (share(one, of_one) - share(other, of_other)).abs() >= LOSS_MATTERS
}

/// Tests whether a candidate's windows differ in loss from those of the first, over all pairs.
///
/// If the network treats both candidates alike, the sign of a pair's difference depends only on the coin,
/// even if losses cluster. So the variance of the sum of the differences is the sum of their squares, and the
/// variance of the sum of their signs is their number. The first statistic detects a few large losses, the
/// second many small ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossDifference {
    pairs: u32,
    out: Sum,
    gaps: Sum,
    first: Network,
    other: Network,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    differences: f64,
    squares: f64,
    signs: f64,
    unequal: f64,
}

impl Sum {
    fn add(&mut self, difference: f64) {
        self.differences += difference;
        self.squares += difference * difference;
        if difference != 0.0 {
            self.signs += difference.signum();
            self.unequal += 1.0;
        }
    }

    fn is_apart(self, pairs: u32) -> bool {
        let sum = self.differences.abs();
        let by_size = sum >= APART_TOGETHER * self.squares.sqrt();
        let by_sign = self.signs.abs() >= APART_TOGETHER * self.unequal.sqrt();
        sum >= LOSS_MATTERS * f64::from(pairs.max(1)) && (by_size || by_sign)
    }
}

impl LossDifference {
    /// Adds a pair: a window of the first candidate, and one of the other.
    pub fn add(&mut self, first: &Network, other: &Network) {
        self.pairs = self.pairs.saturating_add(1);
        self.out.add(other.loss_out() - first.loss_out());
        self.gaps.add(other.gaps_in() - first.gaps_in());
        for (sum, more) in [(&mut self.first, first), (&mut self.other, other)] {
            sum.segments_out += more.segments_out;
            sum.lost_out += more.lost_out;
            sum.segments_in += more.segments_in;
            sum.out_of_order += more.out_of_order;
        }
    }

    /// Whether the pairs show a difference.
    pub fn is_apart(&self) -> bool {
        self.out.is_apart(self.pairs) || self.gaps.is_apart(self.pairs)
    }

    /// Returns the totals of the first candidate and of the other, without round-trip times.
    pub const fn totals(&self) -> (Network, Network) {
        (self.first, self.other)
    }
}

#[cfg(test)]
mod test {
    use model::Chance;

    use super::*;

    /// A random window in which each segment is lost with this probability, in runs of this length.
    fn window(chance: &mut Chance, segments: u64, loss: f64, run: u64) -> Network {
        let mut lost = 0;
        for _ in 0..segments {
            lost += if chance.unit() < loss / count(run) { run } else { 0 };
        }
        Network { segments_out: segments, lost_out: lost, segments_in: segments, ..Network::default() }
    }

    #[test]
    fn one_percent_of_loss_in_one_window_is_seen_and_the_same_loss_in_both_is_none() {
        let mut chance = Chance::stream(39, &[5]);
        let mut differing = |losses: [f64; 2]| {
            (0..1_000)
                .filter(|_| {
                    let [one, other] = losses.map(|loss| window(&mut chance, 2_000, loss, 1));
                    one.differs(&other)
                })
                .count()
        };
        assert!(differing([0.0, 0.01]) > 990, "20 lost segments compared with none");
        assert!(differing([0.01, 0.0]) > 990);
        assert!(differing([0.01, 0.01]) < 60, "chance alone");
        assert_eq!(differing([0.0, 0.000_2]), 0, "too few to be significant");
    }

    #[test]
    fn what_no_pair_shows_alone_is_shown_by_all_of_them_also_where_losses_cluster() {
        /// In how many of 200 trials pairs with these loss rates are reported to differ, if they are tested
        /// together.
        fn shown(losses: [f64; 2], pairs: u32, run: u64) -> usize {
            let trial = |trial: u64| {
                let mut chance = Chance::stream(40, &[trial]);
                let mut all = LossDifference::default();
                while all.pairs < pairs {
                    let [first, other] = losses.map(|loss| window(&mut chance, 200, loss, run));
                    if !first.differs(&other) {
                        all.add(&first, &other);
                    }
                }
                all.is_apart()
            };
            (0..200).filter(|at| trial(*at)).count()
        }
        assert!(shown([0.0, 0.01], 12, 1) >= 195, "{}", shown([0.0, 0.01], 12, 1));
        assert!(shown([0.01, 0.01], 12, 1) <= 30, "{}", shown([0.01, 0.01], 12, 1));
        assert!(shown([0.02, 0.02], 100, 3) <= 30, "in runs of three: {}", shown([0.02, 0.02], 100, 3));
    }

    #[test]
    fn what_a_client_has_received_already_is_no_loss() {
        let counts = LiveCounts { retransmitted: 12, needless: 10, ..LiveCounts::default() };
        assert_eq!(counts.lost(), 2);
        let late = LiveCounts { retransmitted: 1, needless: 2, ..LiveCounts::default() };
        assert_eq!(late.lost(), 0, "an answer to a segment that was retransmitted before the window");
        assert_eq!(Network::of(&LiveWindow::default()), None);
    }
}
