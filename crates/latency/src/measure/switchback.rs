//! Switchback experiments: settings alternate on a live service, and their windows are compared.
//!
//! A round measures each candidate for one window, in random order. All other candidates are compared with
//! the first: each round gives each of them a difference, for ratios on a logarithmic scale. Rounds that were
//! disturbed are voided by rules that ignore which candidate was affected, so the coin stays fair among the
//! remaining rounds. [`crate::measure::sequential`] evaluates the differences.
//!
//! This crate knows only the names of the candidates.

use std::fmt;

use model::{Finding, JudgedBy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::measure::sequential::{Bounds, Sequence};

mod figures;
mod network;

use crate::measure::live::Unit;

pub use figures::{Figures, Metric, Unfair, Waits, unfair};
pub use network::{LOSS_MATTERS, LossDifference, Network, NetworkTotals, median_rtt};

/// The rule by which an experiment is decided.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The deciding metrics.
    pub deciding: Vec<Metric>,
    /// Changes smaller than this share count as no difference, for example 0.05.
    pub margin: f64,
    /// The error rate of the verdict, over all deciding metrics together.
    pub alpha: f64,
}

impl Rule {
    /// The default error rate.
    pub const ALPHA: f64 = 0.05;

    /// Returns the error rate of each deciding interval, with this many candidates besides the first.
    fn level(&self, contrasts: usize) -> f64 {
        self.alpha / count_of(self.deciding.len().max(1) * contrasts.max(1))
    }

    /// Returns by what factor a unit stake must grow to decide one side of a metric's interval, with this
    /// many candidates besides the first.
    pub fn stake(&self, contrasts: usize) -> f64 {
        2.0 / self.level(contrasts)
    }

    /// Returns the minimum number of pairs for a decision, with this many candidates besides the first. A
    /// pair at most doubles the stake.
    pub fn pairs_least(&self, contrasts: usize) -> usize {
        let refused = self.stake(contrasts);
        (1..64)
            .find(|pairs| 2_f64.powi(*pairs) >= refused)
            .map_or(64, |pairs| usize::try_from(pairs).unwrap_or(64))
    }
}

/// The result for one metric of one candidate, compared with the first.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum MetricVerdict {
    /// The candidate is better.
    Better,
    /// The candidate is worse.
    Worse,
    /// The difference is smaller than the margin.
    NoDifference,
    /// There is no result yet, or the network treated the candidates differently.
    CannotTell {
        /// The approximate number of further pairs needed; `None` if unknown.
        more: Option<usize>,
    },
}

/// The change of one metric, as a share of the first candidate's value (−0.3 for 30 % less); for `engaged`
/// and `stalls`, as a difference.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricChange {
    /// The metric.
    pub metric: Metric,
    /// The typical value with the first candidate: the median over its windows.
    pub before: Option<f64>,
    /// The typical value with the other candidate.
    pub after: Option<f64>,
    /// The size of the change with its anytime-valid confidence interval; `None` without pairs.
    pub change: Option<Bounds>,
    /// The number of pairs.
    pub pairs: usize,
    /// Whether the metric is part of the decision.
    pub decides: bool,
    /// The result.
    pub word: MetricVerdict,
}

/// The measurements of a candidate compared with the first.
#[derive(Clone, Debug, Default)]
struct Contrast {
    sequences: Vec<(Metric, Sequence)>,
    before: Vec<(Metric, Vec<f64>)>,
    after: Vec<(Metric, Vec<f64>)>,
    loss: LossDifference,
}

impl Contrast {
    /// Returns the largest distance of the first candidate's windows from their median, on the scale of the
    /// differences.
    fn spread(&self, metric: Metric) -> f64 {
        let known = self.before.iter().find(|(known, _)| *known == metric);
        let values = known.into_iter().flat_map(|(_, values)| values.iter().copied());
        let scaled: Vec<f64> = match metric.is_ratio() {
            true => values.filter(|value| *value > 0.0).map(f64::ln).collect(),
            false => values.collect(),
        };
        let middle = crate::measure::statistics::median(&scaled).unwrap_or(0.0);
        scaled.iter().map(|value| (value - middle).abs()).fold(0.0, f64::max)
    }
}

/// All rounds so far.
#[derive(Clone, Debug)]
pub struct Switchback {
    names: Vec<String>,
    rule: Rule,
    by: JudgedBy,
    /// Creates the sequence of differences, with its bets.
    sequence: fn() -> Sequence,
    contrasts: Vec<Contrast>,
    /// TCP's counts with each candidate.
    seen: Vec<NetworkTotals>,
    rounds: usize,
    void: Vec<(Unfair, usize)>,
    unit: Unit,
}

/// The maximum value of a metric for the winner.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// The metric.
    pub metric: Metric,
    /// The largest value, in the metric's unit: nanoseconds of response times.
    pub most: f64,
}

/// The verdict of a comparison of two candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// The other candidate is better than the first, and no deciding metric is worse.
    Better,
    /// The other candidate is worse, and no deciding metric is better.
    Worse,
    /// One deciding metric is better and another worse.
    Mixed,
    /// The difference is smaller than the margin.
    NoDifference,
    /// There are too few pairs for a verdict, or the network treated the candidates differently.
    CannotTell {
        /// The approximate number of further pairs needed; `None` if it is unknown.
        more: Option<usize>,
    },
}

impl Verdict {
    /// The verdict's name in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Mixed => "mixed",
            Self::NoDifference => "no-difference",
            Self::CannotTell { .. } => "cannot-tell",
        }
    }
}

impl Switchback {
    /// The maximum number of values of a metric that are kept for its typical value.
    const VALUES_MAX: usize = crate::measure::sequential::PAIRS_MAX;

    /// Creates an experiment with at least two candidates; the others are compared with the first.
    pub fn new(names: Vec<String>, rule: Rule) -> Self {
        Self::judged_by(names, rule, JudgedBy::Switchback)
    }

    /// Creates an experiment with this method of measuring. If the settings do not alternate, no coin makes
    /// the differences fair: intervals are then widened on both sides by the largest distance of the first
    /// candidate's windows from their median.
    pub fn judged_by(names: Vec<String>, rule: Rule, by: JudgedBy) -> Self {
        let contrasts = vec![Contrast::default(); names.len().saturating_sub(1)];
        let seen = vec![NetworkTotals::default(); names.len()];
        let sequence = Sequence::new;
        Self { names, rule, by, sequence, contrasts, seen, rounds: 0, void: Vec::new(), unit: Unit::Requests }
    }

    /// Uses [bets for many short pairs](Sequence::robust).
    #[must_use]
    pub fn robust(self) -> Self {
        Self { sequence: Sequence::robust, ..self }
    }

    /// How the windows were measured.
    pub const fn by(&self) -> JudgedBy {
        self.by
    }

    /// The candidates' names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The rule of the decision.
    pub const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Adds a round: one window of each candidate, in the order of their names. Returns why the round is not
    /// valid; `None` if it is valid.
    ///
    /// # Panics
    /// If there is not exactly one window per candidate: a bug in the caller.
    pub fn add(&mut self, windows: &[Figures], seen: Option<Unfair>) -> Option<Unfair> {
        let all: Vec<usize> = (0..self.names.len()).collect();
        self.add_some(&all, windows, seen)
    }

    /// Adds a round of some candidates, given by number in ascending order; the first is 0. The other
    /// candidates are no longer measured. Returns why the round is not valid; `None` if it is valid.
    ///
    /// # Panics
    /// If there is not exactly one window per candidate, or none of candidate 0: a bug in the caller.
    pub fn add_some(
        &mut self,
        candidates: &[usize],
        windows: &[Figures],
        seen: Option<Unfair>,
    ) -> Option<Unfair> {
        assert_eq!(windows.len(), candidates.len(), "a window for each candidate");
        assert_eq!(candidates.first(), Some(&0), "a window with which the others are compared");
        for (candidate, window) in candidates.iter().zip(windows) {
            if let Some((network, known)) = window.network.as_ref().zip(self.seen.get_mut(*candidate)) {
                known.add(network);
            }
        }
        // If the request rate decides, it may differ between the windows of a round.
        let rate_decides = self.rule.deciding.contains(&Metric::Requests);
        let void = seen.or_else(|| unfair(windows).filter(|why| *why != Unfair::Rates || !rate_decides));
        if let Some(why) = void {
            self.void(why);
            // A round with different request rates is still valid for the metric `requests`.
            if why == Unfair::Rates {
                self.count(candidates, windows, &[Metric::Requests]);
            }
            return void;
        }
        self.rounds += 1;
        if windows.iter().any(|window| window.unit == Some(Unit::Exchanges)) {
            self.unit = Unit::Exchanges;
        }
        self.count(candidates, windows, &Metric::ALL);
        None
    }

    /// Returns the unit of counts: exchanges if any window had exchanges.
    pub const fn unit(&self) -> Unit {
        self.unit
    }

    /// Records a round that is not valid.
    pub fn void(&mut self, why: Unfair) {
        match self.void.iter_mut().find(|(known, _)| *known == why) {
            Some((_, rounds)) => *rounds += 1,
            None => self.void.push((why, 1)),
        }
    }

    fn count(&mut self, candidates: &[usize], windows: &[Figures], metrics: &[Metric]) {
        let Some((first, others)) = windows.split_first() else { return };
        for (candidate, other) in candidates.iter().skip(1).zip(others) {
            let Some(contrast) = self.contrasts.get_mut(candidate - 1) else { continue };
            if let Some((first, other)) = first.network.as_ref().zip(other.network.as_ref()) {
                contrast.loss.add(first, other);
            }
            for &metric in metrics {
                if let Some(difference) = metric.difference(first, other) {
                    entry(&mut contrast.sequences, metric, self.sequence).add(difference);
                }
                for (values, figures) in [(&mut contrast.before, first), (&mut contrast.after, other)] {
                    let values = entry(values, metric, Vec::new);
                    values.extend(metric.of(figures).filter(|_| values.len() < Self::VALUES_MAX));
                }
            }
        }
    }

    /// Returns the number of valid rounds.
    pub const fn rounds(&self) -> usize {
        self.rounds
    }

    /// Returns the number of rounds that are not valid, by reason.
    pub fn voided(&self) -> &[(Unfair, usize)] {
        &self.void
    }

    /// Returns the changes of a candidate (counted from 1) compared with the first.
    ///
    /// # Panics
    /// If there is no such candidate: a bug in the caller.
    pub fn changes(&self, candidate: usize) -> Vec<MetricChange> {
        Metric::ALL.into_iter().map(|metric| self.change(candidate, metric)).collect()
    }

    /// Returns the change of one metric.
    ///
    /// # Panics
    /// As for [`Switchback::changes`].
    pub fn change(&self, candidate: usize, metric: Metric) -> MetricChange {
        let contrast = &self.contrasts[candidate - 1];
        let decides = self.rule.deciding.contains(&metric);
        let level = self.level(metric);
        let typical = |values: &[(Metric, Vec<f64>)]| {
            let values = values.iter().find(|(known, _)| *known == metric)?;
            crate::measure::statistics::median(&values.1)
        };
        let sequence = contrast.sequences.iter().find(|(known, _)| *known == metric);
        let bounds = sequence.and_then(|(_, sequence)| sequence.bounds(level));
        let spread = match self.by {
            JudgedBy::Switchback => 0.0,
            JudgedBy::BeforeAfter => contrast.spread(metric),
        };
        let bounds = bounds.map(|bounds| bounds.wider_by(spread));
        let word = match (sequence, bounds, metric.less_is_better()) {
            // The difference may be due to the network, so it is no result.
            _ if contrast.loss.is_apart() => MetricVerdict::CannotTell { more: None },
            (Some((_, sequence)), Some(bounds), Some(less_is_better)) => {
                self.word(sequence, bounds, level, less_is_better, metric.is_ratio())
            }
            _ => MetricVerdict::CannotTell { more: None },
        };
        let as_share = |bounds: Bounds| match metric.is_ratio() {
            true => bounds.map(f64::exp_m1),
            // Shares are between 0 and 1, so a difference is between -1 and 1.
            false => bounds.map(|difference| difference.clamp(-1.0, 1.0)),
        };
        MetricChange {
            metric,
            before: typical(&contrast.before),
            after: typical(&contrast.after),
            change: bounds.map(as_share),
            pairs: sequence.map_or(0, |(_, sequence)| sequence.pairs()),
            decides,
            word,
        }
    }

    fn word(
        &self,
        sequence: &Sequence,
        bounds: Bounds,
        level: f64,
        less_is_better: bool,
        ratio: bool,
    ) -> MetricVerdict {
        let margin = if ratio { self.rule.margin.ln_1p() } else { self.rule.margin };
        let (low, high) = (bounds.low.unwrap_or(f64::NEG_INFINITY), bounds.high.unwrap_or(f64::INFINITY));
        if low > -margin && high < margin {
            return MetricVerdict::NoDifference;
        }
        if high < 0.0 {
            return if less_is_better { MetricVerdict::Better } else { MetricVerdict::Worse };
        }
        if low > 0.0 {
            return if less_is_better { MetricVerdict::Worse } else { MetricVerdict::Better };
        }
        let distance = bounds.estimate.abs().max(margin - bounds.estimate.abs());
        let all = match self.by {
            JudgedBy::Switchback => sequence.pairs_for(distance, level),
            // Without switchbacks, further windows would not make this interval narrower.
            JudgedBy::BeforeAfter => None,
        };
        MetricVerdict::CannotTell { more: all.map(|all| all.saturating_sub(sequence.pairs()).max(1)) }
    }

    /// Returns the differences of a metric by pair, on the additive scale: logarithms of ratios, or
    /// differences.
    ///
    /// # Panics
    /// As for [`Switchback::changes`].
    pub fn differences(&self, candidate: usize, metric: Metric) -> Vec<f64> {
        let sequences = &self.contrasts[candidate - 1].sequences;
        let found = sequences.iter().find(|(known, _)| *known == metric);
        found.map_or_else(Vec::new, |(_, sequence)| sequence.differences().to_vec())
    }

    /// Returns the logarithm of the growth of a unit stake that was bet against the hypothesis that this
    /// metric has grown by at most this share. A growth of the stake by 1/α rejects the hypothesis at any
    /// time.
    ///
    /// # Panics
    /// As for [`Switchback::changes`].
    pub fn against_growth(&self, candidate: usize, metric: Metric, most: f64) -> f64 {
        let most = if metric.is_ratio() { most.ln_1p() } else { most };
        let sequences = &self.contrasts[candidate - 1].sequences;
        let found = sequences.iter().find(|(known, _)| *known == metric);
        found.map_or(0.0, |(_, sequence)| sequence.against_at_most(most))
    }

    /// Returns the error rate of a metric's interval.
    pub fn level(&self, metric: Metric) -> f64 {
        match self.rule.deciding.contains(&metric) {
            true => self.rule.level(self.contrasts.len()),
            false => self.rule.alpha,
        }
    }

    /// Returns the verdict on a candidate (counted from 1) compared with the first.
    ///
    /// # Panics
    /// As for [`Switchback::changes`].
    pub fn verdict(&self, candidate: usize) -> Verdict {
        verdict_of(&self.words(candidate))
    }

    /// Returns the results of the deciding metrics. If no request stalled in any window, `stalls` is not a
    /// deciding metric.
    fn words(&self, candidate: usize) -> Vec<MetricVerdict> {
        let words = self.rule.deciding.iter().map(|metric| (metric, self.change(candidate, *metric).word));
        words
            .filter(|(metric, word)| {
                **metric != Metric::Stalls || !matches!(word, MetricVerdict::CannotTell { .. })
            })
            .map(|(_, word)| word)
            .collect()
    }

    /// Whether every deciding metric has a result: more rounds would then change nothing.
    pub fn is_decided(&self) -> bool {
        (1..self.names.len()).all(|candidate| {
            self.words(candidate).iter().all(|word| !matches!(word, MetricVerdict::CannotTell { .. }))
        })
    }

    /// Returns the loss in the windows of a candidate (counted from 1) and of the first, over the valid
    /// pairs. If the loss differs, no metric has a result.
    ///
    /// # Panics
    /// As for [`Switchback::changes`].
    pub fn loss(&self, candidate: usize) -> &LossDifference {
        &self.contrasts[candidate - 1].loss
    }

    /// Returns TCP's counts with each candidate, in the order of the candidates' names.
    pub fn seen(&self) -> &[NetworkTotals] {
        &self.seen
    }

    /// Returns the finding that the network treated candidates differently, if it did. `object` is the
    /// service's name.
    pub fn loss_differs(&self, object: &str) -> Option<Finding> {
        let withheld = self.contrasts.iter().any(|contrast| contrast.loss.is_apart());
        network::loss_differs(object, &self.names, &self.seen, self.voided_by(Unfair::Loss), withheld)
    }

    /// Returns the best candidate, counted from 0: the one with the largest improvement over the first, or
    /// the first if all others are worse. `None` if the best one is unknown.
    pub fn winner(&self) -> Option<usize> {
        self.winner_within(&[])
    }

    /// Like [`Switchback::winner`], but only among candidates that exceed no limit.
    pub fn winner_within(&self, limits: &[Limit]) -> Option<usize> {
        let others = 1..self.names.len();
        let gain = |candidate: usize| -> f64 {
            let estimates = self.rule.deciding.iter().filter_map(|metric| {
                let change = self.change(candidate, *metric).change?.estimate.ln_1p();
                Some(if metric.less_is_better() == Some(true) { -change } else { change })
            });
            estimates.sum()
        };
        let better = others.clone().filter(|candidate| {
            self.verdict(*candidate) == Verdict::Better && self.exceeded(*candidate, limits).is_empty()
        });
        let best = better.max_by(|one, other| gain(*one).total_cmp(&gain(*other)));
        best.or_else(|| {
            let mut others = others;
            others.all(|candidate| self.verdict(candidate) == Verdict::Worse).then_some(0)
        })
    }

    /// Returns the limits that a candidate's typical value exceeds, with that value. A value that was not
    /// measured counts as exceeding its limit.
    ///
    /// # Panics
    /// As for [`Switchback::changes`].
    pub fn exceeded(&self, candidate: usize, limits: &[Limit]) -> Vec<(Limit, Option<f64>)> {
        let with_value = limits.iter().map(|limit| (*limit, self.change(candidate, limit.metric).after));
        with_value.filter(|(limit, value)| value.is_none_or(|value| value > limit.most)).collect()
    }

    /// Returns the number of rounds that were voided for this reason.
    pub fn voided_by(&self, why: Unfair) -> usize {
        self.void.iter().find(|(known, _)| *known == why).map_or(0, |(_, rounds)| *rounds)
    }

    /// Whether this many rounds had too few requests, and no round had enough. Rounds in which the machine
    /// stalled are ignored, because they may have had no requests either.
    pub fn is_silent(&self, rounds: usize) -> bool {
        let silent = self.voided_by(Unfair::Requests);
        let still = self.voided_by(Unfair::Machine);
        let void: usize = self.void.iter().map(|(_, rounds)| rounds).sum();
        self.rounds == 0 && silent >= rounds && silent + still == void
    }

    /// Whether rounds are void because of the candidates themselves: in a closed loop, a candidate's response
    /// times determine its request rate.
    pub fn closed_loop(&self, candidate: usize) -> bool {
        let rates = self.voided_by(Unfair::Rates);
        let change = self.change(candidate, Metric::Requests);
        let moves = change.change.is_some_and(|change| {
            change.low.is_some_and(|low| low > 0.0) || change.high.is_some_and(|high| high < 0.0)
        });
        rates > self.rounds && moves
    }
}

/// Combines the results of several metrics.
fn verdict_of(words: &[MetricVerdict]) -> Verdict {
    let (better, worse) = (words.contains(&MetricVerdict::Better), words.contains(&MetricVerdict::Worse));
    match (better, worse) {
        (true, true) => return Verdict::Mixed,
        (true, false) => return Verdict::Better,
        (false, true) => return Verdict::Worse,
        (false, false) => {}
    }
    let mut more = Some(0);
    for word in words {
        if let MetricVerdict::CannotTell { more: of_word } = word {
            more = more.zip(*of_word).map(|(most, of_word): (usize, usize)| most.max(of_word));
        }
    }
    match words.iter().all(|word| *word == MetricVerdict::NoDifference) && !words.is_empty() {
        true => Verdict::NoDifference,
        false => Verdict::CannotTell { more: more.filter(|more| *more > 0) },
    }
}

fn entry<T>(list: &mut Vec<(Metric, T)>, metric: Metric, new: fn() -> T) -> &mut T {
    let at = list.iter().position(|(known, _)| *known == metric).unwrap_or_else(|| {
        list.push((metric, new()));
        list.len() - 1
    });
    &mut list[at].1
}

/// Formats a change: `-55.1 % (-61.0 to -48.2)`; in percentage points for `engaged`.
impl fmt::Display for MetricChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Bounds { estimate, low, high }) = self.change else { return f.write_str("-") };
        let unit = if self.metric.is_ratio() { "%" } else { "points" };
        let percent = |share: f64| format!("{:+.1}", share * 100.0);
        let end = |end: Option<f64>| end.map_or_else(|| "?".to_owned(), percent);
        write!(f, "{} {unit} ({} to {})", percent(estimate), end(low), end(high))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Better => f.write_str("better"),
            Self::Worse => f.write_str("worse"),
            Self::Mixed => f.write_str("better in one quantity, worse in another"),
            Self::NoDifference => f.write_str("no difference above the margin"),
            Self::CannotTell { more: Some(more) } => {
                write!(f, "cannot tell yet, about {more} more pairs needed")
            }
            Self::CannotTell { more: None } => f.write_str("cannot tell yet"),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "small numbers of metrics and candidates")]
const fn count_of(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::measure::live::Estimator;
    use model::Chance;
    use proptest::prelude::*;

    fn rule() -> Rule {
        Rule { deciding: vec![Metric::P50, Metric::P90], margin: 0.05, alpha: Rule::ALPHA }
    }

    fn figures(p50_us: f64) -> Figures {
        Figures {
            p50: Some(p50_us * 1e3),
            p90: Some(p50_us * 2e3),
            p99: Some(p50_us * 5e3),
            cpu_service: Some(10_000.0),
            cpu_delivery: Some(5_000.0),
            engaged: Some(0.0),
            ..Figures::of_requests(1.0, 5_000)
        }
    }

    fn noisy(chance: &mut Chance, typical: f64, sd: f64) -> Figures {
        let normal = (-2.0 * chance.unit().ln()).sqrt() * (std::f64::consts::TAU * chance.unit()).cos();
        figures(typical * (sd * normal).exp())
    }

    /// Runs rounds until there is a decision.
    fn decided(ratio: f64, seed: u64) -> (Switchback, usize) {
        let mut chance = Chance::stream(seed, &[]);
        let mut switchback = Switchback::new(vec!["current".to_owned(), "latency".to_owned()], rule());
        for round in 1..=2_000 {
            let windows = [noisy(&mut chance, 100.0, 0.1), noisy(&mut chance, 100.0 * ratio, 0.1)];
            switchback.add(&windows, None);
            if switchback.is_decided() {
                return (switchback, round);
            }
        }
        panic!("undecided after 2000 rounds");
    }

    #[test]
    fn half_the_response_time_is_better_within_ten_rounds_and_twice_is_worse() {
        let (better, rounds) = decided(0.5, 1);
        assert_eq!((better.verdict(1), better.winner()), (Verdict::Better, Some(1)));
        assert!(rounds <= 10, "{rounds}");
        let p50 = better.change(1, Metric::P50).change.expect("a change");
        assert!(p50.low.is_some_and(|low| low < -0.5) && p50.high.is_some_and(|high| high < -0.3), "{p50:?}");
        let (worse, _) = decided(2.0, 2);
        assert_eq!((worse.verdict(1), worse.winner()), (Verdict::Worse, Some(0)));
    }

    #[test]
    fn the_same_twice_is_no_difference_above_the_margin_and_has_no_winner() {
        let (same, rounds) = decided(1.0, 3);
        assert_eq!((same.verdict(1), same.winner()), (Verdict::NoDifference, None));
        assert!(rounds < 600, "{rounds}");
    }

    #[test]
    fn what_is_not_decided_says_how_many_more_pairs_it_takes() {
        let mut chance = Chance::stream(5, &[]);
        let mut switchback = Switchback::new(vec!["a".to_owned(), "b".to_owned()], rule());
        for _ in 0..12 {
            switchback.add(&[noisy(&mut chance, 100.0, 0.3), noisy(&mut chance, 108.0, 0.3)], None);
        }
        let Verdict::CannotTell { more: Some(more) } = switchback.verdict(1) else {
            panic!("{:?}", switchback.verdict(1))
        };
        assert!((20..5_000).contains(&more), "{more}");
    }

    #[test]
    fn a_candidate_that_is_better_at_one_thing_and_worse_at_another_is_neither() {
        let mut switchback = Switchback::new(vec!["a".to_owned(), "b".to_owned()], rule());
        for _ in 0..12 {
            let slow = Figures { p90: Some(400e3), ..figures(50.0) };
            switchback.add(&[figures(100.0), slow], None);
        }
        assert_eq!((switchback.verdict(1), switchback.winner()), (Verdict::Mixed, None));
    }

    #[test]
    fn a_share_changes_by_no_more_than_all_of_it() {
        let mut switchback = Switchback::new(vec!["a".to_owned(), "b".to_owned()], rule());
        for at in 0..12 {
            let none = Figures { engaged: Some(0.002 * f64::from(at % 3)), ..figures(100.0) };
            switchback.add(&[none, Figures { engaged: Some(1.0), ..none }], None);
        }
        let engaged = switchback.change(1, Metric::Engaged);
        assert_eq!(engaged.change.and_then(|change| change.high), Some(1.0), "{engaged}");
    }

    #[test]
    fn fewer_pairs_than_the_fewest_decide_nothing_whatever_they_show() {
        for candidates in 1..=3_usize {
            let names = (0..=candidates).map(|at| at.to_string()).collect();
            let mut switchback = Switchback::new(names, rule());
            let least = rule().pairs_least(candidates);
            for pairs in 1..=least {
                let mut windows = vec![figures(1.0)];
                windows.resize(candidates + 1, figures(100.0));
                switchback.add(&windows, None);
                let is_decided = switchback.is_decided();
                assert_eq!(is_decided, pairs == least, "{pairs} of {least} with {candidates}");
            }
        }
    }

    #[test]
    fn of_several_the_best_wins() {
        let names = ["current", "defer50", "suspend20"].map(str::to_owned).to_vec();
        let mut switchback = Switchback::new(names, rule());
        for _ in 0..20 {
            switchback.add(&[figures(100.0), figures(80.0), figures(60.0)], None);
        }
        assert_eq!(switchback.winner(), Some(2));
        let slower = |p99: f64| Figures { p99: Some(p99), ..figures(60.0) };
        let mut bounded = Switchback::new(["current", "cpu", "power"].map(str::to_owned).to_vec(), rule());
        for _ in 0..20 {
            bounded
                .add(&[figures(100.0), Figures { p99: Some(900.0), ..figures(80.0) }, slower(2_000.0)], None);
        }
        let limit = |most| [Limit { metric: Metric::P99, most }];
        assert_eq!(
            [3_000.0, 1_000.0, 500.0].map(|most| bounded.winner_within(&limit(most))),
            [Some(2), Some(1), None]
        );
        assert_eq!(bounded.exceeded(2, &limit(1_000.0)), [(limit(1_000.0)[0], Some(2_000.0))]);
    }

    #[test]
    fn a_candidate_that_is_no_longer_measured_keeps_its_pairs() {
        let names = ["current", "defer50", "suspend20"].map(str::to_owned).to_vec();
        let mut switchback = Switchback::new(names, rule());
        for _ in 0..9 {
            switchback.add(&[figures(100.0), figures(130.0), figures(60.0)], None);
        }
        for _ in 0..9 {
            switchback.add_some(&[0, 2], &[figures(100.0), figures(80.0)], None);
        }
        let pairs = |candidate| switchback.change(candidate, Metric::P50).pairs;
        assert_eq!((switchback.rounds(), pairs(1), pairs(2)), (18, 9, 18));
        assert_eq!(switchback.verdict(1), Verdict::Worse);
    }

    #[test]
    fn what_makes_a_round_unfair_is_named_and_the_round_does_not_count() {
        let few = Figures { requests: 3, p50: None, ..figures(100.0) };
        let faster = Figures { requests: 7_000, ..figures(100.0) };
        let elsewhere = Figures { estimator: Estimator::Residence, ..figures(100.0) };
        for (other, why) in [(few, Unfair::Requests), (faster, Unfair::Rates), (elsewhere, Unfair::Estimator)]
        {
            let mut switchback = Switchback::new(vec!["a".to_owned(), "b".to_owned()], rule());
            assert_eq!(switchback.add(&[figures(100.0), other], None), Some(why));
            assert_eq!((switchback.rounds(), switchback.voided()), (0, &[(why, 1)][..]));
        }
        let mut switchback = Switchback::new(vec!["a".to_owned(), "b".to_owned()], rule());
        let seen = switchback.add(&[figures(100.0), figures(1.0)], Some(Unfair::Restart));
        assert_eq!((seen, switchback.change(1, Metric::P50).pairs), (Some(Unfair::Restart), 0));
    }

    #[test]
    fn a_service_without_requests_is_silent_also_where_the_machine_stood_still_for_rounds() {
        let few = Figures { requests: 1, ..figures(100.0) };
        let mut switchback = Switchback::new(vec!["a".to_owned(), "b".to_owned()], rule());
        for seen in [None, Some(Unfair::Machine), None] {
            switchback.add(&[few, few], seen);
        }
        assert!(switchback.is_silent(2) && !switchback.is_silent(3));
        switchback.void(Unfair::Restart);
        assert!(!switchback.is_silent(2), "a restart changes the verdict");
    }

    #[test]
    fn chance_alone_does_not_make_rates_of_few_requests_differ() {
        let of = |requests: u64| Figures { requests, ..figures(100.0) };
        assert_eq!(unfair(&[of(100), of(115)]), None);
        assert_eq!(unfair(&[of(10_000), of(11_500)]), Some(Unfair::Rates));
    }

    #[test]
    fn a_candidate_under_which_requests_stall_is_worse_and_its_rounds_are_not_void() {
        let deciding = vec![Metric::P50, Metric::Stalls];
        let mut switchback =
            Switchback::new(vec!["a".to_owned(), "b".to_owned()], Rule { deciding, ..rule() });
        let stalled =
            Figures { requests: 5, p50: None, p90: None, p99: None, oldest: Some(2e9), ..figures(1.0) };
        for _ in 0..8 {
            assert_eq!(switchback.add(&[figures(100.0), stalled], None), None);
        }
        assert_eq!(switchback.verdict(1), Verdict::Worse);
    }

    #[test]
    fn what_did_not_alternate_is_judged_by_the_spread_of_windows_in_addition() {
        let of = |by: JudgedBy, after: f64| {
            let names = vec!["current".to_owned(), "rx-channels=1".to_owned()];
            let mut all = Switchback::judged_by(names, rule(), by);
            // Windows without the change differ from their median by at most a factor of 1.3.
            for before in [103.0, 77.0, 96.0, 118.0, 90.0, 130.0, 99.0, 107.0].repeat(6) {
                all.add(&[figures(before), figures(after)], None);
            }
            all.verdict(1)
        };
        assert_eq!(of(JudgedBy::Switchback, 125.0), Verdict::Worse);
        assert_eq!(of(JudgedBy::BeforeAfter, 125.0), Verdict::CannotTell { more: None });
        assert_eq!(of(JudgedBy::BeforeAfter, 200.0), Verdict::Worse);
    }

    #[test]
    fn closed_loops_are_recognised_by_rates_that_always_differ_in_the_same_way() {
        let mut switchback = Switchback::new(vec!["a".to_owned(), "b".to_owned()], rule());
        for _ in 0..12 {
            switchback.add(&[figures(100.0), Figures { requests: 9_000, ..figures(60.0) }], None);
        }
        assert!(switchback.closed_loop(1) && switchback.rounds() == 0);
        assert_eq!(switchback.verdict(1), Verdict::CannotTell { more: None });
    }

    #[test]
    fn where_the_rate_decides_rounds_of_different_rates_count() {
        let deciding = vec![Metric::Requests, Metric::Stalls];
        let mut switchback =
            Switchback::new(vec!["a".to_owned(), "b".to_owned()], Rule { deciding, ..rule() });
        for _ in 0..8 {
            switchback.add(&[figures(100.0), Figures { requests: 2_000, ..figures(300.0) }], None);
        }
        assert_eq!((switchback.verdict(1), switchback.rounds()), (Verdict::Worse, 8));
        assert!(!switchback.closed_loop(1));
    }

    proptest! {
        #[test]
        fn whether_a_round_counts_does_not_depend_on_which_candidate_is_which(
            one in (1_u64..20_000, 1.0..1_000.0_f64), other in (1_u64..20_000, 1.0..1_000.0_f64),
        ) {
            let of = |(requests, p50): (u64, f64)| Figures { requests, ..figures(p50) };
            prop_assert_eq!(unfair(&[of(one), of(other)]), unfair(&[of(other), of(one)]));
        }
    }
}
