//! Shows and plots a recorded comparison.

use std::path::Path;

use latency::judge::{ComparisonHeader, RecordedComparison, pairs};
use latency::measure::sequential::Sequence;
use latency::measure::switchback::Metric;
use model::JudgedBy;
use runs::html::{CompareChart, ComparePoint, html_of_compare};
use session::{Exit, Fault};

use crate::Context;
use latency::reports::{CompareReport, in_percent, places};

/// Prints a recorded comparison and writes its plot.
pub(super) fn report(
    recording: &RecordedComparison,
    into: Option<&Path>,
    context: &Context<'_>,
) -> Result<Exit, Fault> {
    context.console.report(&CompareReport::of_record(recording))?;
    let Some(path) = into else { return Ok(Exit::Done) };
    let ComparisonHeader { service, host, kernel, candidates, rule, .. } = &recording.header;
    let switchback = recording.switchback();
    let (mut charts, mut verdicts) = (Vec::new(), Vec::new());
    let places = places(&switchback, switchback.winner_within(&recording.header.limits));
    for (candidate, name) in candidates.iter().enumerate().skip(1) {
        let verdict = switchback.verdict(candidate);
        verdicts.push(format!(
            "{name} compared with {}: {verdict}, {}",
            candidates[0],
            pairs(switchback.rounds())
        ));
        for metric in [Metric::P50, Metric::P90, Metric::P99, Metric::Cpu] {
            let change = switchback.change(candidate, metric);
            charts.push(CompareChart {
                title: format!("{metric} of {name} compared with {}", candidates[0]),
                words: change.to_string(),
                points: points(&switchback.differences(candidate, metric), switchback.level(metric)),
            });
        }
    }
    let how = match recording.header.by {
        JudgedBy::Switchback => "settings alternating in random order",
        JudgedBy::BeforeAfter => "before, with and after a change that was made once",
    };
    let place = format!("Measured on {host}, Linux {kernel}, on live traffic, {how}.");
    let title = format!("Settings of {service} compared");
    let page = html_of_compare(&title, &place, &verdicts, &places, rule.margin * 100.0, &charts);
    std::fs::write(path, page).map_err(|error| Fault::file(path, error))?;
    context.console.say(&format!("Report: {}", path.display()));
    Ok(Exit::Done)
}

/// Returns the state after each pair, or after evenly spaced pairs if there are many, because computing an
/// interval requires all pairs before it.
fn points(differences: &[f64], level: f64) -> Vec<ComparePoint> {
    const POINTS_MAX: usize = 300;
    let every = differences.len().div_ceil(POINTS_MAX).max(1);
    let (mut sequence, mut points) = (Sequence::new(), Vec::new());
    for (at, &difference) in differences.iter().enumerate() {
        sequence.add(difference);
        if (at + 1) % every == 0
            && let Some(bounds) = sequence.bounds(level)
        {
            let (estimate, low, high) = in_percent(bounds.map(f64::exp_m1));
            points.push(ComparePoint {
                pairs: at + 1,
                own: difference.exp_m1() * 100.0,
                estimate,
                low,
                high,
            });
        }
    }
    points
}
