//! Decides what a search for the best setting measures next.
//!
//! Each round measures the current settings and each remaining candidate once. After each round, candidates
//! are dropped that are clearly worse than the best one, exceed a limit, or cannot improve the goal by the
//! margin (successive elimination: Even-Dar, Mannor, Mansour, "Action elimination and stopping conditions",
//! JMLR 2006). The first rounds are short, because some candidates may harm the service. Measurements that
//! selected a candidate are biased in its favour. Therefore new pairs compare the best two with the current
//! settings, by the confidence sequence of [`crate::measure::sequential`].
//!
//! Everything here is a function of the rounds, so an interrupted search resumes by adding its rounds again.

use std::fmt;

use model::{Guarded, Limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::measure::sequential::{Sequence, hodges_lehmann};
use crate::measure::switchback::{Figures, Metric, MetricVerdict, Rule, Switchback, Unfair};

/// The number of candidates in the proof besides the current settings: the best one and the runner-up.
pub const FINALISTS: usize = 2;

/// The length of the windows in the first look and in the first rounds of the elimination, as a divisor of
/// the ordinary length. Many short windows detect a harmful candidate sooner than a few long ones.
const FIRST_LOOK_PART: u32 = 10;
const SHORT_PART: u32 = 4;

/// The number of elimination rounds with short windows. If the goal is p99 there are none, because short
/// windows have too few requests for that.
const SHORT_ROUNDS: usize = 8;

/// The cost of an ordinary window, in the unit of [`cost`].
const WHOLE_COSTS: usize = 5;

/// The number of rounds in the first look, and the number of void rounds after which it ends.
const PROBES: usize = 3;
const PROBES_VOID_MAX: usize = 2;

/// The factor by which a figure must exceed its limit in each short round for a candidate to be dropped. The
/// p99 of a short window depends on few requests.
const GROSS: f64 = 1.4;
const GROSS_P99: f64 = 2.0;

/// The number of rounds after which the remaining candidates are ranked, and the minimum that a time limit
/// must allow.
const ROUNDS_MAX: usize = 24;
const ROUNDS_LEAST: usize = 4;

/// The maximum number of rounds for the variants of the best candidate.
const VARIANTS_ROUNDS_MAX: usize = 16;

/// The shares of the time limit after which these stages end.
const ELIMINATION_SHARE: f64 = 0.45;
const VARIANTS_SHARE: f64 = 0.6;

/// The threshold for dropping a candidate: the logarithm of a stake's growth in the betting test of
/// [`crate::measure::sequential`], which limits the weight of outliers. It is lower than a verdict's threshold,
/// because a wrong elimination costs only a part of the improvement. It cannot be much lower, because each
/// candidate is tested against several limits after each round.
const DROPS: f64 = 3.689;

/// The threshold for dropping a candidate that is not the best but harmless, and may therefore be measured
/// for longer.
const DROPS_HARMLESS: f64 = 4.605;

/// The logarithm of a stake's growth, in the proof, from which a limit counts as exceeded.
const EXCEEDS: f64 = 0.693;

/// The minimum number of pairs in a proof. A verdict that ends a measurement early overstates the
/// improvement.
const PROOF_LEAST: usize = 12;

/// After this many rounds of which none is valid, candidates cannot be ranked.
const STUCK_ROUNDS: usize = 8;

/// The goal of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Aim {
    /// The metric to improve.
    pub metric: Metric,
    /// How much other metrics may grow.
    pub limits: Limits,
}

/// A stage of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TunerStage {
    /// Short rounds, which drop harmful candidates.
    FirstLook,
    /// Rounds after which candidates that are clearly not the best are dropped.
    Elimination,
    /// Variants of the best candidate with other values.
    Neighbourhood,
    /// New pairs of the current settings, the best and the runner-up.
    Proof,
}

impl fmt::Display for TunerStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FirstLook => "first look, in short windows",
            Self::Elimination => "candidates",
            Self::Neighbourhood => "other values",
            Self::Proof => "proof, in new pairs",
        })
    }
}

/// Why a candidate is not tried, or was dropped.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "kebab-case")]
pub enum Out {
    /// The planner refuses it on this host.
    Refused {
        /// The planner's message.
        words: String,
    },
    /// The candidate changes nothing, or results in the same settings as an earlier candidate.
    Same {
        /// The earlier candidate.
        candidate: String,
    },
    /// An earlier search for this service dropped the candidate.
    Earlier {
        /// Why and when the earlier search dropped it.
        words: String,
    },
    /// The metric to improve became worse, or requests stalled.
    Worse,
    /// Another metric grew beyond its limit.
    Limit {
        /// The metric.
        metric: Metric,
        /// The growth, as a share; `None` if it was not measured.
        growth: Option<f64>,
    },
    /// The candidate does not improve the goal by the margin.
    TooLittle,
    /// Other candidates are better.
    Behind,
}

impl fmt::Display for Out {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Further lines of the message are evidence.
            Self::Refused { words } => f.write_str(words.lines().next().unwrap_or_default()),
            Self::Same { candidate } => write!(f, "the same as {candidate}"),
            Self::Earlier { words } => f.write_str(words),
            Self::Worse => f.write_str("worse"),
            Self::Limit { metric, growth: Some(growth) } => {
                write!(f, "{metric} {:+.0} %, beyond its limit", growth * 100.0)
            }
            Self::Limit { metric, growth: None } => write!(f, "{metric} was not measured"),
            Self::TooLittle => f.write_str("no improvement above the margin"),
            Self::Behind => f.write_str("others are better"),
        }
    }
}

/// Returns the metric of a guarded quantity.
pub const fn metric_of(guarded: Guarded) -> Metric {
    match guarded {
        Guarded::P50 => Metric::P50,
        Guarded::P90 => Metric::P90,
        Guarded::P99 => Metric::P99,
        Guarded::Cpu => Metric::Cpu,
    }
}

/// The rank of a candidate after a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// The candidate's number in the stage, from 1.
    pub candidate: usize,
    /// The improvement of the metric, as a logarithm; 0 if it was not measured.
    pub gain: f64,
    /// Why the candidate was dropped.
    pub out: Option<Out>,
}

/// The next step of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunerStep {
    /// Measure one window of each of these candidates, in random order.
    Round {
        /// The stage.
        stage: TunerStage,
        /// The divisor of the ordinary window length that gives the length of these windows.
        part: u32,
        /// The candidates in ascending order; 0 is the current settings.
        candidates: Vec<usize>,
    },
    /// Call [`Tuner::add_variants`] with the variants of this candidate.
    Variants(usize),
    /// No further round is needed.
    Done,
}

/// A search in progress.
#[derive(Clone, Debug)]
pub struct Tuner {
    aim: Aim,
    rule: Rule,
    names: Vec<String>,
    with_variants: bool,
    /// The time limit and the time spent, in the unit of [`cost`] ([`WHOLE_COSTS`] per ordinary window).
    budget: usize,
    spent: usize,
    windows: usize,
    ended: Vec<Heat>,
    heat: Heat,
    step: Next,
    winner: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Round,
    Variants(usize),
    Done,
}

/// The rounds of a stage.
#[derive(Clone, Debug)]
pub struct Heat {
    /// The stage.
    pub stage: TunerStage,
    /// The rounds of the stage, with its candidates.
    pub switchback: Switchback,
    /// The numbers of the stage's candidates in the search; the first is 0.
    candidates: Vec<usize>,
    /// The figures of each valid round, by the candidate's number in the stage.
    rounds: Vec<Vec<Option<Figures>>>,
    /// Why candidates were dropped, by their number in the stage.
    out: Vec<Option<Out>>,
    void: usize,
}

impl Heat {
    fn new(stage: TunerStage, names: &[String], candidates: Vec<usize>, rule: &Rule) -> Self {
        let of_stage = candidates.iter().map(|candidate| names[*candidate].clone()).collect();
        Self {
            stage,
            switchback: Switchback::new(of_stage, rule.clone()).robust(),
            out: vec![None; candidates.len()],
            candidates,
            rounds: Vec::new(),
            void: 0,
        }
    }

    /// Returns the candidates that are still measured, by their number in the stage.
    fn left(&self) -> Vec<usize> {
        (1..self.candidates.len()).filter(|candidate| self.out[*candidate].is_none()).collect()
    }

    /// Returns by how much a candidate is worse than another one, as a logarithm for each round that measured
    /// both.
    fn worse_by(&self, candidate: usize, other: usize, metric: Metric) -> Vec<f64> {
        let rounds =
            self.rounds.iter().filter_map(|round| worse_by(metric, &round[other]?, &round[candidate]?));
        rounds.collect()
    }

    /// Whether a candidate is worse than another one by more than `most`, a logarithm: whether the stake bet
    /// on that has grown by `growth`, also a logarithm.
    fn is_worse(&self, candidate: usize, other: usize, metric: Metric, most: f64, growth: f64) -> bool {
        let mut sequence = Sequence::robust();
        self.worse_by(candidate, other, metric).into_iter().for_each(|pair| sequence.add(pair));
        sequence.against_at_most(most) >= growth
    }

    /// Returns the length of the next windows, as a divisor of the ordinary length.
    fn part(&self, metric: Metric) -> u32 {
        let is_short = self.rounds.len() < SHORT_ROUNDS && self.void == 0 && metric != Metric::P99;
        match self.stage {
            TunerStage::FirstLook => FIRST_LOOK_PART,
            TunerStage::Elimination if is_short => SHORT_PART,
            TunerStage::Elimination | TunerStage::Neighbourhood | TunerStage::Proof => 1,
        }
    }

    /// Returns the improvement of a candidate over the current settings, as a logarithm.
    fn gain(&self, candidate: usize, metric: Metric) -> f64 {
        hodges_lehmann(&self.worse_by(candidate, 0, metric)).map_or(0.0, |worse| -worse)
    }

    /// Returns the growth of a metric over the current settings, as a share; `None` if it was not measured.
    fn growth(&self, candidate: usize, metric: Metric) -> Option<f64> {
        hodges_lehmann(&self.worse_by(candidate, 0, metric)).map(f64::exp_m1)
    }

    /// Returns the candidate among `of` that improves the metric most.
    fn best(&self, of: &[usize], metric: Metric) -> Option<usize> {
        of.iter().copied().max_by(|one, other| self.gain(*one, metric).total_cmp(&self.gain(*other, metric)))
    }

    /// Returns the number of rounds in which a candidate's requests stalled, but not those of the current
    /// settings.
    fn stalls(&self, candidate: usize) -> usize {
        let stalled = |figures: &Option<Figures>| figures.is_some_and(|figures| figures.stalled());
        self.rounds.iter().filter(|round| stalled(&round[candidate]) && !stalled(&round[0])).count()
    }

    /// Whether there are enough void rounds, and no valid one, to give up.
    fn is_stuck(&self) -> bool {
        self.rounds.is_empty() && self.void >= STUCK_ROUNDS
    }

    /// Returns the candidates of the stage, the best first.
    pub fn standings(&self, metric: Metric) -> Vec<Ranking> {
        let mut all: Vec<Ranking> = (1..self.candidates.len())
            .map(|candidate| Ranking {
                candidate,
                gain: self.gain(candidate, metric),
                out: self.out[candidate].clone(),
            })
            .collect();
        all.sort_by(|one, other| {
            one.out.is_some().cmp(&other.out.is_some()).then(other.gain.total_cmp(&one.gain))
        });
        all
    }
}

impl Tuner {
    /// Creates a search among these candidates, for a time of this many windows. The first candidate is the
    /// current settings. With `with_variants`, variants of the best candidate are tried, too.
    pub fn new(names: Vec<String>, aim: Aim, margin: f64, with_variants: bool, windows: usize) -> Self {
        let rule = rule(&aim, margin);
        let heat = Heat::new(TunerStage::FirstLook, &names, (0..names.len()).collect(), &rule);
        let step = if names.len() > 1 { Next::Round } else { Next::Done };
        let budget = windows.saturating_mul(WHOLE_COSTS);
        Self {
            aim,
            rule,
            names,
            with_variants,
            budget,
            spent: 0,
            windows: 0,
            ended: Vec::new(),
            heat,
            step,
            winner: None,
        }
    }

    /// Returns the minimum number of windows of a search with this many candidates besides the current
    /// settings, plus `variants` variants of the best one.
    pub fn windows_least(candidates: usize, variants: usize) -> usize {
        let of_variants = if variants > 0 { ROUNDS_LEAST * (variants + 2) } else { 0 };
        PROBES * (candidates + 1).div_ceil(WHOLE_COSTS)
            + ROUNDS_LEAST * (candidates + 1)
            + of_variants
            + PROOF_LEAST * (FINALISTS + 1)
    }

    /// Returns the next step of the search.
    pub fn step(&self) -> TunerStep {
        match self.step {
            Next::Done => TunerStep::Done,
            Next::Variants(candidate) => TunerStep::Variants(candidate),
            Next::Round => {
                let left = self.heat.left().into_iter().map(|candidate| self.heat.candidates[candidate]);
                let (stage, part) = (self.heat.stage, self.heat.part(self.aim.metric));
                TunerStep::Round { stage, part, candidates: std::iter::once(0).chain(left).collect() }
            }
        }
    }

    /// The names of all candidates, by number.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The rounds of the current stage, or of the last one.
    pub const fn rounds(&self) -> &Switchback {
        &self.heat.switchback
    }

    /// The stages with at least one round, in order.
    pub fn stages(&self) -> impl Iterator<Item = &Heat> {
        let last = (self.step != Next::Done || !self.heat.rounds.is_empty() || self.heat.void > 0)
            .then_some(&self.heat);
        self.ended.iter().chain(last)
    }

    /// The number of measured windows, including short ones.
    pub const fn windows(&self) -> usize {
        self.windows
    }

    /// The time spent, in windows of ordinary length.
    pub const fn spent(&self) -> usize {
        self.spent / WHOLE_COSTS
    }

    /// Returns the best candidate, which was proved to be better than the current settings and within all
    /// limits; `None` if there is none.
    pub const fn winner(&self) -> Option<usize> {
        self.winner
    }

    /// Returns the winner's number in the proof, whose rounds are [`Tuner::rounds`].
    pub fn winner_in_proof(&self) -> Option<usize> {
        self.heat.candidates.iter().position(|candidate| Some(*candidate) == self.winner)
    }

    /// Whether rounds were measured but none is valid, so that candidates cannot be ranked.
    pub fn is_stuck(&self) -> bool {
        self.heat.is_stuck()
    }

    /// Adds the round that [`Tuner::step`] requested. Returns why the round is not valid; `None` if it is
    /// valid.
    ///
    /// # Panics
    /// If there is not one window for each candidate of the round: a bug in the caller.
    pub fn add(&mut self, windows: &[Figures], seen: Option<Unfair>) -> Option<Unfair> {
        let mut measured = self.heat.left();
        measured.insert(0, 0);
        let cost = cost(self.heat.part(self.aim.metric));
        let void = self.heat.switchback.add_some(&measured, windows, seen);
        match void {
            Some(_) => self.heat.void += 1,
            None => {
                let mut round = vec![None; self.heat.candidates.len()];
                for (candidate, figures) in measured.iter().zip(windows) {
                    round[*candidate] = Some(*figures);
                }
                self.heat.rounds.push(round);
            }
        }
        self.spend(measured.len(), cost);
        void
    }

    /// Records a round that ended early.
    pub fn void(&mut self, why: Unfair) {
        self.heat.switchback.void(why);
        let cost = cost(self.heat.part(self.aim.metric));
        self.heat.void += 1;
        self.spend(self.heat.left().len() + 1, cost);
    }

    fn spend(&mut self, windows: usize, cost: usize) {
        self.windows += windows;
        self.spent += windows * cost;
        if self.step != Next::Round {
            return;
        }
        match self.heat.stage {
            TunerStage::FirstLook => self.look(),
            TunerStage::Elimination | TunerStage::Neighbourhood => self.eliminate(),
            TunerStage::Proof => self.prove(),
        }
    }

    /// Ends the search, because the time limit is reached. Verdicts that the proof has already reached count.
    pub fn end(&mut self) {
        if self.heat.stage == TunerStage::Proof && self.step == Next::Round {
            self.conclude();
        }
        self.step = Next::Done;
    }

    /// Adds the variants of the best candidate, by name; there may be none.
    pub fn add_variants(&mut self, names: Vec<String>) {
        let Next::Variants(best) = self.step else { return };
        let before = self.finalists();
        if names.is_empty() {
            return self.begin_proof(before);
        }
        let first = self.names.len();
        self.names.extend(names);
        let all = [0, best].into_iter().chain(first..self.names.len()).collect();
        self.begin(TunerStage::Neighbourhood, all);
    }

    fn begin(&mut self, stage: TunerStage, candidates: Vec<usize>) {
        let next = Heat::new(stage, &self.names, candidates, &self.rule);
        self.ended.push(std::mem::replace(&mut self.heat, next));
        self.step = Next::Round;
    }

    fn begin_proof(&mut self, finalists: Vec<usize>) {
        let all = std::iter::once(0).chain(finalists).collect();
        self.begin(TunerStage::Proof, all);
    }

    /// Returns the best candidates of the current stage, by their number in the search.
    fn finalists(&self) -> Vec<usize> {
        let mut left = self.heat.standings(self.aim.metric);
        left.retain(|standing| standing.out.is_none());
        // The sort is stable: it keeps the ranking among candidates within the limits, and among the others.
        left.sort_by_key(|standing| !self.seems_within(standing.candidate));
        left.iter().take(FINALISTS).map(|standing| self.heat.candidates[standing.candidate]).collect()
    }

    /// In the first look, drops candidates that are far beyond a limit in each round.
    fn look(&mut self) {
        if self.heat.rounds.len() < PROBES && self.heat.void < PROBES_VOID_MAX {
            return;
        }
        let heat = &mut self.heat;
        for candidate in heat.left() {
            let gross = |round: &Vec<Option<Figures>>| {
                let (before, after) = (&round[0]?, &round[candidate]?);
                if after.stalled() && !before.stalled() {
                    return Some(Out::Worse);
                }
                let goal = std::iter::once((self.aim.metric, self.rule.margin));
                let limits = self.aim.limits.iter().map(|(guarded, most)| (metric_of(guarded), most.share()));
                goal.chain(limits).find_map(|(metric, most)| {
                    let factor = if metric == Metric::P99 { GROSS_P99 } else { GROSS };
                    let worse = worse_by(metric, before, after)?;
                    let is_gross = worse > most.ln_1p() + f64::ln(factor);
                    is_gross.then(|| match metric == self.aim.metric {
                        true => Out::Worse,
                        false => Out::Limit { metric, growth: Some(worse.exp_m1()) },
                    })
                })
            };
            // Void rounds may leave too few rounds to drop a candidate.
            let rounds = heat.rounds.iter().filter(|_| heat.rounds.len() >= PROBES);
            let found: Option<Vec<Out>> = rounds.map(gross).collect();
            heat.out[candidate] = found.and_then(|found| found.into_iter().next_back());
        }
        let left = self.heat.left();
        match left.len() {
            0 => self.step = Next::Done,
            few if few <= FINALISTS && !self.with_variants => self.begin_proof(left),
            _ => {
                let all = std::iter::once(0).chain(left).collect();
                self.begin(TunerStage::Elimination, all);
            }
        }
    }

    /// In an elimination, drops candidates that are clearly not the best. Ends the stage once the others are
    /// ranked.
    fn eliminate(&mut self) {
        let is_first = self.heat.stage == TunerStage::Elimination;
        let (most, share) = match is_first {
            true => (ROUNDS_MAX, ELIMINATION_SHARE),
            false => (VARIANTS_ROUNDS_MAX, VARIANTS_SHARE),
        };
        if self.heat.is_stuck() {
            self.step = Next::Done;
            return;
        }
        for candidate in self.heat.left() {
            self.heat.out[candidate] = self.why_out(candidate);
        }
        // A candidate that seems to exceed a limit may soon be dropped, so do not compare others with it.
        let within: Vec<usize> =
            self.heat.left().into_iter().filter(|candidate| self.seems_within(*candidate)).collect();
        if let Some(best) = self.heat.best(&within, self.aim.metric) {
            for candidate in self.heat.left() {
                if self.heat.is_worse(candidate, best, self.aim.metric, 0.0, DROPS_HARMLESS) {
                    self.heat.out[candidate] = Some(Out::Behind);
                }
            }
        }
        let left = self.heat.left();
        let enough = if is_first { FINALISTS } else { 1 };
        let over = count(self.spent) >= share * count(self.budget) && !self.heat.rounds.is_empty();
        let rounds = self.heat.rounds.len();
        let is_open = left.len() > enough && rounds < most || left.len() > 1 && rounds < ROUNDS_LEAST;
        if is_open && !over {
            return;
        }
        let finalists = self.finalists();
        let stay = finalists.iter().take(if is_first { FINALISTS } else { 1 }).copied();
        let stay: Vec<usize> = stay.collect();
        for candidate in self.heat.left() {
            if !stay.contains(&self.heat.candidates[candidate]) {
                self.heat.out[candidate] = Some(Out::Behind);
            }
        }
        match (is_first, finalists.first()) {
            (true, None) => self.step = Next::Done,
            (true, Some(best)) if self.with_variants => self.step = Next::Variants(*best),
            (true, Some(_)) => self.begin_proof(finalists),
            (false, best) => {
                let harms = |candidate: usize| {
                    let at = self.heat.candidates.iter().position(|known| *known == candidate);
                    at.is_some_and(|at| matches!(self.heat.out[at], Some(Out::Worse | Out::Limit { .. })))
                };
                let mut before = Vec::new();
                if let Some(heat) = self.ended.last() {
                    let left = heat.standings(self.aim.metric).into_iter();
                    let left = left.filter(|standing| standing.out.is_none());
                    before.extend(left.map(|standing| heat.candidates[standing.candidate]));
                }
                before.retain(|candidate| Some(candidate) != best && !harms(*candidate));
                // A variant's original is the runner-up only if there is no other candidate.
                before.sort_by_key(|candidate| self.heat.candidates.contains(candidate));
                let mut all: Vec<usize> = best.copied().into_iter().chain(before).collect();
                all.truncate(FINALISTS);
                if all.is_empty() {
                    self.step = Next::Done;
                    return;
                }
                self.begin_proof(all);
            }
        }
    }

    /// Whether a candidate's estimates are within the limits. Metrics that were not measured count as within.
    fn seems_within(&self, candidate: usize) -> bool {
        let mut limits = self.aim.limits.iter();
        limits.all(|(guarded, most)| {
            let growth = self.heat.growth(candidate, metric_of(guarded));
            growth.is_none_or(|growth| growth <= most.share())
        })
    }

    /// Returns why a candidate need not be measured any longer; `None` if it must be.
    fn why_out(&self, candidate: usize) -> Option<Out> {
        let heat = &self.heat;
        if heat.stalls(candidate) > 1 {
            return Some(Out::Worse);
        }
        for (guarded, most) in self.aim.limits.iter() {
            let metric = metric_of(guarded);
            if heat.is_worse(candidate, 0, metric, most.share().ln_1p(), DROPS) {
                return Some(Out::Limit { metric, growth: heat.growth(candidate, metric) });
            }
        }
        match () {
            () if heat.is_worse(candidate, 0, self.aim.metric, 0.0, DROPS) => Some(Out::Worse),
            () if heat.is_worse(candidate, 0, self.aim.metric, -self.margin(), DROPS_HARMLESS) => {
                Some(Out::TooLittle)
            }
            () => None,
        }
    }

    /// Returns the minimum improvement that matters, as a logarithm.
    fn margin(&self) -> f64 {
        match self.aim.metric.less_is_better() {
            Some(false) => self.rule.margin.ln_1p(),
            _ => -(-self.rule.margin).ln_1p(),
        }
    }

    /// In the proof, drops finalists that cannot win. Ends the proof once all others are decided.
    fn prove(&mut self) {
        if self.heat.is_stuck() || self.spent >= self.budget {
            return self.end();
        }
        let pairs = self.heat.rounds.len();
        for candidate in self.heat.left() {
            self.heat.out[candidate] = self.why_out(candidate);
        }
        let within: Vec<usize> =
            self.heat.left().into_iter().filter(|candidate| self.seems_within(*candidate)).collect();
        let within = if within.is_empty() { self.heat.left() } else { within };
        let Some(best) = self.heat.best(&within, self.aim.metric) else { return self.end() };
        if pairs < PROOF_LEAST {
            return;
        }
        for candidate in self.heat.left().into_iter().filter(|candidate| *candidate != best) {
            // The order of two good candidates need not be proved.
            let is_behind = self.heat.is_worse(candidate, best, self.aim.metric, 0.0, EXCEEDS);
            if is_behind || pairs > 2 * PROOF_LEAST {
                self.heat.out[candidate] = Some(Out::Behind);
            }
        }
        // A metric that seems to exceed its limit needs further pairs.
        if self.unproved(best).is_none() && self.seems_within(best) && self.heat.left() == [best] {
            self.end();
        }
    }

    /// Returns why a candidate has not been proved to be the winner; `None` if it has been proved.
    fn unproved(&self, candidate: usize) -> Option<Out> {
        let change = self.heat.switchback.change(candidate, self.aim.metric);
        if change.word == MetricVerdict::Worse || self.heat.stalls(candidate) > 1 {
            return Some(Out::Worse);
        }
        for (guarded, most) in self.aim.limits.iter() {
            let metric = metric_of(guarded);
            // A limit is not proved if the proof did not measure its metric.
            let growth = self.heat.growth(candidate, metric);
            let is_beyond = self.heat.is_worse(candidate, 0, metric, most.share().ln_1p(), EXCEEDS);
            if growth.is_none() || is_beyond {
                return Some(Out::Limit { metric, growth });
            }
        }
        let is_better = change.word == MetricVerdict::Better
            && self.heat.gain(candidate, self.aim.metric) >= self.margin();
        (!is_better || self.heat.rounds.len() < PROOF_LEAST.min(self.rule.pairs_least(FINALISTS)))
            .then_some(Out::TooLittle)
    }

    /// Determines the winner.
    fn conclude(&mut self) {
        for candidate in self.heat.left() {
            self.heat.out[candidate] = self.unproved(candidate);
        }
        let best = self.heat.best(&self.heat.left(), self.aim.metric);
        for candidate in self.heat.left().into_iter().filter(|candidate| Some(*candidate) != best) {
            self.heat.out[candidate] = Some(Out::Behind);
        }
        self.winner = best.map(|best| self.heat.candidates[best]);
    }
}

/// The rule of the proof: the goal decides, and so do stalled requests, which have no response times.
fn rule(aim: &Aim, margin: f64) -> Rule {
    Rule { deciding: vec![aim.metric, Metric::Stalls], margin, alpha: Rule::ALPHA }
}

/// The cost of a window and of the pause before it.
const fn cost(part: u32) -> usize {
    match part {
        1 => WHOLE_COSTS,
        SHORT_PART => 2,
        _ => 1,
    }
}

/// Returns by how much a window is worse than another, as a logarithm.
fn worse_by(metric: Metric, before: &Figures, after: &Figures) -> Option<f64> {
    let difference = metric.difference(before, after)?;
    Some(if metric.less_is_better() == Some(false) { -difference } else { difference })
}

#[expect(clippy::cast_precision_loss, reason = "counts of rounds and windows")]
const fn count(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    fn figures(p50: f64, p99: f64) -> Figures {
        Figures {
            p50: Some(p50),
            p90: Some(p50 * 2.0),
            p99: Some(p99),
            cpu_service: Some(10_000.0),
            cpu_delivery: Some(5_000.0),
            engaged: Some(0.0),
            ..Figures::of_requests(1.0, 5_000)
        }
    }

    fn tuner(candidates: usize, with_variants: bool, limits: &str) -> Tuner {
        let aim = Aim { metric: Metric::P50, limits: limits.parse().expect("limits") };
        let names = (0..=candidates).map(|candidate| candidate.to_string()).collect();
        Tuner::new(names, aim, 0.05, with_variants, 545)
    }

    /// Runs a search in which windows have no noise.
    fn run(tuner: &mut Tuner, of: impl Fn(usize) -> (f64, f64)) {
        for _ in 0..1_000 {
            match tuner.step() {
                TunerStep::Done => return,
                TunerStep::Variants(best) => {
                    tuner.add_variants(vec![format!("{best}/2"), format!("{best}*2")])
                }
                TunerStep::Round { candidates, .. } => {
                    let windows: Vec<Figures> = candidates
                        .iter()
                        .map(|candidate| figures(of(*candidate).0, of(*candidate).1))
                        .collect();
                    assert_eq!(tuner.add(&windows, None), None);
                }
            }
        }
        panic!("the search does not end: {tuner:?}");
    }

    fn out(tuner: &Tuner, name: &str) -> Option<(TunerStage, Out)> {
        tuner.stages().find_map(|heat| {
            let at = heat.switchback.names().iter().position(|known| known == name)?;
            Some((heat.stage, heat.out[at].clone()?))
        })
    }

    #[test]
    fn what_harms_is_dropped_in_short_rounds_and_the_best_within_the_limits_wins() {
        let mut tuner = tuner(5, false, "p99=+15%");
        // The last candidate is the best one by the goal, but exceeds the limit.
        run(&mut tuner, |at| {
            [(100.0, 500.0), (80.0, 510.0), (300.0, 500.0), (98.0, 500.0), (70.0, 500.0), (60.0, 1_500.0)][at]
        });
        assert_eq!(tuner.winner().map(|winner| tuner.names()[winner].as_str()), Some("4"));
        assert_eq!(out(&tuner, "2"), Some((TunerStage::FirstLook, Out::Worse)));
        assert!(matches!(
            out(&tuner, "5"),
            Some((TunerStage::FirstLook, Out::Limit { metric: Metric::P99, .. }))
        ));
        assert_eq!(out(&tuner, "3").map(|(_, out)| out), Some(Out::Behind));
        let stages: Vec<TunerStage> = tuner.stages().map(|heat| heat.stage).collect();
        assert_eq!(stages, [TunerStage::FirstLook, TunerStage::Elimination, TunerStage::Proof]);
        assert!(tuner.rounds().rounds() >= PROOF_LEAST);
    }

    #[test]
    fn a_variant_of_the_best_may_win_and_the_next_candidate_is_its_runner_up() {
        let mut tuner = tuner(3, true, "p99=+15%");
        run(&mut tuner, |at| ([100.0, 120.0, 80.0, 99.0, 60.0, 90.0][at], 500.0));
        assert_eq!(tuner.winner().map(|winner| tuner.names()[winner].as_str()), Some("2/2"));
        assert_eq!(tuner.rounds().names(), ["0", "2/2", "3"]);
    }

    #[test]
    fn where_nothing_improves_by_the_margin_nothing_wins() {
        for gains in [[100.0; 4], [100.0, 97.0, 98.0, 99.0], [100.0, 500.0, 400.0, 300.0]] {
            let mut tuner = tuner(3, false, "p99=+15%");
            run(&mut tuner, |at| (gains[at], 500.0));
            assert_eq!(tuner.winner(), None, "{gains:?}");
        }
    }

    #[test]
    fn a_limit_that_was_not_measured_is_not_proved() {
        let mut tuner = tuner(1, false, "p99=+15%");
        while let TunerStep::Round { candidates, .. } = tuner.step() {
            let windows = candidates.iter().map(|candidate| match candidate {
                0 => figures(100.0, 500.0),
                _ => Figures { p99: None, ..figures(70.0, 0.0) },
            });
            tuner.add(&windows.collect::<Vec<_>>(), None);
        }
        assert_eq!(tuner.winner(), None);
        assert_eq!(
            out(&tuner, "1").map(|(_, out)| out),
            Some(Out::Limit { metric: Metric::P99, growth: None })
        );
    }

    #[test]
    fn rounds_that_never_count_end_a_search() {
        let mut tuner = tuner(2, true, "p99=+15%");
        let mut rounds = 0;
        while tuner.step() != TunerStep::Done {
            tuner.void(Unfair::Rates);
            rounds += 1;
            assert!(rounds < 30);
        }
        assert!(tuner.is_stuck() && tuner.winner().is_none());
    }

    #[test]
    fn the_least_time_allows_a_verdict() {
        let windows = Tuner::windows_least(6, 4);
        let aim = Aim { metric: Metric::P50, limits: Limits::default() };
        let names = (0..=6).map(|candidate| candidate.to_string()).collect();
        let mut tuner = Tuner::new(names, aim, 0.05, true, windows);
        run(&mut tuner, |at| (if at == 3 { 50.0 } else { 101.0 }, 500.0));
        assert_eq!(tuner.winner(), Some(3));
        assert!(tuner.spent() <= windows);
    }

    proptest! {
        #[test]
        fn a_search_resumes_at_the_step_at_which_it_was_interrupted(
            p50s in prop::collection::vec(20.0..300.0_f64, 40..120), seed in 0_usize..40,
        ) {
            let mut tuner = tuner(4, true, "p99=+15%,cpu=+25%");
            let mut rounds: Vec<Vec<Figures>> = Vec::new();
            for (at, p50) in p50s.iter().enumerate() {
                match tuner.step() {
                    TunerStep::Done => break,
                    TunerStep::Variants(_) => tuner.add_variants(vec!["a".to_owned(), "b".to_owned()]),
                    TunerStep::Round { candidates, .. } => {
                        let window = |candidate: &usize| figures(p50 * p50s[(at + candidate * seed) % p50s.len()], 500.0);
                        let windows: Vec<Figures> = candidates.iter().map(window).collect();
                        tuner.add(&windows, None);
                        rounds.push(windows);
                    }
                }
            }
            let mut again = self::tuner(4, true, "p99=+15%,cpu=+25%");
            for windows in &rounds {
                if let TunerStep::Variants(_) = again.step() {
                    again.add_variants(vec!["a".to_owned(), "b".to_owned()]);
                }
                again.add(windows, None);
            }
            if let TunerStep::Variants(_) = again.step() && !matches!(tuner.step(), TunerStep::Variants(_)) {
                again.add_variants(vec!["a".to_owned(), "b".to_owned()]);
            }
            prop_assert_eq!(again.step(), tuner.step());
            prop_assert_eq!((again.windows(), again.winner()), (tuner.windows(), tuner.winner()));
        }
    }
}
