//! Shows and plots a recorded watch.

use std::path::Path;

use latency::live::{RecordedWindows, WatchHeader};
use latency::measure::live::series::requests_for;
use latency::measure::live::{Estimate, Series, Summary, caveats};
use runs::html::{Mark, POINTS_MAX, WatchPoint, html_of_watch};
use session::{Exit, Fault};

use crate::Context;
use latency::reports::WatchReport;

/// The minimum number of points in a chart, if there are enough windows. If points then have too few
/// requests, p99 is omitted.
const POINTS_MIN: usize = 20;

/// Prints a recorded watch and writes its plot.
pub(super) fn report(
    recording: &RecordedWindows,
    into: Option<&Path>,
    context: &Context<'_>,
) -> Result<Exit, Fault> {
    let WatchHeader { service, host, kernel, started, .. } = &recording.header;
    let mut all = Series::new();
    recording.windows.iter().for_each(|recorded| all.add(&recorded.window));
    let summary = Summary::of(&all, caveats(service, &all, false));
    context.console.report(&WatchReport::of_record(&recording.header, &summary))?;
    let Some(path) = into else { return Ok(Exit::Done) };
    // Combine windows, so that the chart has few enough points and each point has enough requests for p99.
    let windows = recording.windows.len();
    let enough = requests_for(0.99).saturating_mul(u64::try_from(windows).unwrap_or(u64::MAX));
    let together = usize::try_from(enough.div_ceil(summary.requests.max(1))).unwrap_or(windows);
    let together = together.min(windows / POINTS_MIN).max(windows.div_ceil(POINTS_MAX)).max(1);
    let since = |at: u64| {
        #[expect(clippy::cast_precision_loss, reason = "seconds of a watch")]
        let seconds = at.saturating_sub(*started) as f64;
        seconds
    };
    let points: Vec<WatchPoint> = recording
        .windows
        .chunks(together)
        .filter_map(|windows| {
            let mut series = Series::new();
            windows.iter().for_each(|recorded| series.add(&recorded.window));
            let of = Summary::of(&series, Vec::new());
            let micros = |found: Option<Estimate>| found.map(|found| found.interval.estimate / 1e3);
            Some(WatchPoint {
                at: since(windows.last()?.at),
                p50: micros(of.response.p50),
                p90: micros(of.response.p90),
                p99: micros(of.response.p99),
                ring: micros(of.ring.p50),
                wakeup: micros(of.wakeup.p50),
                service: micros(of.service_time.p50),
            })
        })
        .collect();
    let marks: Vec<Mark> = recording
        .windows
        .iter()
        .filter_map(|recorded| Some((since(recorded.at), recorded.settings.as_ref()?.join("; "))))
        .collect();
    let place = format!("Measured on {host}, Linux {kernel}, from outside.");
    let page = html_of_watch(&format!("Response times of {service}"), &place, &points, &marks);
    std::fs::write(path, page).map_err(|error| Fault::file(path, error))?;
    context.console.say(&format!("Report: {}", path.display()));
    Ok(Exit::Done)
}
