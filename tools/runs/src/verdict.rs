//! Judges whether runs after a change are better than runs before it, beyond noise.
//!
//! Runs are paired in the given order, so the caller alternates runs *before* and *after* the change and
//! passes both in the order of rounds. The verdict depends on:
//!
//! - with a goal: the percentiles that the goal names. A goal is met if the whole interval of the median run
//!   is within it;
//! - without a goal: the median and the 99th percentile; at MAX, where response times only mirror throughput,
//!   just the throughput.
//!
//! *Better* means: every goal is met, no deciding quantity (nor throughput) is worse beyond noise, and a
//! deciding quantity is better beyond noise or a previously missed goal is met. The CPU cost is always
//! reported and never decides: what a policy may cost is defined by its budget.

use std::fmt;

use model::policy::Goal;
use model::{Evidence, Nanoseconds, OfferedLoad, Origin};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use latency::measure::statistics::{Interval, median, median_interval, paired_difference, paired_ratio};

/// Minimum number of pairs of runs that count, for a verdict: with two, Student's interval spans a factor of
/// 12.7.
pub const PAIRS_MIN: usize = 3;

/// Differences below this share do not count, even if they are certain, because they do not justify changing
/// a host.
pub const DIFFERENCE_MIN: f64 = 0.01;

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Better beyond noise, and every goal met.
    Better(Comparison),
    /// The change was not shown to be better, for these reasons.
    NotBetter(Comparison, Vec<Shortfall>),
    /// The runs are inconclusive.
    Void(Void),
}

/// Compares the runs before a change with the runs after it.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// The label of the runs before the change.
    pub before: String,
    /// The label of the runs after the change.
    pub after: String,
    /// The offered load.
    pub load: OfferedLoad,
    /// Pairs of runs that count.
    pub pairs: usize,
    /// Pairs left out because one of their runs was void.
    pub void_pairs: usize,
    /// The median response time.
    pub p50: Compared,
    /// The 99th percentile.
    pub p99: Compared,
    /// Answers per second.
    pub throughput: Compared,
    /// CPU time that the server needs in addition after the change, in CPUs; negative if the change saves CPU
    /// time. `None` if not measured.
    pub cpus_added: Option<Interval>,
}

/// One quantity before and after the change.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compared {
    /// The median of the runs before the change, in the quantity's unit.
    pub before: f64,
    /// The median of the runs after the change, with its interval.
    pub after: Interval,
    /// The ratio of after to before; `None` if either is zero.
    pub ratio: Option<Interval>,
}

impl Compared {
    fn lower(&self) -> bool {
        self.ratio.is_some_and(|r| r.high < 1.0 - DIFFERENCE_MIN)
    }

    fn higher(&self) -> bool {
        self.ratio.is_some_and(|r| r.low > 1.0 + DIFFERENCE_MIN)
    }
}

/// A quantity that can decide the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// The median response time.
    P50,
    /// The 99th percentile.
    P99,
    /// Answers per second.
    Throughput,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::Throughput => "throughput",
        })
    }
}

/// A reason why a change was not shown to be better.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shortfall {
    /// A goal is not met with certainty: the upper end of the interval is above the goal.
    GoalMissed {
        /// The percentile.
        quantity: Quantity,
        /// The goal.
        goal: Nanoseconds,
        /// The measured value and its interval, in nanoseconds.
        found: Interval,
    },
    /// A quantity became worse beyond noise.
    Worse {
        /// The quantity.
        quantity: Quantity,
        /// The ratio of after to before.
        ratio: Interval,
    },
    /// No deciding quantity became better beyond noise.
    NoGain,
}

/// The reason why the runs are inconclusive.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Void {
    /// The numbers of runs before and after differ.
    Unpaired {
        /// Runs before.
        before: usize,
        /// Runs after.
        after: usize,
    },
    /// The runs differ in more than their label and seed.
    NotComparable {
        /// The difference.
        what: String,
    },
    /// Fewer than [`PAIRS_MIN`] pairs have two runs that count.
    TooFew {
        /// Pairs that count.
        pairs: usize,
        /// The reason why the first void run does not count.
        because: Option<String>,
    },
}

/// Compares runs after a change with runs before it, pair by pair.
pub fn verdict(goal: &Goal, before: &[Evidence], after: &[Evidence]) -> Verdict {
    if before.len() != after.len() {
        return Verdict::Void(Void::Unpaired { before: before.len(), after: after.len() });
    }
    let mut all = before.iter().chain(after);
    if let Some(first) = all.next()
        && let Some(what) = all.find_map(|other| difference(first, other))
    {
        return Verdict::Void(Void::NotComparable { what: what.to_owned() });
    }
    let pairs: Vec<(&Evidence, &Evidence)> =
        before.iter().zip(after).filter(|(b, a)| b.void.is_none() && a.void.is_none()).collect();
    let Some(comparison) = (pairs.len() >= PAIRS_MIN).then(|| compare(&pairs, before.len())).flatten() else {
        let because = before.iter().chain(after).find_map(|e| e.void.clone());
        return Verdict::Void(Void::TooFew { pairs: pairs.len(), because });
    };
    let shortfalls = shortfalls(goal, &comparison);
    if shortfalls.is_empty() {
        Verdict::Better(comparison)
    } else {
        Verdict::NotBetter(comparison, shortfalls)
    }
}

/// Names what makes two runs incomparable.
fn difference(one: &Evidence, other: &Evidence) -> Option<&'static str> {
    let place = match (&one.origin, &other.origin) {
        (Origin::Measured(a), Origin::Measured(b)) => {
            (a.host != b.host || a.kernel != b.kernel).then_some("the host or its kernel")
        }
        (Origin::Simulated(a), Origin::Simulated(b)) => {
            (a.parameters != b.parameters).then_some("the model's parameters")
        }
        (Origin::Measured(_), Origin::Simulated(_)) | (Origin::Simulated(_), Origin::Measured(_)) => {
            Some("their origin: one was measured, one simulated")
        }
    };
    place.or_else(|| (one.load != other.load).then_some("the offered load")).or_else(|| {
        (one.workload.with_seed(0) != other.workload.with_seed(0)).then_some("the workload's options")
    })
}

fn compare(pairs: &[(&Evidence, &Evidence)], runs: usize) -> Option<Comparison> {
    let (first_before, first_after) = pairs.first()?;
    let compared = |of: &dyn Fn(&Evidence) -> f64| {
        let (before, after): (Vec<f64>, Vec<f64>) = pairs.iter().map(|(b, a)| (of(b), of(a))).unzip();
        Some(Compared {
            before: median(&before)?,
            after: median_interval(&after)?,
            ratio: paired_ratio(&before, &after),
        })
    };
    let busy = |run: &Evidence| run.cpu.map(|cpu| cpu.busy() * f64::from(cpu.cpus));
    let cpus: Option<(Vec<f64>, Vec<f64>)> = pairs.iter().map(|(b, a)| busy(b).zip(busy(a))).collect();
    Some(Comparison {
        before: first_before.label.clone(),
        after: first_after.label.clone(),
        load: first_after.load,
        pairs: pairs.len(),
        void_pairs: runs - pairs.len(),
        p50: compared(&|run| nanoseconds(run.latency.p50))?,
        p99: compared(&|run| nanoseconds(run.latency.p99))?,
        throughput: compared(&|run| run.throughput)?,
        cpus_added: cpus.and_then(|(before, after)| paired_difference(&before, &after)),
    })
}

#[expect(clippy::cast_precision_loss, reason = "spans below 2^53 ns, 104 days")]
fn nanoseconds(span: Nanoseconds) -> f64 {
    span.0 as f64
}

fn shortfalls(goal: &Goal, found: &Comparison) -> Vec<Shortfall> {
    let percentiles = [(Quantity::P50, goal.p50, &found.p50), (Quantity::P99, goal.p99, &found.p99)];
    let has_goal = goal.p50.is_some() || goal.p99.is_some();
    let at_max = found.load == OfferedLoad::Max;
    let mut shortfalls = Vec::new();
    let mut gain = at_max && !has_goal && found.throughput.higher();
    for (quantity, goal, compared) in percentiles {
        let decides = if has_goal { goal.is_some() } else { !at_max };
        if !decides {
            continue;
        }
        if let Some(goal) = goal {
            if compared.after.high > nanoseconds(goal) {
                shortfalls.push(Shortfall::GoalMissed { quantity, goal, found: compared.after });
            }
            gain |= compared.before > nanoseconds(goal);
        }
        gain |= compared.lower();
        if let Some(ratio) = compared.ratio.filter(|_| compared.higher()) {
            shortfalls.push(Shortfall::Worse { quantity, ratio });
        }
    }
    if let Some(ratio) = found.throughput.ratio.filter(|_| found.throughput.lower()) {
        shortfalls.push(Shortfall::Worse { quantity: Quantity::Throughput, ratio });
    }
    if !gain {
        shortfalls.push(Shortfall::NoGain);
    }
    shortfalls
}

fn micros(ns: f64) -> String {
    if ns < 9_950.0 { format!("{:.1}us", ns / 1e3) } else { format!("{:.0}us", ns / 1e3) }
}

fn percent(ratio: &Interval) -> String {
    let change = |r: f64| (r - 1.0) * 100.0;
    format!("{:+.1} % ({:+.1} to {:+.1})", change(ratio.estimate), change(ratio.low), change(ratio.high))
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} relative to {} at {}, {} pairs of runs",
            self.after, self.before, self.load, self.pairs
        )?;
        if self.void_pairs > 0 {
            write!(f, " ({} more were void)", self.void_pairs)?;
        }
        for (name, compared) in [("p50", &self.p50), ("p99", &self.p99)] {
            write!(f, "; {name} {} to {}", micros(compared.before), micros(compared.after.estimate))?;
            if let Some(ratio) = &compared.ratio {
                write!(f, ", {}", percent(ratio))?;
            }
        }
        if let Some(ratio) = &self.throughput.ratio {
            write!(f, "; throughput {}", percent(ratio))?;
        }
        if let Some(cpus) = &self.cpus_added {
            write!(f, "; CPUs {:+.2} ({:+.2} to {:+.2})", cpus.estimate, cpus.low, cpus.high)?;
        }
        Ok(())
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GoalMissed { quantity, goal, found } => {
                write!(
                    f,
                    "{quantity} is {}, at most {}: the goal is {goal}",
                    micros(found.estimate),
                    micros(found.high)
                )
            }
            Self::Worse { quantity, ratio } => write!(f, "{quantity} is worse: {}", percent(ratio)),
            Self::NoGain => f.write_str("no metric is better beyond noise"),
        }
    }
}

impl fmt::Display for Void {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unpaired { before, after } => {
                write!(f, "{before} runs before and {after} after cannot be paired")
            }
            Self::NotComparable { what } => write!(f, "the runs differ in {what}"),
            Self::TooFew { pairs, because } => {
                write!(f, "only {pairs} pairs of runs count; at least {PAIRS_MIN} are needed")?;
                match because {
                    Some(because) => write!(f, "; the first void run does not count because {because}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Better(comparison) => write!(f, "better: {comparison}"),
            Self::NotBetter(comparison, shortfalls) => {
                f.write_str("not better")?;
                for shortfall in shortfalls {
                    write!(f, ": {shortfall}")?;
                }
                write!(f, "; {comparison}")
            }
            Self::Void(void) => write!(f, "void: {void}"),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::test_evidence;
    use model::{CpuUse, Distribution};

    /// Runs with these 99th percentiles in microseconds; each median is a tenth of it.
    fn runs(label: &str, p99_us: &[u64]) -> Vec<Evidence> {
        let run = |(round, &p99): (u64, &u64)| {
            let latency = Distribution {
                p50: Nanoseconds::from_micros(p99 / 10),
                p99: Nanoseconds::from_micros(p99),
                ..Distribution::default()
            };
            let base = test_evidence();
            let workload = base.workload.with_seed(round);
            Evidence { label: label.to_owned(), latency, workload, ..base }
        };
        (0..).zip(p99_us).map(run).collect()
    }

    fn goal_p99(us: u64) -> Goal {
        Goal { p99: Some(Nanoseconds::from_micros(us)), ..Goal::default() }
    }

    const BASE: [u64; 5] = [400, 420, 410, 390, 430];
    const HALF: [u64; 5] = [200, 215, 200, 195, 220];

    #[test]
    fn half_the_response_time_in_every_round_is_better() {
        let Verdict::Better(found) =
            verdict(&Goal::default(), &runs("base", &BASE), &runs("suspend20", &HALF))
        else {
            panic!("not better");
        };
        let ratio = found.p99.ratio.expect("has one");
        assert!((0.48..0.52).contains(&ratio.estimate) && ratio.high < 0.55, "{ratio:?}");
        assert_eq!((found.pairs, found.before.as_str(), found.after.as_str()), (5, "base", "suspend20"));
    }

    #[test]
    fn a_difference_within_noise_is_no_gain() {
        let noisy = [430, 380, 415, 400, 410];
        let found = verdict(&Goal::default(), &runs("base", &BASE), &runs("suspend20", &noisy));
        assert!(matches!(&found, Verdict::NotBetter(_, why) if *why == [Shortfall::NoGain]), "{found}");
    }

    #[test]
    fn worse_is_named_with_its_ratio() {
        let found = verdict(&Goal::default(), &runs("suspend20", &HALF), &runs("base", &BASE)).to_string();
        assert!(found.starts_with("not better: p50 is worse: +"), "{found}");
    }

    #[test]
    fn a_goal_counts_as_met_only_with_its_whole_interval() {
        let before = runs("base", &BASE);
        assert!(matches!(verdict(&goal_p99(250), &before, &runs("s", &HALF)), Verdict::Better(_)));
        let found = verdict(&goal_p99(210), &before, &runs("s", &HALF));
        assert!(
            found.to_string().starts_with("not better: p99 is 200us, at most 220us: the goal is 210us"),
            "{found}"
        );
    }

    #[test]
    fn a_goal_that_was_met_before_needs_a_gain() {
        let found = verdict(&goal_p99(1000), &runs("base", &BASE), &runs("s", &BASE));
        assert!(matches!(&found, Verdict::NotBetter(_, why) if *why == [Shortfall::NoGain]), "{found}");
    }

    #[test]
    fn a_lost_tenth_of_throughput_is_worse_whatever_the_response_times() {
        let mut after = runs("s", &HALF);
        for run in &mut after {
            run.throughput *= 0.9;
        }
        let found = verdict(&Goal::default(), &runs("base", &BASE), &after);
        assert!(found.to_string().starts_with("not better: throughput is worse: -10.0 %"), "{found}");
    }

    #[test]
    fn at_max_throughput_alone_decides() {
        let at_max = |mut runs: Vec<Evidence>, throughput: f64| {
            for run in &mut runs {
                (run.load, run.throughput) = (OfferedLoad::Max, throughput);
            }
            runs
        };
        let before = at_max(runs("base", &HALF), 100_000.0);
        let after = at_max(runs("suspend20", &BASE), 120_000.0);
        assert!(matches!(verdict(&Goal::default(), &before, &after), Verdict::Better(_)));
        assert!(matches!(verdict(&Goal::default(), &before, &before), Verdict::NotBetter(..)));
    }

    #[test]
    fn the_cost_in_cpus_is_given_and_does_not_decide() {
        let with_cpu = |mut runs: Vec<Evidence>, busy: f64| {
            for run in &mut runs {
                run.cpu = Some(CpuUse { cpus: 4, user: busy, idle: 1.0 - busy, ..CpuUse::default() });
            }
            runs
        };
        let found =
            verdict(&Goal::default(), &with_cpu(runs("base", &BASE), 0.25), &with_cpu(runs("f", &HALF), 1.0));
        let Verdict::Better(comparison) = found else { panic!("{found}") };
        assert_eq!(comparison.cpus_added.expect("was looked at").estimate, 3.0);
    }

    #[test]
    fn void_runs_leave_with_their_partner_and_too_few_are_no_verdict() {
        let (before, mut after) = (runs("base", &BASE), runs("s", &HALF));
        after[1].void = Some("the generator was late".to_owned());
        let Verdict::Better(found) = verdict(&Goal::default(), &before, &after) else { panic!("not better") };
        assert_eq!((found.pairs, found.void_pairs), (4, 1));
        for run in &mut after[2..4] {
            run.void = Some("the generator was late".to_owned());
        }
        let found = verdict(&Goal::default(), &before, &after).to_string();
        assert_eq!(
            found,
            "void: only 2 pairs of runs count; at least 3 are needed; the first void run does not count because the generator was late"
        );
    }

    #[test]
    fn runs_that_differ_in_more_than_label_and_seed_are_not_compared() {
        let before = runs("base", &BASE);
        let mut after = runs("s", &HALF);
        after[4].load = OfferedLoad::PerSecond(1.0);
        assert_eq!(
            verdict(&Goal::default(), &before, &after).to_string(),
            "void: the runs differ in the offered load"
        );
        let unpaired = verdict(&Goal::default(), &before, &after[..4]);
        assert_eq!(unpaired.to_string(), "void: 5 runs before and 4 after cannot be paired");
    }
}
