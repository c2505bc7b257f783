//! `watch`: the response times of a service that runs.

use std::path::Path;
use std::time::{Duration, Instant};

use linux::Signals;
use measure::live::series::requests_for;
use measure::live::{Estimate, Series, Summary, doubts};
use measure::report::{Mark, POINTS_MAX, WatchPoint, html_of_watch};

use crate::context::Context;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::render::{WatchReport, WatchRow, WatchWindowReport};
use crate::watch::args::Watch;
use crate::watch::record::{Header, Record, Recording};
use crate::watch::target::Target;
use crate::watch::watcher::{Turn, Watcher};

/// Measures until the time is up, the service ends, or a signal comes; then says what it came to.
pub(crate) fn run(arguments: &Watch, context: &Context) -> Result<Exit, Fault> {
    let target = Target::of(arguments, context)?;
    let sample = Duration::from_nanos(arguments.sample.0);
    let mut watcher = Watcher::load(&target, sample)?;
    let mut record = arguments.record.as_deref().map(|path| Record::create(path, &target)).transpose()?;
    let mut signals = Signals::catch()?;
    let ports: Vec<String> = target.ports.iter().map(ToString::to_string).collect();
    context.console.say(&format!(
        "{}, port {}: {} of each second are measured{}",
        target.name,
        ports.join(", "),
        arguments.sample,
        if arguments.seconds.is_some() { "" } else { "; Ctrl-C ends it" }
    ));
    let began = Instant::now();
    let until = arguments.seconds.map(|seconds| began + Duration::from_secs(seconds));
    let mut row = WatchRow::default();
    let mut due = began;
    let ended = loop {
        match watcher.turn(due, &mut signals)? {
            Turn::Window(shown) => {
                if let Some(record) = &mut record {
                    record.add(&shown.window, &target)?;
                }
                show(context, &mut row, &WatchWindowReport::of(&target, &shown, began.elapsed()))?;
            }
            Turn::Ended => break true,
            Turn::Interrupted => break false,
        }
        due = Watcher::next(due);
        if until.is_some_and(|until| due + sample > until) {
            break false;
        }
    };
    let summary = watcher.summary(&target);
    context.console.report(&WatchReport::of(&target, &summary, watcher.cost(), began.elapsed()))?;
    if ended {
        return Err(Fault::failed(format!("{} ended while it was watched", target.name)));
    }
    Ok(Exit::Done)
}

/// For people a line of a table, for programs that read lines a record; one JSON document has the end alone.
fn show(context: &Context, row: &mut WatchRow, window: &WatchWindowReport<'_>) -> Result<(), Fault> {
    if context.globals.output == crate::args::Output::Table {
        context.console.text(&row.text(window))
    } else if context.globals.output == crate::args::Output::Jsonl {
        context.console.report(window)
    } else {
        Ok(())
    }
}

/// The fewest points of a chart, where there are windows for so many: with fewer requests, p99 is left out.
const POINTS_MIN: usize = 20;

/// Shows a watch that was recorded, and draws it.
pub(super) fn report(recording: &Recording, into: Option<&Path>, context: &Context) -> Result<Exit, Fault> {
    let Header { service, host, kernel, started, .. } = &recording.header;
    let mut all = Series::new();
    recording.windows.iter().for_each(|recorded| all.add(&recorded.window));
    let summary = Summary::of(&all, doubts(service, &all, false));
    context.console.report(&WatchReport::of_record(&recording.header, &summary))?;
    let Some(path) = into else { return Ok(Exit::Done) };
    // As many windows in a point as make few enough points, and have enough requests for p99.
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
