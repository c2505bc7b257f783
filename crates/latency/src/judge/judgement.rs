//! The judgement on the rounds of a comparison, as it is recorded with a transaction.

use std::time::Duration;

use crate::measure::switchback::{Metric, MetricChange, Switchback, Verdict};
use model::{JudgedChange, JudgedUnit, Judgement, Ruling};
use session::clock;

/// Returns the judgement on a candidate, compared with the first one. For the first candidate itself, returns
/// the judgement on the second one.
///
/// # Panics
/// If the candidate does not exist.
pub fn judgement(switchback: &Switchback, candidate: usize, service: &str, took: Duration) -> Judgement {
    let names = switchback.names();
    let (other, is_first) = if candidate == 0 { (1, true) } else { (candidate, false) };
    let verdict = switchback.verdict(other);
    let changes = changes_of(&switchback.changes(other));
    Judgement {
        unix_micros: clock::now().unix_micros,
        service: service.to_owned(),
        with: names[if is_first { other } else { 0 }].clone(),
        ruling: ruling(verdict, is_first),
        by: switchback.by(),
        pairs: switchback.rounds(),
        void: switchback.voided().iter().map(|(_, rounds)| rounds).sum(),
        seconds: took.as_secs_f64(),
        changes: match is_first {
            true => changes.iter().map(JudgedChange::reversed).collect(),
            false => changes,
        },
    }
}

const fn ruling(verdict: Verdict, reversed: bool) -> Ruling {
    match (verdict, reversed) {
        (Verdict::Better, false) | (Verdict::Worse, true) => Ruling::Better,
        (Verdict::Worse, false) | (Verdict::Better, true) => Ruling::Worse,
        (Verdict::Mixed, _) => Ruling::Mixed,
        (Verdict::NoDifference, _) => Ruling::NoDifference,
        (Verdict::CannotTell { .. }, _) => Ruling::CannotTell,
    }
}

/// Selects the changes to report: those of the deciding metrics, of other percentiles, and of costs.
pub(crate) fn changes_of(changes: &[MetricChange]) -> Vec<JudgedChange> {
    let is_shown = |change: &&MetricChange| match change.metric {
        Metric::P50 | Metric::P90 | Metric::P99 | Metric::Cpu => true,
        Metric::Requests => change.decides,
        // The ruling itself tells whether requests stalled.
        Metric::CpuService
        | Metric::CpuDelivery
        | Metric::CpuMeasuring
        | Metric::Engaged
        | Metric::Stalls => false,
    };
    let shown = changes.iter().filter(is_shown);
    let mut judged: Vec<JudgedChange> = shown.filter_map(judged).collect();
    judged.sort_by_key(|change| !change.decides);
    judged
}

fn judged(change: &MetricChange) -> Option<JudgedChange> {
    let bounds = change.change?;
    Some(JudgedChange {
        metric: change.metric.to_string(),
        unit: unit_of(change.metric),
        before: change.before,
        after: change.after,
        change: bounds.estimate,
        low: bounds.low,
        high: bounds.high,
        limit: None,
        decides: change.decides,
    })
}

/// The unit of a metric's values.
const fn unit_of(metric: Metric) -> JudgedUnit {
    match metric {
        Metric::P50
        | Metric::P90
        | Metric::P99
        | Metric::Cpu
        | Metric::CpuService
        | Metric::CpuDelivery
        | Metric::CpuMeasuring => JudgedUnit::Nanoseconds,
        Metric::Requests => JudgedUnit::PerSecond,
        Metric::Engaged | Metric::Stalls => JudgedUnit::Share,
    }
}

#[cfg(test)]
mod test {
    use crate::measure::switchback::{Figures, Rule};

    use super::*;

    fn figures(p50_us: f64) -> Figures {
        Figures {
            p50: Some(p50_us * 1e3),
            p90: Some(p50_us * 2e3),
            cpu_service: Some(10_000.0),
            cpu_delivery: Some(5_000.0),
            engaged: Some(0.0),
            ..Figures::of_requests(1.0, 5_000)
        }
    }

    #[test]
    fn the_winner_has_its_verdict_from_its_own_side_whether_it_was_named_first_or_last() {
        let rule = Rule { deciding: vec![Metric::P50], margin: 0.05, alpha: Rule::ALPHA };
        let mut all = Switchback::new(vec!["current".to_owned(), "slow".to_owned()], rule);
        (0..12).for_each(|_| assert_eq!(all.add(&[figures(100.0), figures(200.0)], None), None));
        let of = |candidate| {
            let took = Duration::from_secs(26);
            judgement(&all, candidate, "memcached", took)
        };
        let (first, slow) = (of(0), of(1));
        assert_eq!((first.ruling, first.with.as_str()), (Ruling::Better, "slow"));
        assert_eq!((slow.ruling, slow.with.as_str()), (Ruling::Worse, "current"));
        assert!((first.changes[0].change + 0.5).abs() < 1e-9 && (slow.changes[0].change - 1.0).abs() < 1e-9);
        let metrics: Vec<&str> = slow.changes.iter().map(|change| change.metric.as_str()).collect();
        assert_eq!(
            metrics,
            ["p50", "p90", "cpu"],
            "deciding metrics come first, and unknown ones are omitted"
        );
    }
}
