//! The measured effect of a change of settings on a service's traffic, stored with the transaction that made
//! the change.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How measurement windows under two settings were compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JudgedBy {
    /// The settings alternated in random order within pairs of windows.
    #[default]
    Switchback,
    /// The change was made once, and windows before and after it were compared. A drift of the load can look
    /// like an effect of the change.
    BeforeAfter,
}

impl JudgedBy {
    /// The method's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Switchback => "switchback",
            Self::BeforeAfter => "before and after",
        }
    }
}

impl fmt::Display for JudgedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The result of a comparison or a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ruling {
    /// At least one of the quantities that decide is better, and none is worse.
    Better,
    /// At least one of the quantities that decide is worse, and none is better.
    Worse,
    /// One of the quantities that decide is better, and another is worse.
    Mixed,
    /// Every quantity that decides differs by less than the margin.
    NoDifference,
    /// The measurements do not suffice for any of the rulings above.
    CannotTell,
    /// The change was kept: no limit was exceeded before the guard's time was over.
    Kept,
    /// The change was rolled back: a limit of the guard was exceeded.
    BeyondLimit,
    /// The change was rolled back: requests waited without an answer.
    Stalled,
    /// The change was rolled back: a process of the service exited.
    ServiceEnded,
    /// The change was rolled back: the measurements did not suffice for a verdict.
    NotJudged,
    /// The change was rolled back: the service's clients closed their connections, so nothing could be
    /// measured.
    ClientsLeft,
    /// The change was rolled back: the operator or the system ended the guard.
    Interrupted,
}

impl Ruling {
    /// The rulings that a guard can make.
    pub const OF_GUARDS: [Self; 7] = [
        Self::Kept,
        Self::BeyondLimit,
        Self::Stalled,
        Self::ServiceEnded,
        Self::NotJudged,
        Self::ClientsLeft,
        Self::Interrupted,
    ];

    /// Whether the change stays in force after this ruling.
    pub const fn is_kept(self) -> bool {
        matches!(self, Self::Kept | Self::Better)
    }

    /// Returns the ruling as text, for display.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Mixed => "better in one quantity, worse in another",
            Self::NoDifference => "no difference above the margin",
            Self::CannotTell => "no verdict",
            Self::Kept => "kept by the guard",
            Self::BeyondLimit => "reverted: beyond the guard's limit",
            Self::Stalled => "reverted: requests stalled",
            Self::ServiceEnded => "reverted: the service exited",
            Self::NotJudged => "reverted: too little was measured for a verdict",
            Self::ClientsLeft => "reverted: its clients disconnected",
            Self::Interrupted => "reverted: interrupted",
        }
    }
}

impl fmt::Display for Ruling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The unit of a measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JudgedUnit {
    /// Nanoseconds.
    Nanoseconds,
    /// Events a second.
    PerSecond,
    /// A share, 0..=1. A change of it is given as a difference.
    Share,
}

/// The change of one measured quantity.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct JudgedChange {
    /// The quantity's name, such as `p99`.
    pub metric: String,
    /// The unit of the quantity's values.
    pub unit: JudgedUnit,
    /// The typical value before the change of settings.
    pub before: Option<f64>,
    /// The typical value after the change of settings.
    pub after: Option<f64>,
    /// The change, as a share of the value before (−0.3 for 30 % less); for a share, the difference.
    pub change: f64,
    /// The lower end of the 95 % confidence interval, which stays valid no matter how often it is inspected
    /// (anytime-valid); `None` while there are too few pairs.
    pub low: Option<f64>,
    /// The upper end.
    pub high: Option<f64>,
    /// The guard's limit for this quantity, as a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// Whether the quantity contributes to the ruling.
    pub decides: bool,
}

/// A verdict on a change of settings, with its evidence. Unknown members, which later versions may write, are
/// ignored.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Judgement {
    /// The time of the verdict, in microseconds since 1970.
    pub unix_micros: u64,
    /// The service whose traffic was measured.
    pub service: String,
    /// The settings with which the change was compared, such as `current`.
    pub with: String,
    /// The result.
    pub ruling: Ruling,
    /// The method.
    pub by: JudgedBy,
    /// The number of pairs of windows that were counted.
    pub pairs: usize,
    /// The number of pairs of windows that were discarded.
    pub void: usize,
    /// The duration of the measurement in seconds.
    pub seconds: f64,
    /// The measured changes; those that decide come first.
    pub changes: Vec<JudgedChange>,
}

impl JudgedChange {
    /// Returns the inverse change, which a rollback makes.
    #[must_use]
    pub fn reversed(&self) -> Self {
        let back = |change: f64| match self.unit {
            JudgedUnit::Share => -change,
            JudgedUnit::Nanoseconds | JudgedUnit::PerSecond => 1.0 / (1.0 + change) - 1.0,
        };
        Self {
            metric: self.metric.clone(),
            unit: self.unit,
            before: self.after,
            after: self.before,
            change: back(self.change),
            low: self.high.map(back),
            high: self.low.map(back),
            limit: None,
            decides: self.decides,
        }
    }

    /// Whether the whole interval shows a change for the worse: longer, more expensive, or fewer per second.
    pub fn is_worse(&self) -> bool {
        match self.unit {
            JudgedUnit::Nanoseconds => self.low.is_some_and(|low| low > 0.0),
            JudgedUnit::PerSecond => self.high.is_some_and(|high| high < 0.0),
            JudgedUnit::Share => false,
        }
    }

    /// Formats the values before and after, such as `412 → 187 us `.
    fn values(&self) -> String {
        let (Some(before), Some(after)) = (self.before, self.after) else { return String::new() };
        let (divisor, unit) = match self.unit {
            JudgedUnit::Nanoseconds => match before.max(after) {
                most if most < 9.95e6 => (1e3, " us"),
                most if most < 9.95e9 => (1e6, " ms"),
                _ => (1e9, " s"),
            },
            JudgedUnit::PerSecond => (1.0, "/s"),
            JudgedUnit::Share => (0.01, " %"),
        };
        let one = |value: f64| {
            let value = value / divisor;
            if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
        };
        format!("{} → {}{unit} ", one(before), one(after))
    }
}

/// Formats a share in percent, with its sign, such as `−55`.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let digits = if percent.abs() < 9.95 { 1 } else { 0 };
    let text = format!("{:.digits$}", percent.abs());
    let text = text.trim_end_matches(".0");
    let sign = match text {
        "0" => "±",
        _ if percent < 0.0 => "−",
        _ => "+",
    };
    format!("{sign}{text}")
}

/// Formats the change, such as `p99 412 → 187 us (−55 %, −61…−48)`; for quantities that do not contribute to
/// the ruling, only the difference: `cpu +3 %`.
impl fmt::Display for JudgedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.unit == JudgedUnit::Share { "points" } else { "%" };
        let change = percent(self.change);
        if !self.decides {
            return write!(f, "{} {change} {unit}", self.metric);
        }
        let end = |end: Option<f64>| end.map_or_else(|| "?".to_owned(), percent);
        let (low, high) = (end(self.low), end(self.high));
        write!(f, "{} {}({change} {unit}, {low}…{high})", self.metric, self.values())?;
        match self.limit {
            Some(limit) => write!(f, " of at most {} %", percent(limit)),
            None => Ok(()),
        }
    }
}

impl Judgement {
    /// Returns the quantities that became worse.
    pub fn worse(&self) -> impl Iterator<Item = &JudgedChange> {
        self.changes.iter().filter(|change| change.is_worse())
    }

    /// Describes the expected effect of a rollback, according to this verdict; `None` if nothing is known.
    pub fn of_going_back(&self) -> Option<String> {
        if self.changes.is_empty() {
            return None;
        }
        let changes: Vec<String> = self.changes.iter().map(|change| change.reversed().to_string()).collect();
        Some(format!("{}, {}", changes.join(", "), self.rests_on()))
    }

    /// Describes the effect of the change: `p99 412 → 187 us (−55 %, −61…−48), cpu +3 %, 40 pairs,
    /// switchback`.
    pub fn of_change(&self) -> String {
        let changes = self.changes.iter().map(ToString::to_string);
        changes.chain([self.rests_on()]).collect::<Vec<_>>().join(", ")
    }

    /// Describes the evidence, such as `40 pairs, switchback`.
    fn rests_on(&self) -> String {
        let windows = match (self.by, self.pairs) {
            (JudgedBy::Switchback, 1) => "1 pair".to_owned(),
            (JudgedBy::Switchback, pairs) => format!("{pairs} pairs"),
            (JudgedBy::BeforeAfter, pairs) => format!("{pairs} windows"),
        };
        let void = if self.void > 0 { format!(", {} void", self.void) } else { String::new() };
        format!("{windows}{void}, {}", self.by)
    }
}

/// Formats the verdict, such as `memcached, compared with current: better: p99 412 → 187 us (−55 %, −61…−48),
/// cpu +3 %, 40 pairs, switchback`.
impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, compared with {}: {}: ", self.service, self.with, self.ruling)?;
        self.changes.iter().try_for_each(|change| write!(f, "{change}, "))?;
        f.write_str(&self.rests_on())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn judgement() -> Judgement {
        let change = |metric: &str, decides: bool, change: f64| JudgedChange {
            metric: metric.to_owned(),
            unit: JudgedUnit::Nanoseconds,
            before: Some(412_000.0),
            after: Some(412_000.0 * (1.0 + change)),
            change,
            low: Some(change - 0.06),
            high: Some(change + 0.07),
            limit: None,
            decides,
        };
        Judgement {
            unix_micros: 1_795_233_900_123_456,
            service: "memcached".to_owned(),
            with: "current".to_owned(),
            ruling: Ruling::Better,
            by: JudgedBy::Switchback,
            pairs: 40,
            void: 0,
            seconds: 88.0,
            changes: vec![change("p99", true, -0.55), change("cpu", false, 0.031)],
        }
    }

    #[test]
    fn a_verdict_is_one_line_with_values_interval_and_what_it_rests_on() {
        assert_eq!(
            judgement().to_string(),
            "memcached, compared with current: better: p99 412 → 185 us (−55 %, −61…−48), cpu +3.1 %, 40 pairs, switchback"
        );
    }

    #[test]
    fn going_back_costs_what_the_change_has_gained() {
        let back = judgement().of_going_back().expect("known");
        assert_eq!(back, "p99 185 → 412 us (+122 %, +92…+156), cpu −3 %, 40 pairs, switchback");
        let there = judgement().of_change();
        assert_eq!(there, "p99 412 → 185 us (−55 %, −61…−48), cpu +3.1 %, 40 pairs, switchback");
        let none = Judgement { changes: Vec::new(), ..judgement() };
        assert_eq!((none.of_going_back(), none.of_change().as_str()), (None, "40 pairs, switchback"));
    }

    #[test]
    fn only_a_whole_interval_on_the_worse_side_is_called_worse() {
        let mut all = judgement();
        all.changes[1].low = Some(0.01);
        let requests = JudgedChange { unit: JudgedUnit::PerSecond, ..all.changes[0].clone() };
        all.changes.push(JudgedChange { metric: "requests".to_owned(), ..requests });
        let worse: Vec<&str> = all.worse().map(|change| change.metric.as_str()).collect();
        assert_eq!(worse, ["cpu", "requests"]);
    }

    #[test]
    fn no_change_has_no_sign_and_an_end_that_is_not_known_is_a_question_mark() {
        let mut change = judgement().changes.remove(0);
        (change.change, change.low, change.limit) = (0.0001, None, Some(0.15));
        (change.before, change.high) = (Some(2_000_000_000.0), Some(0.2));
        assert_eq!(change.to_string(), "p99 2000 → 0.2 ms (±0 %, ?…+20) of at most +15 %");
    }
}
